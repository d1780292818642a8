const everyMs = 1_000

/** Reads again once a second what other gateways change. Returns what ends it. */
export function refresh(load: () => Promise<void>): () => void {
  let isLoading = false
  const timer = setInterval(() => {
    if (isLoading) return
    isLoading = true
    // While the database is away, what was read last counts.
    load()
      .catch(() => undefined)
      .finally(() => {
        isLoading = false
      })
  }, everyMs)
  timer.unref()
  return () => clearInterval(timer)
}
