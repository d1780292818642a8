/** How fast a buyer must take a stream: so many bytes in so much time. */
export type PaceMin = { stepBytes: number; stepMs: number }

/**
 * 16 KiB a second. The step is larger than what the system buffers of a connection: it reports that
 * there is room only when a good part of that has left.
 */
export const paceMin: PaceMin = { stepBytes: 1536 * 1024, stepMs: 96_000 }

export type Pace = {
  /** Bytes wait for the buyer from now on. */
  put(bytes: number): void
  /** The buyer has room again. */
  taken(): void
  stop(): void
}

const looksMax = 8

/**
 * Calls `onSlow` once when the buyer is slower. Only time in which bytes wait for the buyer counts,
 * so that a stream may be as slow as its upstream is. It looks from time to time: a clock that is
 * set must cut nobody, and a chunk costs nothing.
 */
export function createPace(min: PaceMin, onSlow: () => void): Pace {
  let waitingBytes = 0
  let takenBytes = 0
  let looks = 0
  const timer = setInterval(() => {
    if (waitingBytes > 0) looks++
    if (looks < looksMax) return
    clearInterval(timer)
    onSlow()
  }, min.stepMs / looksMax)
  return {
    put(bytes) {
      waitingBytes = bytes
    },
    taken() {
      takenBytes += waitingBytes
      waitingBytes = 0
      if (takenBytes < min.stepBytes) return
      takenBytes = 0
      looks = 0
    },
    stop: () => clearInterval(timer),
  }
}
