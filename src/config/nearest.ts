/**
 * The candidate with the least distance to the word, if a typing error or another ending explains
 * it: `server` is near `service`.
 */
export function nearest(word: string, candidates: readonly string[]): string | undefined {
  const small = word.toLowerCase()
  const limit = Math.max(1, Math.floor(word.length / 3))
  const start = small.slice(0, Math.max(4, Math.ceil(small.length / 2)))
  return candidates
    .map((candidate) => ({ candidate, steps: distance(small, candidate) }))
    .filter(({ candidate, steps }) => steps <= limit || candidate.startsWith(start))
    .sort((a, b) => a.steps - b.steps)[0]?.candidate
}

/** Levenshtein distance. */
function distance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, i) => i)
  for (let i = 1; i <= a.length; i++) {
    const next = [i]
    for (let j = 1; j <= b.length; j++) {
      const swap = (row[j - 1] ?? 0) + (a[i - 1] === b[j - 1] ? 0 : 1)
      next.push(Math.min(swap, (row[j] ?? 0) + 1, (next[j - 1] ?? 0) + 1))
    }
    row = next
  }
  return row[b.length] ?? 0
}
