import type { Address, Hex } from 'viem'
import type * as Network from '../src/protocol/Network'
import type { AdminLedger } from './admin'
import type { AuthorizationLedger, CeilingRefusal } from './authorizations'
import type { Channel, Reservation } from './Channel'
import type { ChannelRows } from './channels'
import type { EntitlementLedger, NewEntitlement } from './Entitlement'
import type { GrantLedger, NewGrant } from './GrantLedger'
import type { LaneLedger } from './LaneLedger'
import type { NewOrder, OrderLedger, OrderQuota, OrderRide } from './orders'
import type { Payment } from './Payment'
import type { JobReads, PaymentReads, TransactionReads } from './payment-reads'
import type { RefundLedger } from './Refund'
import type { SalesLedger } from './sales'
import type { GasProduct, JobRow, PaymentRow, TransactionRow } from './schema'
import type { WebhookLedger } from './webhooks'

/**
 * All persistent state, behind one interface. Reads and commits of rows return promises; `fault`,
 * `onChange`, `flush`, the totals of `gas` and `failures.fullAt` are synchronous. Each commit is
 * one database transaction, and is on the disk when it resolves unless its comment says otherwise.
 * Nothing waits inside a transaction: rows of a product, for a payment or a job, are passed as
 * data. Amounts are atomic, times unix ms, gas in wei.
 */
export type Ledger = Readonly<{
  payments: PaymentReads
  transactions: TransactionReads
  jobs: JobReads
  /** The writes of settlement. */
  settling: SettlingCommits
  deliveries: DeliveryCommits
  gas: GasTotals
  failures: FailureLedger
  answers: AnswerLedger
  authorizations: AuthorizationLedger
  channels: ChannelLedger
  offers: OfferLedger
  orders: OrderLedger
  grants: GrantLedger
  entitlements: EntitlementLedger
  refunds: RefundLedger
  webhooks: WebhookLedger
  sales: SalesLedger
  admin: AdminLedger
  lanes: LaneLedger
  /** Code of the current storage fault, e.g. `SQLITE_FULL`; undefined while it can be written. */
  fault(): string | undefined
  /** Resolves when the storage can be written; rejects when the signal fires. */
  writable(signal: AbortSignal): Promise<void>
  /**
   * Notifies of each changed payment and job, by id, after the commit. May notify without a change.
   */
  onChange(listener: ChangeListener): void
  /** Commits the changes that wait to share a commit. */
  flush(): void
}>

export type ChangeListener = {
  /** The state of a payment has changed. */
  payment(id: string): void
  /** The state or the newest transaction of a job has changed. */
  job(id: string): void
  /** Another process may have changed any payment or job: a listener that waits reads again. */
  anything?(): void
}

/** Passes changes on to the listeners of a ledger. */
export function createChanges() {
  const listeners: ChangeListener[] = []
  return {
    listen: (listener: ChangeListener) => void listeners.push(listener),
    payment(id: string) {
      for (const each of listeners) each.payment(id)
    },
    job(id: string) {
      for (const each of listeners) each.job(id)
    },
    anything() {
      for (const each of listeners) each.anything?.()
    },
  }
}

/** The Transfer log that pays. */
export type Assignment = { transaction: Hex; logIndex: number; blockNumber: bigint }

/** Rows that a product writes in the transaction that inserts its payment. */
export type Rows =
  | OrderRows
  /** The payment settles the authorization of its id, which goes from `metered` to `sent`. */
  | { settles: 'authorization' }
  /** What the payer may have at a route once the payment is confirmed. */
  | { entitles: NewEntitlement }

export type OrderRows = {
  order: NewOrder
  /** Counted in that transaction, because only there the order is certainly the payer's own. */
  quota: OrderQuota | undefined
}

/** A payment whose row is not written. */
export type NewPayment = {
  row: PaymentRow
  rows?: Rows | undefined
  /**
   * The most that the payer's open payments and ceilings of the asset may sum to with this payment,
   * atomic. A ledger that one process has alone needs no such check: that process does it.
   */
  fundsAtomic?: bigint | undefined
}

/** Rows of a product that are written with a job; the job is not sent without them. */
export type JobRider =
  /**
   * The order must be able to make this change. `confirmed`: only while that payment is confirmed;
   * `withoutEffect`: only while each of these jobs is `failed` or `replaced`.
   */
  | { kind: 'order'; ride: OrderRide; confirmed?: string; withoutEffect?: readonly string[] }
  | { kind: 'grant'; grant: NewGrant }
  /** The attempt after `attempts` of a refund, only while its payment is confirmed. */
  | { kind: 'repay'; paymentId: string; attempts: number }
  /** The refund of a channel, which is reserved for it as of `ChannelLedger.reserve`. */
  | ({ kind: 'reserve' } & Reservation)

/** Why the rows of a product were not written. Then the whole commit was rolled back. */
export type RowsRefusal =
  | 'order-quota'
  /** Too many orders of all payers are under way or were refunded. */
  | 'refund-share'
  | 'order-changed'
  | 'payment-not-confirmed'
  | 'job-may-have-effect'
  | 'grant-exists'
  | 'grants-spent'
  | 'grants-signed-only'
  /** The refund is paid, another attempt is under way, or its payment was delivered after all. */
  | 'refund-changed'
  /** The channel is reserved, or was charged, or has no such balance. */
  | 'channel-changed'
  /** Another authorization has the money of the payment, or its own is not `metered`. */
  | 'money-authorized'
  | CeilingRefusal

export type Launched =
  | { kind: 'stored'; payments: readonly Payment[] }
  /**
   * The money of these payments was written before, by the ids that they were to have. Nothing was
   * written.
   */
  | { kind: 'known'; payments: ReadonlyMap<string, Payment> }
  /** These payments, or their rows, were refused. Nothing was written. */
  | { kind: 'refused'; ids: readonly string[]; reason: RowsRefusal }

/** A transaction with its payments: new ones, and those that are sent again. */
export type Launch = {
  transaction: TransactionRow
  fresh: readonly NewPayment[]
  again: readonly Payment[]
}

/** A receipt that ends an account nonce. */
export type Inclusion = {
  included: TransactionRow
  blockNumber: bigint
  success: boolean
  /** Cost of the transaction, with the native coin that a job sent. Wei. */
  spentWei: bigint
  /** JSON of the receipt, kept with a job. */
  receipt: string
  /** Hashes of all transactions at this nonce. */
  hashes: readonly Hex[]
  job: string | undefined
  at: number
}

/** A payment in an included transaction. */
export type IncludedPayment = {
  id: string
  /** Indexes of the Transfer logs that are of exactly this money. */
  logs: readonly number[]
  /** Its first delivery starts in the same commit. */
  startsDelivery: boolean
  /** The payment as it was written, so that a database on another host does not send it back. */
  payment?: Payment
}

/**
 * The writes of settlement. Every change of a state is a compare-and-swap: a payment in another
 * state stays as it is.
 */
export type SettlingCommits = {
  /**
   * Writes a signed transaction with its payments: new ones, and those (by id, `reverted`) that are
   * sent again. UNIQUE on the money decides every race. Throws when one that is sent again is in
   * another state. Of several transactions of one account all are written, or none.
   */
  launch(...inputs: Launch[]): Promise<Launched>
  /** The same for a job. Undefined: written. */
  launchJob(input: {
    transaction: TransactionRow
    job: JobRow
    rider?: JobRider | undefined
  }): Promise<RowsRefusal | undefined>
  /** Another transaction at the same nonce, with the same payments or the same job. */
  replace(input: {
    transaction: TransactionRow
    /** Hashes of the transactions that had the nonce before. */
    hashes: readonly Hex[]
    payments: readonly string[]
    job: string | undefined
  }): Promise<void>
  /** The chain has a transaction that is not ours at the nonce: the payments are `reverted`. */
  giveUp(input: {
    hashes: readonly Hex[]
    payments: readonly string[]
    job: string | undefined
    at: number
  }): Promise<void>
  /**
   * Records the end of an account nonce. Assigns one log to each payment, in their order. Resolves
   * with the confirmed payments, undefined for each that is `reverted`. Shares a commit with
   * others. A power loss may undo it for up to 100 ms unless a delivery starts in it.
   */
  record(
    inclusion: Inclusion,
    payments: readonly IncludedPayment[],
    options?: {
      /** Counts what it cost as wasted unless the first payment is confirmed. */ isCostly: boolean
    },
  ): Promise<readonly (Payment | undefined)[]>
  /** Confirms one payment with this log. Throws when the log pays for another one. */
  confirm(id: string, assignment: Assignment, at: number): Promise<void>
  /** Stores a payment that an external transaction settled before it arrived. */
  storeExternal(input: NewPayment): Promise<'stored' | 'known' | { refused: RowsRefusal }>
  /** `isUsed`: the chain has its nonce as used, by something else. */
  expire(id: string, isUsed: boolean): Promise<void>
  /** Reverts only a payment whose current transaction is one of these. */
  revert(id: string, hashes: readonly Hex[]): Promise<void>
  /**
   * Marks replaced transactions of an open job as sent, because any may be included. This covers
   * those that were abandoned for a sibling that a reorganisation removed. Resolves with them,
   * the oldest first.
   */
  resendJob(id: string): Promise<readonly TransactionRow[]>
  /** A reorganisation removed the transaction: it and its payments are open again. */
  reopen(
    network: Network.Id,
    hash: Hex,
  ): Promise<{ payments: readonly string[]; job: string | undefined }>
}

export type ChannelLedger = ChannelRows & {
  /**
   * Reserves a voucher: charged is `baseAtomic`, nothing else is reserved, the voucher is within the
   * balance, and more than was claimed without a withdrawal, or exactly `baseAtomic` for a refund.
   * Else the channel as it is. Survives the end of the process at once, a power loss within 100 ms.
   */
  reserve(reservation: Reservation): Promise<'reserved' | Channel | undefined>
  /**
   * Charges the reservation of a payment, which is confirmed and being delivered: charged grows by its
   * amount; its rows and events are written. Undefined when the reservation is gone, or does not cover
   * the amount: then nothing is written.
   */
  charge(payment: NewPayment): Promise<Payment | undefined>
  /** Ends a reservation. False when another one, or none, is there. Survives as `reserve` does. */
  release(id: Hex, reservationId: string): Promise<boolean>
}

/** The delivery state of payments. Changes at the same time share a commit. */
export type DeliveryCommits = {
  /**
   * Writes `delivering` and counts an attempt. Undefined when the payment may not be delivered or has a
   * refund, or when its count is not `attempts`: another process has used one since the caller's read.
   */
  begin(id: string, attempts?: number): Promise<Payment | undefined>
  /** False when no delivery was started. A power loss may undo it for up to 100 ms. */
  deliver(
    id: string,
    result: { upstreamStatus: number; truncated: boolean },
    at: number,
  ): Promise<boolean>
  /** False when no delivery was started. */
  fail(
    id: string,
    result: { upstreamStatus: number | undefined; redeemTokenHash: string; redeemUntil: number },
    at: number,
  ): Promise<boolean>
  /** `none` to `delivered` in one commit: true for exactly one caller ever. */
  handOver(id: string, at: number): Promise<boolean>
  /** An answer of any status was sent for this payment. */
  markAnswered(id: string): Promise<void>
}

/** Cost of transactions by UTC day, from memory, because every 402 reads it. Wei. */
export type GasTotals = {
  spentOn(network: Network.Id, product: GasProduct, at: number): bigint
  /** The part that failed payments of payers with code cost. */
  wastedOn(network: Network.Id, product: GasProduct, at: number): bigint
}

/**
 * Failures of payers that cost us gas, counted by all processes over one database. A bucket is full again
 * after its failures have expired; its key is an address or a code.
 */
export type FailureLedger = {
  /** When the bucket is full again, unix ms; zero when it is full. From memory, up to a second old. */
  fullAt(key: string): number
  /**
   * Adds a failure to each bucket, which is then full again `ms` later. A power loss may undo the
   * failures of the last 100 ms. `windowMs`: the time in which an empty bucket becomes full.
   */
  add(failures: readonly { key: string; ms: number }[], windowMs: number): Promise<void>
}

/**
 * How far the clocks of two gateways may differ, ms: each is ready up to five seconds from that of the
 * database. A gateway that is behind takes a full bucket for one that is fuller than full.
 */
export const apartMs = 10_000

/** Counts failures in the memory of one process. */
export const ownFailures: FailureLedger = { fullAt: () => 0, add: () => Promise.resolve() }

/** An answer as it was delivered. `headers`: JSON of the pairs. Times are unix ms. */
export type StoredAnswer = {
  status: number
  headers: string
  body: Uint8Array
  createdAt: number
  expiresAt: number
}

/** Size of the stored answers of one owner: headers, bodies, and `rowBytes` for each answer. */
export type AnswerUsage = { owner: string; bytes: number }

export type AnswerLedger = {
  find(paymentId: string): Promise<StoredAnswer | undefined>
  /** Stores an answer, unless the payment has one. */
  store(paymentId: string, answer: StoredAnswer): Promise<void>
  /** Deletes expired answers; resolves with the time (unix ms) at which the next one expires. */
  sweep(now: number): Promise<number | undefined>
  usage(rowBytes: number): Promise<readonly AnswerUsage[]>
}

/** A merchant of the last configuration; `json` has no secrets. */
export type MerchantRow = { slug: string; title: string; hash: string; json: string }

export type RetiredOffer = {
  merchant: string
  route: string
  network: Network.Id
  asset: Address
  payTo: Address
  amountAtomic: bigint
  /** Unix ms. */
  retiredAt: number
}

export type OfferLedger = {
  merchants(): Promise<readonly MerchantRow[]>
  /** Offers of a configuration that its successor does not make. */
  retired(): Promise<readonly RetiredOffer[]>
  /**
   * Applies a configuration: stores its merchants, and the offers that end with it. Deletes offers
   * that ended before `keptFrom` (unix ms).
   */
  replace(input: {
    merchants: readonly MerchantRow[]
    ended: readonly RetiredOffer[]
    keptFrom: number
    now: number
  }): Promise<void>
  /** Calls back when another process may have called `replace`. */
  onReplace(listener: () => void): void
}
