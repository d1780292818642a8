/** Does what no request should have to wait for, between requests, after the first ones. */
export async function whenIdle(
  steps: readonly (() => unknown)[],
  isOver: () => boolean,
): Promise<void> {
  await Bun.sleep(200)
  for (const step of steps) {
    await new Promise((resolve) => setImmediate(resolve))
    if (isOver()) return
    try {
      step()
    } catch {
      // Whoever needs it meets the same fault, and can say for what.
    }
  }
}
