import type { AdminLedger, Pause } from '../../../db/admin'
import type { ChannelLedger } from '../../../db/Ledger'
import type { Order } from '../../../db/Order'
import type { Payment } from '../../../db/Payment'
import type { Pending } from '../../../db/payment-reads'
import type { RefundLedger } from '../../../db/Refund'
import type { AssetRow } from '../../../db/sales'
import type { WebhookLedger } from '../../../db/webhooks'
import type { Ranges } from '../../books/ranges'
import type { Recent } from '../../books/read'
import type { Config, Merchant } from '../../config/Config'
import type * as Network from '../../protocol/Network'
import type { Refunds } from '../../refunds/refunds'
import type { Details } from '../../settlement/state/availability'
import type { Html } from '../html'

/** How an action ended, as a sentence for the operator. */
export type Done = { ok: boolean; text: string }

/** The data and the actions of the pages for operators. Only `now` in each is current. */
export type AdminSources = {
  networks(): readonly Details[]
  merchants(): readonly MerchantState[]
  /** Upstreams whose circuit is open, by their origin. */
  openCircuits(): readonly string[]
  /** Routes that sell nothing because the upstream refuses their key. */
  refusedRoutes(): readonly { merchant: string; reason: string }[]
  /** A host that a request named while `base_url` is on this machine. */
  otherHost(): string | undefined
  pending(): Promise<Pending>
  findPayment(id: string): Promise<Payment | undefined>
  refunds: Pick<Refunds, 'account' | 'find' | 'canRefund' | 'waitOf' | 'stuck'> &
    Pick<RefundLedger, 'list'>
  channels: Pick<ChannelLedger, 'find' | 'list' | 'totals' | 'withdrawals'>
  /** The claims of a network; undefined where this process makes none. */
  claimsOf(network: Network.Id): Claims | undefined
  /** Orders that wait for the operator; undefined where there is no stock desk. */
  heldOrders(): Promise<readonly Order[]> | undefined
  /** Networks whose budget for sponsoring is spent. */
  spentBudgets(): Promise<readonly { network: string; reason: string }[]>
  /** The file of the ledger when it cannot be written. */
  storageFault(): string | undefined
  recent: Recent
  /** Reports of any period. */
  ranges: Ranges
  /** Writes the counts of requests that are only in memory. */
  flushRequests(): Promise<void>
  /** Path of the file with the configuration; undefined where there is none, as in the demo. */
  file: string | undefined
  assets(): Promise<readonly AssetRow[]>
  webhooks: Pick<WebhookLedger, 'list' | 'countWaiting'>
  ledger: AdminLedger
  actions: Actions
  /** Unix ms. */
  now(): number
}

/** What a page is made from. */
export type AdminContext = AdminSources & { config: Config }

/** Claims of payment channels. */
type Claims = {
  /** When what is unclaimed is claimed next, unix ms. */
  nextAt: number
  /** Why claims that are due are not made, and since when (unix ms). */
  late: { reason: string; since: number } | undefined
}

export type MerchantState = {
  merchant: Merchant
  health: 'available' | 'partly' | 'unavailable' | 'out-of-service'
  /** How fast the newest paid requests since the start were answered. */
  times: { medianMs: number; p95Ms: number; answers: number } | undefined
}

/** An action that is possible now: how it is confirmed and done. */
export type Action = {
  title: string
  /** Its effect and its limits, as sentences. */
  effect: Html | string
  /** Further fields of its form. */
  fields?: Html
  button: string
  subject: string
  /** The page that shows its effect. */
  back: string
  run(form: { amount?: string; note?: string }): Promise<Done>
}

/** The actions of an operator. None of them rejects for a reason that an operator can mend. */
export type Actions = {
  /** Pauses sales, or resumes them. */
  pause(of: Pick<Pause, 'kind' | 'name'>, isPause: boolean): Promise<Done>
  /** Lets the desk try a held order again. */
  retry(order: string): Promise<Done>
  /** Claims what is unclaimed of the channels of a network. */
  claim(network: Network.Id): Promise<Done>
  /** Requests the refund of a payment. `amount`: a decimal. */
  refund(asked: { paymentId: string; amount: string; note: string | undefined }): Promise<Done>
  /** Sends a refund again that has failed. */
  retryRefund(paymentId: string): Promise<Done>
  /** Sends a message to an endpoint by its id. */
  testWebhook(endpoint: string): Promise<Done>
  /** Makes a message due again. */
  resend(message: string): Promise<Done>
  /** Reads the file again. Undefined in a process without a file. */
  reload: (() => Promise<Done>) | undefined
  /** Copies the database. Undefined where that is not possible. */
  backUp: (() => Promise<Done>) | undefined
}
