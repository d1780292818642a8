/** The minimum transfer rate of streams. */
export type TransferRateMin = {
  /** A buyer must take `stepBytes` in each period. */
  stepBytes: number
  stepMs: number
  /** Most stalled streams; above it the streams that stalled first are cut. */
  stalledMax: number
  /** Called for every stream that was cut. */
  reclaim: ReturnType<typeof createReclaim>
}

/**
 * 16 KiB a second. A step is larger than the system's buffer of a connection, which accepts more
 * only after a large part of it was sent. A stalled stream costs 2 to 4 MB, which the runtime reads
 * in advance.
 */
const transferRateMin: TransferRateMin = {
  stepBytes: 1536 * 1024,
  stepMs: 96_000,
  stalledMax: 16,
  reclaim: { after() {} },
}

export type TransferRates = ReturnType<typeof createTransferRates>

/** The transfer rate of one stream. */
export type TransferRate = ReturnType<TransferRates['watch']>

type Stream = ReturnType<typeof createStream>

const checksMax = 192
/** Checks of half a second each after which a stream counts as stalled. */
const stillMin = 6
/** The same, 20 s, after which servers give up a client that takes nothing: 30 s to 60 s are usual. */
const longMin = 40

function createStream(cut: () => void) {
  return {
    waitingBytes: 0,
    takenBytes: 0,
    /** Checks at which bytes waited: since the last whole step, and since the last byte. */
    checks: 0,
    stillChecks: 0,
    hasStoodStill: false,
    cut,
  }
}

/**
 * Only time in which bytes wait for the buyer counts, so that a slow upstream cuts no stream. A
 * timer checks, so that a clock change cuts no stream and a chunk costs no time.
 */
export function createTransferRates(wanted: Partial<TransferRateMin> = {}) {
  const min = { ...transferRateMin, ...wanted }
  const streams = new Set<Stream>()
  let timer: ReturnType<typeof setInterval> | undefined

  const check = () => {
    const still: Stream[] = []
    for (const stream of streams) {
      if (stream.waitingBytes === 0) continue
      stream.checks++
      stream.stillChecks++
      if (stream.stillChecks >= longMin) stream.hasStoodStill = true
      if (stream.checks >= checksMax) stream.cut()
      else if (stream.stillChecks >= stillMin) still.push(stream)
    }
    if (still.length <= min.stalledMax) return
    still.sort((left, right) => right.stillChecks - left.stillChecks)
    for (const stream of still.slice(0, still.length - min.stalledMax)) stream.cut()
  }
  return {
    /** Calls `onSlow` once when the buyer of a stream is too slow. */
    watch(onSlow: () => void) {
      const stop = () => {
        streams.delete(stream)
        if (streams.size > 0) return
        clearInterval(timer)
        timer = undefined
      }
      const cut = () => {
        stop()
        onSlow()
        min.reclaim.after()
      }
      const stream = createStream(cut)
      streams.add(stream)
      timer ??= setInterval(check, min.stepMs / checksMax)
      return {
        /** Bytes wait for the buyer from now on. */
        put(bytes: number): void {
          stream.waitingBytes = bytes
        },
        /** The buyer accepts bytes again. */
        taken(): void {
          stream.takenBytes += stream.waitingBytes
          stream.waitingBytes = 0
          stream.stillChecks = 0
          if (stream.takenBytes < min.stepBytes) return
          stream.takenBytes = 0
          stream.checks = 0
        },
        /** Whether bytes have waited for the buyer for so long that an upstream may have given up. */
        hasStoodStill: () => stream.hasStoodStill,
        stop,
      }
    },
  }
}

/**
 * Time after which the connection of a cut stream has ended; it keeps the stream until then, ms.
 */
const delayMs = 5_000
/**
 * Pause after a collection, as a multiple of its duration: collections use at most 1 % of the time.
 */
const restFactor = 100

/**
 * The collector frees the megabytes of a stream only after minutes, because the heap itself hardly
 * grows. Stalled buyers that are cut in sequence would fill the memory. One collection serves all
 * streams that were cut before it. `collect` returns its duration in ms.
 */
export function createReclaim(collect: () => number, waitMs = delayMs) {
  let timer: ReturnType<typeof setTimeout> | undefined
  let restMs = 0
  return {
    /** Call it for every stream that was cut. */
    after(): void {
      timer ??= setTimeout(
        () => {
          timer = undefined
          restMs = collect() * restFactor
        },
        Math.max(waitMs, restMs),
      )
      // The timer must not delay the end of the process.
      timer.unref()
    },
  }
}
