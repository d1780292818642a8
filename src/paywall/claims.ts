import type { KeyScope } from '../../db/Payment'
import { type Money, moneyKey } from '../protocol/Transfer'

/** The money that requests of this process have claimed, by its key. */
export type Claims = Map<string, RequestClaim>

export type RequestClaim = ReturnType<typeof createClaim>

/** The claim of one request while it pays: its money, and what is released with it. */
export function createClaim(waiting?: object) {
  let frees: (() => void)[] | undefined = []
  return {
    /** The product whose other requests wait for the release; undefined where they are refused. */
    waiting,
    /** Adds what ends with the claim. `free` is called at once if the claim has ended. */
    add(free: () => void): void {
      if (frees === undefined) free()
      else frees.push(free)
    },
    /** Releases everything, once, in the order in which it was added. */
    release(): void {
      const all = frees ?? []
      frees = undefined
      for (const free of all) free()
    },
  }
}

/** Claims money for one request of any product. Undefined while another request has claimed it. */
export function claimMoney(
  claims: Claims,
  money: Money,
  waiting?: object,
): RequestClaim | undefined {
  const key = moneyKey(money)
  if (claims.has(key)) return undefined
  const claim = createClaim(waiting)
  claims.set(key, claim)
  claim.add(() => claims.delete(key))
  return claim
}

/** The scope of a buyer's own key, as a key for maps. No part of it contains a line feed. */
export function scopeKey({ merchant, route, payer, key }: KeyScope): string {
  return `${merchant}\n${route}\n${payer}\n${key}`
}
