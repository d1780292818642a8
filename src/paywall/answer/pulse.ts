export type Pulse = ReturnType<typeof createPulse>

const tickMs = 500
/** A timer that is later than this belongs to a process that did not run, ms. */
const pausedMs = 1_500
/** Immediates run before the sockets are read, so the second one is the first that runs after. */
const turns = 4

/**
 * Notices that the process was paused, as by SIGSTOP or with its machine. When it wakes, the event loop
 * may first run what other threads have made meanwhile, such as the answer of an upstream. The end of
 * the buyer's connection is then still unread, and the answer would be recorded as delivered. `now` is
 * unix ms. A clock that is set counts as a pause, which costs some turns of the loop.
 */
export function createPulse(now: () => number) {
  let tickedAt = now()
  /** After a pause: resolves when the loop has read its sockets. Undefined without a pause. */
  const afterPause = () => (Math.abs(now() - tickedAt) > pausedMs ? readSockets() : undefined)
  const tick = () => {
    const reading = afterPause()
    if (reading === undefined) tickedAt = now()
    // The timer may fire before the sockets are read.
    else void reading.then(() => (tickedAt = now()))
  }
  const timer = setInterval(tick, tickMs)
  timer.unref()
  return { afterPause, stop: () => clearInterval(timer) }
}

async function readSockets(): Promise<void> {
  for (let turn = 0; turn < turns; turn++) await new Promise((resolve) => setImmediate(resolve))
}
