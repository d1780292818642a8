/** Collects the memory of streams that were cut. */
export type Reclaim = {
  /** Call it for every such stream. */
  after(): void
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
export function createReclaim(collect: () => number, waitMs = delayMs): Reclaim {
  let timer: ReturnType<typeof setTimeout> | undefined
  let restMs = 0
  return {
    after() {
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
