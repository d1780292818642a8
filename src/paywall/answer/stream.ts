import type { Kept, RemainderReader, StoreRemainder } from './remainder'
import type { TransferRate, TransferRates } from './transfer-rate'

/** How much of an answer its buyer got. */
export type Reach = 'complete' | 'truncated' | 'nothing'

/** What any stream to a buyer needs. */
export type StreamObserver = {
  kept: Pick<Kept, 'add'>
  /** Called once when the buyer's connection closes, before the end is sent. */
  onEnd: ((isCut: boolean) => void) | undefined
  watch: TransferRates['watch']
  afterPause: Pulse['afterPause']
}

/** A stream on its way to the buyer. */
export type Passage = {
  reader: RemainderReader
  /** The transfer rate of the buyer. */
  rate: TransferRate
  /** Bytes were passed on. */
  hasStarted: boolean
  /** The buyer has left: nothing more is passed on. */
  hasLeft: boolean
  /** Ends the buyer's part of the stream. */
  fail(): void
  /** The buyer's connection closes. Called more than once, the first call counts. */
  letGo(isCut: boolean): void
}

/** What happens to a stream on its way. */
export type Course = {
  /** The first bytes were passed on. */
  start(): void
  /** Resolves when bytes may be passed on. */
  ready?(): Promise<void>
  /** Nothing more is passed on, although the buyer may still be there. */
  isEnded(): boolean
  /** The source has ended. Resolves with whether the buyer may see that end. */
  complete(): Promise<boolean>
  /** The source broke. */
  breakOff(error: unknown): Promise<void> | void
  /** The buyer has left, before the stream has ended. Called once. */
  leave(): void
}

/**
 * Passes a stream on to its buyer. `signal` fires when the buyer leaves: the server would still
 * accept a first chunk then. A buyer that stays and hardly reads is cut, because it would keep an
 * upstream connection open.
 */
export function passOn(
  source: ReadableStream<Uint8Array>,
  { signal, kept, onEnd, watch, afterPause }: StreamObserver & { signal: AbortSignal },
  follow: (passage: Passage) => Course,
  strategy?: QueuingStrategy<Uint8Array>,
): ReadableStream<Uint8Array> {
  const reader = source.getReader()
  let isHeld = true
  const leave = () => {
    if (passage.hasLeft || course.isEnded()) return
    passage.hasLeft = true
    passage.letGo(true)
    course.leave()
  }
  const rate = watch(() => {
    leave()
    passage.fail()
  })
  const passage: Passage = {
    reader,
    rate,
    hasStarted: false,
    hasLeft: false,
    fail() {},
    letGo(isCut) {
      if (!isHeld) return
      isHeld = false
      rate.stop()
      signal.removeEventListener('abort', leave)
      onEnd?.(isCut)
    },
  }
  const course = follow(passage)
  signal.addEventListener('abort', leave)
  if (signal.aborted) leave()
  return new ReadableStream<Uint8Array>(
    {
      start(controller) {
        passage.fail = () => controller.error()
      },
      async pull(controller) {
        rate.taken()
        try {
          const { done, value } = await reader.read()
          if (value !== undefined) kept.add(value)
          // Before the first byte: a buyer that left during a pause of this process has got
          // nothing, and may come back.
          if (!passage.hasStarted) await afterPause()
          await course.ready?.()
          if (passage.hasLeft || course.isEnded()) return controller.error()
          if (done) return (await course.complete()) ? controller.close() : controller.error()
          controller.enqueue(value)
          rate.put(value.byteLength)
          if (passage.hasStarted) return
          passage.hasStarted = true
          course.start()
        } catch (error) {
          await course.breakOff(error)
          // The server would print an error, so none is passed; the connection is closed all the
          // same.
          controller.error()
        }
      },
      cancel: leave,
    },
    strategy,
  )
}

type Observer = StreamObserver & {
  /** Resolves when it is on the disk. Never rejects. */
  record: (decide: () => Reach) => Promise<void>
  finish: () => void
  kept: Kept
  storeRemainder: StoreRemainder
}

/**
 * Passes a stream on and records how much of it was delivered. A stream that continues is recorded
 * as complete at its first chunk, so that a replay is refused from then on. The record is corrected
 * when the stream is cut later. What is to be stored is read to its end when the buyer has left.
 */
export function observed(
  source: ReadableStream<Uint8Array>,
  signal: AbortSignal,
  observer: Observer,
): ReadableStream<Uint8Array> {
  const { record, finish, kept, storeRemainder } = observer
  return passOn(source, { ...observer, signal }, (passage) => {
    const { reader } = passage
    let isComplete = false
    let hasEnded = false
    let recorded: Promise<void> | undefined
    const reach = () => (passage.hasStarted ? 'truncated' : 'nothing')
    const end = (outcome: Reach) => {
      if (hasEnded) return
      hasEnded = true
      passage.letGo(outcome !== 'complete')
      const isCorrect = outcome === 'complete' && recorded !== undefined
      const recording = isCorrect ? recorded : record(() => outcome)
      void recording?.then(finish)
    }
    return {
      start() {
        setImmediate(() => {
          // A short stream has ended by now.
          if (!hasEnded) recorded = record(() => 'complete')
        })
      },
      isEnded: () => hasEnded,
      async complete() {
        isComplete = true
        const isStored = await kept.store()
        end(isStored || !passage.hasLeft ? 'complete' : reach())
        return !passage.hasLeft
      },
      breakOff() {
        if (!passage.hasLeft) end(reach())
      },
      leave() {
        // `complete` records the end after storing the answer.
        if (isComplete) return
        const got = reach()
        const rest = storeRemainder(reader, kept)
        if (rest !== undefined) {
          void rest.then((isStored) => end(isStored ? 'complete' : got))
          return
        }
        end(got)
        reader.cancel().catch(() => {})
      },
    }
  })
}

type Pulse = ReturnType<typeof createPulse>

const tickMs = 500
/** A timer that is later than this belongs to a process that did not run, ms. */
const pausedMs = 1_500
/** Immediates run before the sockets are read, so the second one is the first that runs after. */
const turns = 4

/**
 * Notices that the process was paused, as by SIGSTOP or with its machine. When it wakes, the event loop
 * may first run what other threads have made meanwhile, such as the answer of an upstream. The end of
 * the buyer's connection is then still unread, and the answer would be recorded as delivered. `now` is
 * unix ms. A clock that is set counts as a pause, which costs some turns of the loop. `monotonic` is ms.
 */
export function createPulse({ now, monotonic }: Record<'now' | 'monotonic', () => number>) {
  let tickedAt = now()
  /** After a pause: resolves when the loop has read its sockets. Undefined without a pause. */
  const afterPause = () => (Math.abs(now() - tickedAt) > pausedMs ? readSockets() : undefined)
  /**
   * For an answer that goes out in this turn of the loop. Its connection may have ended during a
   * pause before the next turn, which the server does not report after the answer. The returned
   * function tells whether there was such a pause, in immediates that are set later. A clock that is
   * set does not count, because the answer may be made again.
   */
  const beforeNextTurn = () => {
    const at = monotonic()
    let wasPaused = false
    setImmediate(() => {
      wasPaused = monotonic() - at > pausedMs
    })
    return () => wasPaused
  }
  const tick = () => {
    const reading = afterPause()
    if (reading === undefined) tickedAt = now()
    // The timer may fire before the sockets are read.
    else void reading.then(() => (tickedAt = now()))
  }
  const timer = setInterval(tick, tickMs)
  timer.unref()
  return { afterPause, beforeNextTurn, stop: () => clearInterval(timer) }
}

async function readSockets(): Promise<void> {
  for (let turn = 0; turn < turns; turn++) await new Promise((resolve) => setImmediate(resolve))
}
