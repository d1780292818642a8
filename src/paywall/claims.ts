import type { KeyScope } from '../../db/Ledger'
import type { Money } from '../protocol/Transfer'
import type { Settlement } from '../settlement/settlement'

/** What one request holds in memory while it pays: its money, and what is given back with it. */
export type RequestClaim = {
  /** `free` is called when the claim ends; at once if it has ended. */
  add(free: () => void): void
  /** Gives back everything, once, in the order in which it was added. */
  release(): void
}

/** Holds nothing yet. */
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

/** Takes money for one request, of whatever product. Undefined while another request holds it. */
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

/** Where a buyer's own key counts, as a key for maps. No part of it contains a line feed. */
export function scopeKey({ merchant, route, payer, key }: KeyScope): string {
  return `${merchant}\n${route}\n${payer}\n${key}`
}
