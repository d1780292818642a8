import { keccak256, stringToBytes } from 'viem'

/** Random choices that a seed repeats. Not for secrets. */
export type Random = {
  /** At least 0, below 1. */
  next(): number
  /** An integer, both ends included. */
  between(least: number, most: number): number
  chance(probability: number): boolean
  /** Throws a RangeError for an empty list. */
  pick<T>(list: readonly T[]): T
  bytes32(): `0x${string}`
  /** A separate generator: other draws do not change its draws. */
  fork(name: string): Random
}

export function createRandom(seed: string): Random {
  let state = Number(BigInt(keccak256(stringToBytes(seed))) & 0xffffffffn)
  let serial = 0
  // mulberry32: https://gist.github.com/tommyettinger/46a874533244883189143505d203312c
  const next = () => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
  return {
    next,
    between: (least, most) => least + Math.floor(next() * (most - least + 1)),
    chance: (probability) => next() < probability,
    pick(list) {
      const index = Math.floor(next() * list.length)
      if (index >= list.length) throw new RangeError('nothing to pick from')
      return list[index] as (typeof list)[number]
    },
    bytes32: () => keccak256(stringToBytes(`${seed} ${serial++}`)),
    fork: (name) => createRandom(`${seed} / ${name}`),
  }
}
