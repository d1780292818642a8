import type { KeyScope } from '../../db/Payment'
import type { Money } from '../protocol/Transfer'
import type { Settlement } from '../settlement/settlement'

/** The claims of one request while it pays: its money, and what is released with it. */
export type RequestClaim = {
  /** Adds what ends with the claim. `free` is called at once if the claim has ended. */
  add(free: () => void): void
  /** Releases everything, once, in the order in which it was added. */
  release(): void
}

/** Creates an empty claim. */
export function createClaim(): RequestClaim {
  let frees: (() => void)[] | undefined = []
  return {
    add(free) {
      if (frees === undefined) free()
      else frees.push(free)
    },
    release() {
      const all = frees ?? []
      frees = undefined
      for (const free of all) free()
    },
  }
}

/** Claims money for one request of any product. Undefined while another request has claimed it. */
export function claimMoney(
  settlement: Pick<Settlement, 'claim'>,
  money: Money,
): RequestClaim | undefined {
  const moneyClaim = settlement.claim(money)
  if (moneyClaim === undefined) return undefined
  const claim = createClaim()
  claim.add(moneyClaim.release)
  return claim
}

/** The scope of a buyer's own key, as a key for maps. No part of it contains a line feed. */
export function scopeKey({ merchant, route, payer, key }: KeyScope): string {
  return `${merchant}\n${route}\n${payer}\n${key}`
}
