import type { Address, Hex } from 'viem'
import type * as Network from '../src/protocol/Network'
import type { Money } from '../src/protocol/Transfer'
import type { AdminLedger } from './AdminLedger'
import type { AnswerLedger } from './AnswerLedger'
import type { AuthorizationLedger, CeilingRefusal } from './AuthorizationLedger'
import type { FailureLedger } from './FailureLedger'
import type { GrantLedger, NewGrant } from './GrantLedger'
import type { LaneLedger } from './LaneLedger'
import type { OfferLedger } from './OfferLedger'
import type { NewOrder, OrderLedger, OrderQuota, OrderRide } from './OrderLedger'
import type { KeyScope, Payment } from './Payment'
import type { SalesLedger } from './SalesLedger'
import type { GasProduct, JobRow, PaymentRow, TransactionRow } from './schema'
import type { WebhookLedger } from './WebhookLedger'

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
  offers: OfferLedger
  orders: OrderLedger
  grants: GrantLedger
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

/** A payer of one asset. */
type PayerOfAsset = Pick<Money, 'network' | 'asset' | 'payer'>

/** When the simulated request arrived: its time (unix ms) and the newest known block. */
export type Arrival = Pick<PaymentRow, 'receivedAt' | 'knownBlock'>

/** The Transfer log that pays. */
export type Assignment = { transaction: Hex; logIndex: number; blockNumber: bigint }

export type PaymentReads = {
  /** The payment of this money; one indexed read. */
  find(money: Money): Promise<Payment | undefined>
  findById(id: string): Promise<Payment | undefined>
  findByRedeemToken(tokenHash: string): Promise<Payment | undefined>
  /** Newest payment of the key that is not expired. */
  findByIdempotencyKey(scope: KeyScope): Promise<Payment | undefined>
  /** Id of the payment that a Transfer log is assigned to. */
  logOwner(network: Network.Id, hash: Hex, logIndex: number): Promise<string | undefined>
  /** Indexes of the logs of a transaction that pay for payments. */
  takenLogs(network: Network.Id, hash: Hex): Promise<ReadonlySet<number>>
  /** Whether a payment of the payer is confirmed. */
  hasPaid(payer: PayerOfAsset): Promise<boolean>
  /** Throws when there is no such payment. */
  arrivalOf(id: string): Promise<Arrival>
  /** Those that are `broadcast` or `reverted`. */
  unfinished(): Promise<readonly Payment[]>
  /** Those that are `broadcast`, by network. */
  countBroadcast(): Promise<ReadonlyMap<Network.Id, number>>
  /** How many are unfinished, and the oldest of them. */
  pending(limit: number): Promise<Pending>
  /** Ids of `broadcast` payments without an open transaction: it was removed, or displaced. */
  orphans(network: Network.Id): Promise<readonly string[]>
  /** Reserved gas of payments of the facilitator since a time (unix ms), by payee. */
  payeeGasSince(at: number): Promise<readonly PayeeGas[]>
  /** The same for one payment; zero for one that is not the facilitator's. */
  payeeGasOf(id: string): Promise<number>
}

export type Pending = {
  count: number
  oldest: readonly (Pick<
    PaymentRow,
    'id' | 'network' | 'merchant' | 'route' | 'amountAtomic' | 'state' | 'createdAt'
  > & { transaction: Hex })[]
}

export type PayeeGas = { network: Network.Id; payee: Address; gas: number }

/** An included transaction; without a relayer it is an external one. */
export type Included = {
  hash: Hex
  blockNumber: number
  relayer: Address | undefined
  /** Account nonce of the relayer. */
  nonce: number
}

/** `job`: the id of the job that it is for. */
export type Unfinished = { transaction: TransactionRow; job: string | undefined }

export type TransactionReads = {
  /** Lower account nonces first, then the older. */
  unfinished(): Promise<readonly Unfinished[]>
  /** The payments that one of these transactions contains. */
  paymentsOf(hashes: readonly Hex[]): Promise<readonly Payment[]>
  /** Whether a transaction contains this payment, or any when none is named. */
  hasPayment(hash: Hex, id?: string): Promise<boolean>
  /** Every transaction that ever contained the payment. */
  ofPayment(
    id: string,
  ): Promise<readonly Pick<TransactionRow, 'hash' | 'state' | 'relayer' | 'nonce'>[]>
  /** Transactions in this block and above it, those of ours and those that paid us. */
  includedFrom(network: Network.Id, block: bigint): Promise<readonly Included[]>
  /** Transactions of a relayer that are recorded as included at account nonces below `to`. */
  includedAt(
    network: Network.Id,
    relayer: Address,
    nonces: { from: number; to: number },
  ): Promise<readonly Included[]>
}

export type JobReads = {
  find(id: string): Promise<JobRow | undefined>
}

/** Rows that a product writes in the transaction that inserts its payment. */
export type Rows =
  | OrderRows
  /** The payment settles the authorization of its id, which goes from `metered` to `sent`. */
  | { settles: 'authorization' }

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
   * atomic. Undefined when one process has the ledger alone, and checks that itself.
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
   * another state.
   */
  launch(input: {
    transaction: TransactionRow
    fresh: readonly NewPayment[]
    again: readonly Payment[]
  }): Promise<Launched>
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

/** The delivery state of payments. Changes at the same time share a commit. */
export type DeliveryCommits = {
  /**
   * Writes `delivering` and counts an attempt. Undefined when the payment may not be delivered, or when
   * its count is not `attempts`: another process has used an attempt since the caller's read.
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
