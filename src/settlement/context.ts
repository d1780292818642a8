import type { Address, Hex } from 'viem'
import type { Group } from '../../db/group'
import type { JobRow, JobStatements } from '../../db/jobs'
import type { Db } from '../../db/open'
import type { Recent } from '../../db/recent'
import type { TransactionRow } from '../../db/schema'
import type { Client } from '../chain/client'
import type { Clock } from '../chain/clock'
import type { Fees, Head } from '../chain/head'
import type { Heads } from '../chain/heads'
import type { NetworkConfig } from '../config/Config'
import type * as Network from '../protocol/Network'
import type { Transfer } from '../protocol/Transfer'
import type { Bell } from './bell'
import type { Code } from './code'
import type { Failures } from './failures'
import type { Job, JobEnd } from './Job'
import type { Meter, Metrics } from './metrics'
import type { Outcome, Payment, Purpose } from './Payment'
import type { Watch } from './reorg'
import type { Shown } from './shown'
import type { Store } from './store'
import type { Trust } from './trust'
import type { Refusal } from './verify'

export type Log = (event: string, fields?: Readonly<Record<string, unknown>>) => void

/** What settlement keeps of one network while it runs. */
export type ChainState = {
  network: NetworkConfig
  client: Client
  head: Head
  heads: Heads
  /** One per relayer key, in the order of the keys; then the desk's, when it is none of them. */
  relayers: readonly Relayer[]
  health: Health
  /** How far our clock is from the chain's. */
  clock: Clock
  /** Blocks that a node searches at once for logs, where it limits them; by host. */
  logSpans: Map<string, bigint>
  /** Until a node says that it has no eth_sendRawTransactionSync (EIP-7966). */
  hasSync: boolean
  /** True until a node shows that it does not support block overrides. */
  hasOverrides: boolean
  /** Whether a node runs creation code in a call, which reads the code of a payer beside a simulation. */
  readsCode: boolean
  /** Proven payments that wait for a relayer, oldest first. */
  queue: Order[]
  /** Jobs that wait for room in a relayer, oldest first. */
  jobs: WaitingJob[]
  /** Set in the turn of the event loop in which something has come. */
  arrival: ReturnType<typeof setImmediate> | undefined
  /** Runs while a busy relayer lets payments collect. */
  collecting: ReturnType<typeof setTimeout> | undefined
  /** What waits has collected for long enough. */
  isDue: boolean
  /** Payer code by address, asked only when the payer's own key did not sign. */
  codes: Map<string, { hasCode: boolean; until: number }>
  /** Payers that had no code when they were looked at (unix ms until when that is believed). */
  plain: Map<string, number>
  isProbing: boolean
  /** Payers that made a shared transaction fail: they never share one again. */
  unshared: Set<string>
  /** Wei that batches have burnt in vain, by product and day. */
  burnt: Map<string, bigint>
  /** Contracts that may be called to deploy a payer's wallet (ERC-6492), checksummed. */
  factories: ReadonlySet<Address>
  /** Gas that a settling call used lately, by its kind. */
  gasUsed: Map<string, bigint>
  /** Gas of the newest lone payment, by its method. */
  loneGas: Map<string, bigint>
  /** Where transactions were included that a reorganisation can still take away. */
  watch: Watch
}

/** One relayer account on one network: its nonces, and every transaction that is not included yet. */
export type Relayer = {
  address: Address
  privateKey: Uint8Array
  /** Sends the jobs that name it and nothing else. */
  isReserved: boolean
  /** The next free account nonce; undefined until the chain was asked. */
  next: number | undefined
  /** Above every nonce that the database has a transaction under way for. */
  floor: number
  /** The chain's count of our transactions was below what we know to be included. */
  lag: { count: number; expected: number; isSure: boolean } | undefined
  /** Nonces that are being driven. */
  slots: Map<number, Slot>
  /** Those of them that the chain has not included. */
  open: number
  /** A batch is being simulated for this relayer. */
  isPreparing: boolean
  balanceWei: bigint | undefined
  /**
   * Why nothing new is sent. What was sent before is sent again until the reason is gone. Too little
   * balance; refused by the node; a transaction that stays out at the fee cap.
   */
  poor: string | undefined
  refused: string | undefined
  stuck: string | undefined
}

/** A payment that waits for a relayer. */
export type Order = {
  id: string
  requestId: string | undefined
  transfer: Transfer
  /** Undefined: a key signed, and nobody has looked for code. */
  hasCode: boolean | undefined
  /** Code of the payer, as its simulation read it; undefined before, and where it was not read. */
  code: Code | undefined
  /** Fees that the payer's code was simulated with; undefined for others. */
  fees: Fees | undefined
  /**
   * Whether the payer's own key signed, where nobody has asked yet: then only a simulation that passes
   * may be believed. Undefined when it did, or when its code has judged.
   */
  isProven: (() => boolean) | undefined
  purpose: Purpose
  /** Unix ms. */
  receivedAt: number
  /** Set when it is sent again. */
  payment: Payment | undefined
  /** Never shares a transaction. */
  isAlone: boolean
  /** Nobody waits for it any more: it must not wait for another turn. */
  isGivenUp: boolean
  /** Waiting longer gives it no company. */
  isUrgent: boolean
  /** Runs inside the database transaction that inserts the payment. */
  write: ((paymentId: string) => void) | undefined
  /** Equal for payments whose Transfer logs cannot be told apart. */
  logKey: string
  /** The settling call. */
  call: { to: Address; data: Hex }
  done(admission: Admission): void
}

type Unavailable = Extract<JobEnd, { kind: 'unavailable' }>

/** A job that nothing is written of. */
export type WaitingJob = {
  job: Job
  write: ((transaction: Hex) => void) | undefined
  /** Undefined: it is written and under way. */
  done(refusal: Unavailable | undefined): void
  /** Nothing was written because `write` threw. */
  fail(error: unknown): void
}

/** What became of an order when its turn came. */
export type Admission =
  /** Written and on its way. */
  | { kind: 'sent'; payment: Payment; outcome: Promise<Outcome> }
  /** The same money was written before. */
  | { kind: 'known'; payment: Payment }
  /** The chain says that the nonce is used or cancelled. */
  | { kind: 'used' }
  /** No key of the payer signed it; nothing was written. */
  | { kind: 'unsigned' }
  /** Its `write` threw: nothing was written. */
  | { kind: 'thrown'; error: unknown }
  | Refusal

/** A nonce and the transactions that compete for it: the chain includes one. */
export type Slot = {
  nonce: number
  /** Oldest first. */
  transactions: TransactionRow[]
  paymentIds: readonly string[]
  /** Unix seconds after which the payload cannot succeed; undefined when it always can. */
  validBefore: bigint | undefined
  /** Code of the payer of a lone payment; undefined where it was not read. */
  code?: Code | undefined
  /** Then it carries no payment. */
  job: Pick<JobRow, 'id' | 'kind' | 'product' | 'valueWei'> | undefined
}

export type Health = {
  /** The network itself can be used; the relayers have their own reasons. */
  ready: boolean
  /** Safe to show: hosts and addresses, no URLs. */
  reason: string | undefined
  /** Checks so far that reached the node. */
  checks: number
  /** URLs beside the one in use that answered for this chain at the last check. */
  others: number
}

export type SettlementOptions = {
  db: Db
  networks: readonly NetworkConfig[]
  /** Each is a relayer on every network. */
  relayerKeys: readonly Uint8Array[]
  /** The stock desk's account: a relayer of its own when it is none of the relayers; default the first of them. */
  deskKey?: Uint8Array | undefined
  /** Where the desk works; by default on every network. */
  deskNetwork?: Network.Id | undefined
  /** Unix ms. */
  now: () => number
  /** A monotonic clock, ms from any start: it shows that `now` was set. By default `now` itself. */
  monotonic?: (() => number) | undefined
  /** A network is not used while its blocks prove that `now` is off by more; a minute by default. */
  clockSkewMaxMs?: number | undefined
  log: Log
  /** Random bytes for payment ids; by default the system's. */
  random?: (length: number) => Uint8Array
  /** Where it is counted what happens; by default nowhere. */
  meter?: Meter
  /**
   * Factories that may deploy the wallet of a payer in its first payment (ERC-6492); by default none.
   * Whoever pays chooses what one of them is called with, and we pay the gas.
   */
  walletFactories?: readonly Address[]
  /** Transactions that may fail on chain for one payer in ten minutes; 5 by default. */
  payerFailuresMax?: number | undefined
  /**
   * Payments above this (atomic) count only when a second node shows them, where one is configured;
   * undefined: none. Those to the desk always do. By default 10,000,000.
   */
  confirmTwiceAbove?: (() => bigint | undefined) | undefined
  /** Only this service sells for its payouts; by default false. */
  payoutExclusive?: (() => boolean) | undefined
  /** Whether a payee of the facilitator is one of this service's payouts; by default none. */
  isOwnPayee?: ((payee: Address) => boolean) | undefined
  /** Time between two looks at a network's health. */
  checkMs?: number
  /** What a network's block time counts as before its blocks are known; a second by default. */
  blockTimeMs?: number | undefined
  /**
   * How long the nonce of a job must seem used, and its receipt missing, before it counts as
   * used by another transaction; a minute by default.
   */
  jobProofMs?: number | undefined
}

export type Context = {
  db: Db
  store: Store
  jobs: JobStatements
  /** Rings with the id of a job whose state or newest transaction has changed. */
  errandBell: Bell
  /** Rings with the id of a payment whose state has changed. */
  paymentBell: Bell
  recent: Recent
  group: Group
  metrics: Metrics
  failures: Failures
  trust: Trust
  chains: ReadonlyMap<Network.Id, ChainState>
  now: () => number
  log: Log
  jobProofMs: number
  monotonic: () => number
  clockSkewMaxMs: number
  /** Atomic; undefined: one node's word is enough for every payment. */
  confirmTwiceAbove: () => bigint | undefined
  payoutExclusive: () => boolean
  isOwnPayee: (payee: Address) => boolean
  /** When payments that are over were last looked at for what became of them (unix ms), by id. */
  looked: Map<string, number>
  /** Credentials that came while we could not settle. */
  shown: Shown
  /** Payments that are being driven; the promises never reject. */
  running: Map<string, Promise<Outcome>>
  /** Nonces that are being driven; the promises never reject. */
  driving: Set<Promise<unknown>>
  /** Nothing new is begun. */
  isStopping: boolean
  /** Money on its way by payer, so that one balance is not promised twice. */
  inFlight: Map<string, bigint>
  /** Simulations under way: what they read may be older than what is included meanwhile. */
  simulating: Set<Promise<unknown>>
  /** Request ids of payments under way, for the log. */
  requestIds: Map<string, string>
  /** Payments whose caller waits, and whether it still wants the delivery begun with the confirmation. */
  beginning: Map<string, () => boolean>
  /** Those of them for which that was done. */
  begun: Set<string>
  /** Waits for a relayer. The promise never rejects. */
  submit(
    chain: ChainState,
    order: Omit<Order, 'done' | 'logKey' | 'call' | 'isUrgent' | 'isGivenUp' | 'code' | 'fees'>,
  ): Submitted
  /** Gives what waits to the relayers that are free; call whenever one may have become so. */
  pump(chain: ChainState): void
  /** Ends the waiting, not the money: what is unfinished is in the database. */
  signal: AbortSignal
}

/** The chain of a network. Throws for one that is not configured. */
export function chainOf(context: Context, id: Network.Id): ChainState {
  const chain = context.chains.get(id)
  if (!chain) throw new Error(`${id} is not a configured network`)
  return chain
}

export type Submitted = {
  admission: Promise<Admission>
  /**
   * Takes it out of the queue; false when its turn has come already: then the admission follows as
   * soon as that is over.
   */
  cancel(): boolean
}

/** What a log line tells of one payment. */
export function about({ requestIds }: Context, id: string) {
  const requestId = requestIds.get(id)
  return requestId === undefined ? { payment: id } : { payment: id, requestId }
}

/** Key of what is in flight of one payer. */
export function payerKey({ network, asset, payer }: Payment['transfer']): string {
  return `${network}/${asset}/${payer}`
}

/** Resolves after the time, or at once when the signal fires. Never rejects. */
export function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve()
    const done = () => {
      clearTimeout(timer)
      signal.removeEventListener('abort', done)
      resolve()
    }
    const timer = setTimeout(done, ms)
    signal.addEventListener('abort', done)
  })
}

/** The promise's value, or undefined after the time. The promise goes on. */
export function within<T>(promise: Promise<T>, ms: number): Promise<T | undefined> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => resolve(undefined), ms)
    promise.then(
      (value) => {
        clearTimeout(timer)
        resolve(value)
      },
      (error: unknown) => {
        clearTimeout(timer)
        reject(error)
      },
    )
  })
}
