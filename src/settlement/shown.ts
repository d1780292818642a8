import { moneyKey, type Transfer } from '../protocol/Transfer'
import type { Evidence } from './store'

/**
 * Credentials that came while we could not settle, with their times. An external settlement after
 * that time was unspent when its buyer came. Kept in memory only: another instance does not know
 * them.
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
      // Keep the first time: the credential was unspent then, or no later settlement is found.
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
