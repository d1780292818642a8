import { moneyKey, type Transfer } from '../protocol/Transfer'
import type { Evidence } from './store'

/**
 * Credentials that were shown to us while we could not settle, and when. Only a memory: what somebody
 * else settles after that was unspent when its buyer came. Another instance that answers for the same
 * credentials does not know it.
 */
export type Shown = {
  note(transfer: Transfer, evidence: Evidence): void
  find(transfer: Transfer): Evidence | undefined
}

const shownMax = 10_000

export function createShown(max = shownMax): Shown {
  const seen = new Map<string, Evidence>()
  return {
    note(transfer, evidence) {
      const key = keyOf(transfer)
      // The first time counts: it was unspent then, or nothing will be found.
      if (seen.has(key)) return
      const [oldest] = seen.keys()
      if (seen.size >= max && oldest !== undefined) seen.delete(oldest)
      seen.set(key, evidence)
    },
    find: (transfer) => seen.get(keyOf(transfer)),
  }
}

function keyOf(transfer: Transfer): string {
  return `${moneyKey(transfer)} ${transfer.payee} ${transfer.amountAtomic}`.toLowerCase()
}
