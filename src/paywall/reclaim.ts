/** Collects what streams that were cut leave behind. */
export type Reclaim = {
  /** To be called for every such stream. */
  after(): void
}

/** Until the connection of a stream that was cut has ended, too: it keeps the stream until then. */
const delayMs = 5_000
/** So many times as long as a collection took there is none, so that it never takes a hundredth. */
const restFactor = 100

/**
 * The collector leaves megabytes of every stream for minutes, because the heap itself hardly grows:
 * buyers that stand still and are cut, one after the other, would fill the memory. One collection
 * serves all streams of its time. `collect` returns how many ms it took.
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
      // The end of the process has not to wait for it.
      timer.unref()
    },
  }
}
