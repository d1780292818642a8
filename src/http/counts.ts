export type Counts = ReturnType<typeof createCounts>

/**
 * A number for each key, such as the bytes of each client, and their sum. Keys at 0 are not kept.
 */
export function createCounts() {
  const byKey = new Map<string, number>()
  let total = 0
  return {
    total: () => total,
    of: (key: string) => byKey.get(key) ?? 0,
    add(key: string, change: number): void {
      total += change
      const sum = (byKey.get(key) ?? 0) + change
      if (sum === 0) byKey.delete(key)
      else byKey.set(key, sum)
    },
  }
}
