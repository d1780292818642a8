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
  const { kept } = observer
  const reader = source.getReader()
  let cut = () => {}
  const progress = follow(reader, signal, observer, () => cut())
  const { rate } = progress
  return new ReadableStream<Uint8Array>({
    start(controller) {
      cut = () => {
        progress.leave()
        controller.error()
      }
    },
    async pull(controller) {
      rate.taken()
      try {
        const { done, value } = await reader.read()
        if (progress.hasEnded()) return controller.error()
        if (value !== undefined) kept.add(value)
        // Before the first byte: a buyer that left during a pause of this process has got nothing.
        if (!progress.hasStarted()) await observer.afterPause()
        if (progress.hasEnded() || progress.hasLeft()) return controller.error()
        if (done) {
          await progress.complete()
          if (progress.hasLeft()) controller.error()
          else controller.close()
          return
        }
        controller.enqueue(value)
        rate.put(value.byteLength)
        progress.begin()
      } catch {
        progress.breakOff()
        // The server would print an error, so none is passed; the connection is closed all the
        // same.
        controller.error()
      }
    },
    cancel: progress.leave,
  })
}

type Progress = {
  /** The transfer rate of the buyer. */
  rate: TransferRate
  /** A chunk was passed on. */
  begin(): void
  /** The source has ended: stores what is to be stored, records the end and finishes. */
  complete(): Promise<void>
  /** The source aborted. */
  breakOff(): void
  /** The buyer has left. */
  leave(): void
  hasStarted(): boolean
  hasEnded(): boolean
  hasLeft(): boolean
}

/** The progress of a stream. `onSlow` is called when the buyer hardly reads. */
function follow(
  reader: Reader,
  signal: AbortSignal,
  { record, finish, kept, storeRemainder, onEnd, watch }: Observer,
  onSlow: () => void,
): Progress {
  const rate = watch(onSlow)
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
  signal.addEventListener('abort', leave)
  if (signal.aborted) leave()
  return {
    rate,
    begin() {
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
    },
    breakOff() {
      if (!hasLeft) end(reach())
    },
    leave,
    hasStarted: () => hasStarted,
    hasEnded: () => hasEnded,
    hasLeft: () => hasLeft,
  }
}
