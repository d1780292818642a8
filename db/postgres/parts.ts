import type { ChangeListener } from '../Ledger'
import type { Commits } from './commits'
import type { Reader } from './reader'

/** What every part of the ledger is made of. */
export type Parts = {
  commits: Commits
  reader: Reader
  /** Tells the listeners of changes that this process has made; commits call it themselves. */
  changes: ChangeListener
  /** Id of this gateway, a UUID: the holder of lanes, and who delivers. */
  gateway: string
}

/** The lock under which all that a payer has signed and not paid is summed. */
export function payerLock(payer: string): string {
  return `payer:${payer.toLowerCase()}`
}
