/** Reads with pauses until a value is the last one, or the time is over. Returns what it read last. */
export async function poll<T>(
  { now, waitMs, pauseMs = 100 }: { now: () => number; waitMs: number; pauseMs?: number },
  read: () => Promise<T>,
  isLast: (value: T) => boolean = Boolean,
): Promise<T> {
  const until = now() + waitMs
  for (;;) {
    const value = await read()
    if (isLast(value) || now() >= until) return value
    await Bun.sleep(pauseMs)
  }
}
