import type { Authorization } from '../../db/Authorization'
import type { Kept, Reader } from './remainder'
import type { Reach } from './stream'
import type { TransferRates } from './transfer-rate'

/** Code of the error of a source that was given up because its buyer did not read. */
export const stalledCode = 'buyer-stalled'

/** How a stream ended: read to its end, given up by us, or broken by the upstream for its buyer. */
export type End = 'whole' | 'cut' | 'broken'

export type UsageObserver = {
  /** The stream is cut after this time, ms. */
  limitMs: number
  /** Called once when the buyer's connection closes. */
  onEnd: ((isCut: boolean) => void) | undefined
  watch: TransferRates['watch']
  kept: Pick<Kept, 'add'>
  /** Writes the charge; resolves when it is on the disk. Called once. */
  charge: (ended: { end: End; reach: Reach }) => Promise<Authorization>
  /** Settles the charge. `isWhole`: the source was read to its end. */
  settle: (charged: Authorization, isWhole: boolean) => Promise<void>
  /** All is settled, or left to the sweeps of settlement. */
  finish: () => void
  log: (error: unknown) => void
}

/**
 * Passes a stream on, and charges it at its end, before the buyer sees the end. When the buyer leaves,
 * or hardly reads, the source is read to its end all the same, because it reports its usage there.
 * `signal` fires when the buyer leaves.
 */
export function streamByUse(
  source: ReadableStream<Uint8Array>,
  signal: AbortSignal,
  observer: UsageObserver,
): ReadableStream<Uint8Array> {
  const { kept, watch, limitMs } = observer
  const reader = source.getReader()
  let hasStarted = false
  let hasLeft = false
  let charging: Promise<void> | undefined
  let letGo = (isCut: boolean) => {
    letGo = () => {}
    rate.stop()
    observer.onEnd?.(isCut)
  }
  const reachOf = (end: End): Reach => {
    if (!hasStarted) return end === 'whole' && !hasLeft ? 'complete' : 'nothing'
    return end === 'whole' && !hasLeft ? 'complete' : 'truncated'
  }
  /** Once. Resolves when the charge is on the disk. */
  const conclude = (end: End): Promise<void> => {
    charging ??= chargeAndSettle(observer, { end, reach: reachOf(end) })
    clearTimeout(timer)
    signal.removeEventListener('abort', leave)
    return charging
  }
  const leave = () => {
    if (hasLeft || charging !== undefined) return
    hasLeft = true
    letGo(true)
    void drain(reader, kept).then(conclude)
  }
  let fail = () => {}
  const rate = watch(() => {
    fail()
    leave()
  })
  const timer = setTimeout(() => {
    fail()
    letGo(true)
    void conclude('cut')
    reader.cancel().catch(() => {})
  }, limitMs)
  signal.addEventListener('abort', leave)
  if (signal.aborted) leave()
  return new ReadableStream<Uint8Array>(
    {
      start(controller) {
        fail = () => controller.error()
      },
      async pull(controller) {
        rate.taken()
        try {
          const { done, value } = await reader.read()
          if (value !== undefined) kept.add(value)
          if (hasLeft || charging !== undefined) return controller.error()
          if (done) {
            await conclude('whole')
            letGo(false)
            return controller.close()
          }
          controller.enqueue(value)
          rate.put(value.byteLength)
          hasStarted = true
        } catch (error) {
          if (!hasLeft) {
            // A buyer that stops reading before the end must not get what came before for nothing.
            await conclude(isStalled(error) ? 'cut' : 'broken')
            letGo(true)
          }
          // Without the error, which the server would print; the connection is closed all the same.
          controller.error()
        }
      },
      cancel: leave,
    },
    { highWaterMark: 0 },
  )
}

function isStalled(error: unknown): boolean {
  return (
    typeof error === 'object' && error !== null && 'code' in error && error.code === stalledCode
  )
}

/** Resolves when the charge is written; its settlement goes on. Never rejects. */
async function chargeAndSettle(
  { charge, settle, finish, log }: UsageObserver,
  ended: { end: End; reach: Reach },
): Promise<void> {
  try {
    const charged = await charge(ended)
    void settle(charged, ended.end === 'whole')
      .catch(log)
      .finally(finish)
  } catch (error) {
    log(error)
    finish()
  }
}

/** Reads what nobody takes, for the usage at its end. A source that breaks has not said it. */
async function drain(reader: Pick<Reader, 'read'>, kept: Pick<Kept, 'add'>): Promise<End> {
  try {
    for (;;) {
      const { done, value } = await reader.read()
      if (done || value === undefined) return 'whole'
      kept.add(value)
    }
  } catch {
    return 'cut'
  }
}
