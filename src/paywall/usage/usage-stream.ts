import type { Authorization } from '../../../db/Authorization'
import type { Pulse } from '../answer/pulse'
import type { Kept, Reader } from '../answer/remainder'
import type { Reach } from '../answer/stream'
import type { TransferRate, TransferRates } from '../answer/transfer-rate'

/** Code of the error of a source that was given up because its buyer did not read. */
export const stalledCode = 'buyer-stalled'

/** How often a stream that must not be passed on is looked at again, ms. */
const staleMs = 100

/** How a stream ended: read to its end, given up by us, or broken by the upstream for its buyer. */
export type End = 'whole' | 'cut' | 'broken'

export type UsageObserver = {
  /** The stream is cut after this time, ms. */
  limitMs: number
  /** Called once when the buyer's connection closes. */
  onEnd: ((isCut: boolean) => void) | undefined
  watch: TransferRates['watch']
  afterPause: Pulse['afterPause']
  /** Whether the charge of this process would be written. While it would not, nothing is passed on. */
  isFresh: () => boolean
  kept: Pick<Kept, 'add'>
  /** The buyer gets the first bytes. */
  onStart: () => void
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
  const reader = source.getReader()
  let fail = () => {}
  const progress = follow(reader, signal, observer, () => fail())
  return new ReadableStream<Uint8Array>(
    {
      start(controller) {
        fail = () => controller.error()
      },
      async pull(controller) {
        progress.rate.taken()
        try {
          const { done, value } = await reader.read()
          if (value !== undefined) observer.kept.add(value)
          // Before the first byte: a buyer that left during a pause of this process has got
          // nothing, and may come back.
          if (!progress.hasStarted()) await observer.afterPause()
          while (!observer.isFresh() && !progress.isOver()) await Bun.sleep(staleMs)
          if (progress.isOver()) return controller.error()
          if (done) {
            await written()
            // Other processes may have taken this one for dead and ended the authorization. Then nothing is
            // charged, and the buyer must not take the answer for whole.
            const isCharged = await progress.conclude('whole')
            return isCharged ? controller.close() : controller.error()
          }
          controller.enqueue(value)
          progress.passed(value.byteLength)
        } catch (error) {
          await progress.breakOff(error)
          // The server would print an error, so none is passed; the connection is closed all the
          // same.
          controller.error()
        }
      },
      cancel: progress.leave,
    },
    { highWaterMark: 0 },
  )
}

type Progress = {
  /** The transfer rate of the buyer. */
  rate: TransferRate
  /** Bytes were passed on. */
  passed(bytes: number): void
  hasStarted(): boolean
  /** The buyer has left, or the charge is being written: nothing more is passed on. */
  isOver(): boolean
  /** Writes the charge, once. Resolves when it is on the disk; with false when it cannot be written. */
  conclude(end: End): Promise<boolean>
  /** The source broke. */
  breakOff(error: unknown): Promise<void>
  /** The buyer has left: reads on for the usage. */
  leave(): void
}

/** The progress of a stream. `fail` ends the buyer's part of it. */
function follow(
  reader: Reader,
  signal: AbortSignal,
  observer: UsageObserver,
  fail: () => void,
): Progress {
  let hasStarted = false
  let hasLeft = false
  let charging: Promise<boolean> | undefined
  let letGo = (isCut: boolean) => {
    letGo = () => {}
    rate.stop()
    observer.onEnd?.(isCut)
  }
  const conclude = (end: End): Promise<boolean> => {
    if (charging !== undefined) return charging
    clearTimeout(timer)
    signal.removeEventListener('abort', leave)
    const isAll = end === 'whole' && !hasLeft
    const reach = isAll ? 'complete' : hasStarted ? 'truncated' : 'nothing'
    charging = chargeAndSettle(observer, { end, reach }).then((isCharged) => {
      letGo(!isAll || !isCharged)
      return isCharged
    })
    return charging
  }
  const leave = () => {
    if (hasLeft || charging !== undefined) return
    hasLeft = true
    letGo(true)
    void drain(reader, observer.kept).then(conclude)
  }
  const rate = observer.watch(() => {
    fail()
    leave()
  })
  const timer = setTimeout(() => {
    fail()
    void conclude('cut')
    reader.cancel().catch(() => {})
  }, observer.limitMs)
  signal.addEventListener('abort', leave)
  if (signal.aborted) leave()
  return {
    rate,
    passed(bytes) {
      rate.put(bytes)
      if (!hasStarted) observer.onStart()
      hasStarted = true
    },
    hasStarted: () => hasStarted,
    isOver: () => hasLeft || charging !== undefined,
    conclude,
    async breakOff(error) {
      // A buyer that stops reading before the end must not get the bytes before it for nothing:
      // neither when we give the stream up, nor when the upstream stops sending.
      const isOfBuyer = isStalled(error) || rate.hasStoodStill()
      if (!hasLeft) await conclude(isOfBuyer ? 'cut' : 'broken')
    },
    leave,
  }
}

/**
 * Resolves when the server has written what was enqueued: Bun does that at the end of the turn of the
 * event loop in which it takes a chunk, which may be the next one. A charge on the disk before that
 * could outlive the answer in a crash.
 */
function written(): Promise<void> {
  return new Promise((resolve) => setImmediate(() => setImmediate(resolve)))
}

function isStalled(error: unknown): boolean {
  return (
    typeof error === 'object' && error !== null && 'code' in error && error.code === stalledCode
  )
}

/** Resolves when the charge is written; its settlement continues. False: it was not. Never rejects. */
async function chargeAndSettle(
  { charge, settle, finish, log }: UsageObserver,
  ended: { end: End; reach: Reach },
): Promise<boolean> {
  try {
    const charged = await charge(ended)
    void settle(charged, ended.end === 'whole')
      .catch(log)
      .finally(finish)
    return true
  } catch (error) {
    log(error)
    finish()
    return false
  }
}

/**
 * Reads a stream without a buyer, for the usage at its end. A source that breaks has not reported
 * it.
 */
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
