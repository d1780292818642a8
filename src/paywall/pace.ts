import type { Reclaim } from './reclaim'

/** How fast buyers must take streams. */
export type PaceMin = {
  /** So many bytes in so much time. */
  stepBytes: number
  stepMs: number
  /** Of more streams that stand still, those that have stood longest are cut. */
  stalledMax: number
  /** Told of every stream that was cut. */
  reclaim: Reclaim
}

/**
 * 16 KiB a second. The step is larger than what the system buffers of a connection: it reports that
 * there is room only when a good part of that has left. A stream that stands still costs 2 to 4 MB:
 * the runtime reads so far ahead of what is asked of it.
 */
const paceMin: PaceMin = {
  stepBytes: 1536 * 1024,
  stepMs: 96_000,
  stalledMax: 16,
  reclaim: { after() {} },
}

/** The pace of one stream. */
export type Pace = {
  /** Bytes wait for the buyer from now on. */
  put(bytes: number): void
  /** The buyer has room again. */
  taken(): void
  stop(): void
}

export type Paces = {
  /** Calls `onSlow` once when the buyer of a stream is too slow. */
  watch(onSlow: () => void): Pace
}

type Stream = {
  waitingBytes: number
  takenBytes: number
  /** Looks at which bytes waited, since the last whole step; and since the last byte. */
  looks: number
  stillLooks: number
  cut: () => void
}

const looksMax = 192
/** Looks, of half a second, after which a stream stands still. */
const stillMin = 6

/**
 * Only time in which bytes wait for the buyer counts, so that a stream may be as slow as its upstream
 * is. It looks from time to time: a clock that is set must cut nobody, and a chunk costs nothing.
 */
export function createPaces(wanted: Partial<PaceMin> = {}): Paces {
  const min = { ...paceMin, ...wanted }
  const streams = new Set<Stream>()
  let timer: ReturnType<typeof setInterval> | undefined

  const look = () => {
    const still: Stream[] = []
    for (const stream of streams) {
      if (stream.waitingBytes === 0) continue
      stream.looks++
      stream.stillLooks++
      if (stream.looks >= looksMax) stream.cut()
      else if (stream.stillLooks >= stillMin) still.push(stream)
    }
    if (still.length <= min.stalledMax) return
    still.sort((left, right) => right.stillLooks - left.stillLooks)
    for (const stream of still.slice(0, still.length - min.stalledMax)) stream.cut()
  }
  return {
    watch(onSlow) {
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
      const stream: Stream = { waitingBytes: 0, takenBytes: 0, looks: 0, stillLooks: 0, cut }
      streams.add(stream)
      timer ??= setInterval(look, min.stepMs / looksMax)
      return {
        put(bytes) {
          stream.waitingBytes = bytes
        },
        taken() {
          stream.takenBytes += stream.waitingBytes
          stream.waitingBytes = 0
          stream.stillLooks = 0
          if (stream.takenBytes < min.stepBytes) return
          stream.takenBytes = 0
          stream.looks = 0
        },
        stop,
      }
    },
  }
}
