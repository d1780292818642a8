/*
 * Generated cases. The suite runs a part of them, always the same. `SAMPLES=all` (`bun run
 * soak:samples`) runs all, and properties by another seed each time.
 */

const isAll = process.env.SAMPLES === 'all'
/** Of so many cases of a generator the suite runs one. */
const generatedShare = 20
/** Of so many cases of a list. */
const listedShare = 10

/** How many of the cases of a generator run. */
export function countOf(full: number): number {
  return isAll ? full : Math.ceil(full / generatedShare)
}

/** Parameters of a property for fast-check, which names the seed when it fails. */
export function runs(full: number): { numRuns: number; seed?: number } {
  return { numRuns: countOf(full), ...(isAll ? {} : { seed: full }) }
}

/** The cases of a list that run, evenly spread over it. */
export function some<T>(all: readonly T[]): readonly T[] {
  return isAll ? all : all.filter((_, index) => index % listedShare === 0)
}
