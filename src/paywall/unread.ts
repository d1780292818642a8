import type { Payment } from '../../db/Payment'
import { type Money, moneyKey } from '../protocol/Transfer'
import { createClaim } from './claims'
import type { Checkout } from './Product'

/**
 * With a database of several gateways a read takes time. So money is looked up while a node simulates its
 * transfer. What is known is continued as if it had been looked up before.
 */

/** Reads whether a payment has the money; each call returns the same promise. */
export type FindKnown = () => Promise<Payment | undefined>

/** Hashes that each of the two generations keeps. */
const keptMax = 32_768

/**
 * Remembers money that was presented, and says whether it was before: a credential that is known asks a node
 * once at most. Keeps hashes of the last 32,768 at least, and two moneys may have one.
 */
export function createSeen(): (money: Money) => boolean {
  let recent = new Set<number>()
  let older = new Set<number>()
  return (money) => {
    const hash = Bun.hash.xxHash32(moneyKey(money))
    const isSeen = recent.has(hash) || older.has(hash)
    if (recent.size >= keptMax) {
      older = recent
      recent = new Set()
    }
    recent.add(hash)
    return isSeen
  }
}

/** Runs `pay`. When that fails, and the money is known, returns its payment: nothing was written or sent. */
export async function payUnread<R, T>(
  checkout: Checkout<R>,
  find: FindKnown,
  pay: (attempt: Checkout<R>, findKnown: FindKnown) => Promise<T>,
): Promise<{ outcome: T } | { known: Payment }> {
  let found: Promise<Payment | undefined> | undefined
  const findKnown = () => {
    found ??= find()
    return found
  }
  // What is reserved for a new payment is released before a known one reserves it.
  const claim = createClaim()
  checkout.claim.add(claim.release)
  try {
    return { outcome: await pay({ ...checkout, claim }, findKnown) }
  } catch (error) {
    const known = await findKnown()
    if (known === undefined) throw error
    claim.release()
    return { known }
  }
}
