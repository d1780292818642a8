/** Runs work that no request should wait for, between requests, after the first requests. */
export async function whenIdle(
  steps: readonly (() => unknown)[],
  isOver: () => boolean,
): Promise<void> {
  await Bun.sleep(200)
  for (const step of steps) {
    await new Promise((resolve) => setImmediate(resolve))
    if (isOver()) return
    try {
      await step()
    } catch {
      // The request that needs the result gets the same fault and reports it.
    }
  }
}
