import type { Pulse } from './pulse'
import type { Kept, Reader, StoreRemainder } from './remainder'
import type { TransferRate, TransferRates } from './transfer-rate'

/** How much of an answer its buyer got. */
export type Reach = 'complete' | 'truncated' | 'nothing'

export type Observer = {
  /** Resolves when it is on the disk. Never rejects. */
  record: (decide: () => Reach) => Promise<void>
  finish: () => void
  kept: Kept
  storeRemainder: StoreRemainder
  /** Called once, before the end is sent. */
  onEnd: ((isCut: boolean) => void) | undefined
  watch: TransferRates['watch']
  afterPause: Pulse['afterPause']
}

/** What happens to a stream on its way to the buyer. */
export type Progress = {
  /** The transfer rate of the buyer. */
  rate: TransferRate
  /** Bytes were passed on. */
  passed(bytes: number): void
  hasStarted(): boolean
  /** Resolves when bytes may be passed on. */
  ready?(): Promise<void>
  /** The buyer has left, or the stream has ended: nothing more is passed on. */
  isOver(): boolean
  /** The source has ended. Resolves with whether the buyer may see that end. */
  complete(): Promise<boolean>
  /** The source broke. */
  breakOff(error: unknown): Promise<void> | void
  /** The buyer has left. */
  leave(): void
}

/** Passes a stream on to its buyer. `fail` ends the buyer's part of it. */
export function passOn(
  source: ReadableStream<Uint8Array>,
  { kept, afterPause }: { kept: Pick<Kept, 'add'>; afterPause: Pulse['afterPause'] },
  follow: (reader: Reader, fail: () => void) => Progress,
  strategy?: QueuingStrategy<Uint8Array>,
): ReadableStream<Uint8Array> {
  const reader = source.getReader()
  let fail = () => {}
  const progress = follow(reader, () => fail())
  const { rate } = progress
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
          // Before the first byte: a buyer that left during a pause of this process has got
          // nothing, and may come back.
          if (!progress.hasStarted()) await afterPause()
          await progress.ready?.()
          if (progress.isOver()) return controller.error()
          if (done) return (await progress.complete()) ? controller.close() : controller.error()
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
    strategy,
  )
}

/**
 * Passes a stream on and records how much of it was delivered. A stream that continues is recorded
 * as complete at its first chunk, so that a replay is refused from then on. The record is corrected
 * when the stream is cut later. What is to be stored is read to its end when the buyer has left.
 * `signal` fires when the buyer leaves: the server would still accept a first chunk then. A buyer
 * that stays and hardly reads is cut, because it would keep an upstream connection open.
 */
export function observed(
  source: ReadableStream<Uint8Array>,
  signal: AbortSignal,
  observer: Observer,
): ReadableStream<Uint8Array> {
  return passOn(source, observer, (reader, fail) => follow(reader, signal, observer, fail))
}

function follow(
  reader: Reader,
  signal: AbortSignal,
  { record, finish, kept, storeRemainder, onEnd, watch }: Observer,
  fail: () => void,
): Progress {
  let hasStarted = false
  let hasLeft = false
  let isComplete = false
  let hasEnded = false
  let recorded: Promise<void> | undefined
  const reach = () => (hasStarted ? 'truncated' : 'nothing')
  /** Called once when the buyer's connection closes. */
  let letGo = (isCut: boolean) => {
    letGo = () => {}
    rate.stop()
    onEnd?.(isCut)
  }
  const end = (outcome: Reach) => {
    if (hasEnded) return
    hasEnded = true
    letGo(outcome !== 'complete')
    signal.removeEventListener('abort', leave)
    const isCorrect = outcome === 'complete' && recorded !== undefined
    const recording = isCorrect ? recorded : record(() => outcome)
    void recording?.then(finish)
  }
  const leave = () => {
    if (hasEnded || hasLeft) return
    hasLeft = true
    letGo(true)
    signal.removeEventListener('abort', leave)
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
  }
  const rate = watch(() => {
    leave()
    fail()
  })
  signal.addEventListener('abort', leave)
  if (signal.aborted) leave()
  return {
    rate,
    passed(bytes) {
      rate.put(bytes)
      if (hasStarted) return
      hasStarted = true
      setImmediate(() => {
        // A short stream has ended by now.
        if (!hasEnded) recorded = record(() => 'complete')
      })
    },
    async complete() {
      isComplete = true
      const isStored = await kept.store()
      end(isStored || !hasLeft ? 'complete' : reach())
      return !hasLeft
    },
    breakOff() {
      if (!hasLeft) end(reach())
    },
    leave,
    hasStarted: () => hasStarted,
    isOver: () => hasEnded || hasLeft,
  }
}
