import type { AdminLedger, Pause } from '../../../db/AdminLedger'
import type { Pending } from '../../../db/Ledger'
import type { Order } from '../../../db/Order'
import type { AssetRow } from '../../../db/SalesLedger'
import type { Recent } from '../../books/recent'
import type { Merchant } from '../../config/Config'
import type { Details } from '../../settlement/availability'

/** How an action ended, as a sentence for the operator. */
export type Done = { ok: boolean; text: string }

/** What the pages for operators show and do. Only `now` in each is of this moment. */
export type Sources = {
  networks(): readonly Details[]
  merchants(): readonly MerchantState[]
  /** Upstreams whose circuit is open, by their origin. */
  openCircuits(): readonly string[]
  pending(): Promise<Pending>
  /** Orders that wait for the operator; undefined where there is no stock desk. */
  heldOrders(): Promise<readonly Order[]> | undefined
  /** Networks whose budget for sponsoring is spent. */
  spentBudgets(): Promise<readonly { network: string; reason: string }[]>
  /** The file of the ledger when it cannot be written. */
  storageFault(): string | undefined
  recent: Recent
  /** Writes the counts of requests that are only in memory. */
  flushRequests(): Promise<void>
  /** Path of the file with the configuration; undefined where there is none, as in the demo. */
  file: string | undefined
  assets(): Promise<readonly AssetRow[]>
  ledger: AdminLedger
  actions: Actions
  /** Unix ms. */
  now(): number
}

export type MerchantState = {
  merchant: Merchant
  health: 'available' | 'partly' | 'unavailable' | 'out-of-service'
  /** How fast the newest paid requests since the start were answered. */
  times: { medianMs: number; p95Ms: number; answers: number } | undefined
}

/** What an operator may do. None of them rejects for a reason that an operator can mend. */
export type Actions = {
  /** Stops sales, or lets them go on. */
  pause(of: Pick<Pause, 'kind' | 'name'>, isPause: boolean): Promise<Done>
  /** Lets the desk try a held order again. */
  retry(order: string): Promise<Done>
  /** Reads the file again. Undefined where this process has none, as the next one. */
  reload: (() => Promise<Done>) | undefined
  /** Copies the database. */
  backUp: (() => Promise<Done>) | undefined
}
