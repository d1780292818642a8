import type { Address, Hex } from 'viem'
import type { JobRider, Ledger, Rows, RowsRefusal } from '../../../db/Ledger'
import type { Payment, Purpose } from '../../../db/Payment'
import type { Arrival } from '../../../db/payment-reads'
import type { JobRow, TransactionRow } from '../../../db/schema'
import type { Client } from '../../chain/client'
import type { Clock } from '../../chain/clock'
import type { Fees, Head } from '../../chain/head'
import type { Heads } from '../../chain/heads'
import type { AccountCode } from '../../chain/multicall'
import type { Receipt } from '../../chain/receipt'
import type { NetworkConfig } from '../../config/Config'
import type { WriteEvent } from '../../log'
import type { TransferMethod } from '../../protocol/Asset'
import * as Crypto from '../../protocol/Crypto'
import type * as Network from '../../protocol/Network'
import type { Transfer } from '../../protocol/Transfer'
import { type Channels, createChannelWatch } from '../channels/state'
import type { PaymentRefusal } from '../read/refusals'
import type { Job, JobEnd } from '../send/Job'
import type { Outcome, Reason, Underway } from '../send/Outcome'
import type { Credit } from '../upto/credit'
import type { Metrics } from './metrics'
import type { Payers, Reservation } from './payers'
import { createTurn, type Events } from './wait'

/** The parts of settlement. Each stage names the parts that it uses. */
export type Context = Readonly<{
  ledger: Ledger
  chains: ReadonlyMap<Network.Id, ChainState>
  payers: Payers
  /** Signed ceilings of the scheme `upto` that are not settled, by the id of their authorization. */
  ceilings: Map<string, Ceiling>
  credit: Credit
  channels: Channels
  /**
   * When credentials arrived while no network could settle. An external settlement after that time shows
   * that the credential was unspent when it arrived. In memory only, so other instances do not have them.
   */
  unsettled: Map<string, Arrival>
  /** A new id of a payment. */
  createId: () => string
  progress: ReturnType<typeof createProgress>
  policy: Policy
  events: {
    /** Emits the id of a payment whose state has changed. */
    payments: Events
    /** Emits the id of a job whose state or newest transaction has changed. */
    jobs: Events
  }
  metrics: Metrics
  /** Unix ms. */
  now: () => number
  /** A clock in ms that never decreases; it shows that `now` was set. */
  monotonic: () => number
  log: WriteEvent
}>

/** Work that is running. The promises never reject. */
export function createProgress(signal: AbortSignal) {
  return {
    /** Payments that are being driven, by id. */
    running: new Map<string, Promise<Outcome>>(),
    /** Authorizations whose charge is being settled, by id. */
    charging: new Map<string, Promise<Outcome>>(),
    /** Slots that are being driven. */
    driving: new Set<Promise<unknown>>(),
    /**
     * Reads of balances, until what they allow is reserved: they may be older than what is included
     * meanwhile.
     */
    reading: new Set<Promise<unknown>>(),
    /** No new work is accepted. */
    isStopping: false,
    /** Ends the waits. Unfinished payments stay in the database and continue after a restart. */
    signal,
  }
}

/** Settings of the operator, with what holds by default. */
export type Policy = Readonly<{
  /**
   * How long the nonce of a job must be used without a receipt before it counts as used by another
   * transaction; a minute.
   */
  jobProofMs: number
  /** First pause before accepted bytes are sent again; doubles. Two seconds. */
  resendMs: number
  /** A network is not used while its blocks prove that `now` is off by more; a minute. */
  clockSkewMaxMs: number
  /**
   * Atomic amount. Payments above it count only when a second node shows them, where one is
   * configured; undefined: none. Payments to the desk always need it. 10,000,000.
   */
  confirmTwiceAbove: () => bigint | undefined
  /**
   * Longest attempt to settle a charge, ms. The next sweep tries an undecided charge again. 60,000.
   */
  chargeAttemptMs: number
  /** Atomic amount: most signed ceilings of one payer that are not settled. 1,000,000. */
  unsettledMax: () => bigint
  /** Whether an operator has paused the sales on a network: nothing new is taken; none. */
  isPaused: (network: Network.Id) => boolean
  /** Only this service sells for its payouts; false. */
  payoutExclusive: () => boolean
  /** Whether a payee of the facilitator is one of this service's payouts; none. */
  isOwnPayee: (payee: Address) => boolean
}>

/** State of one network in settlement while the process runs. */
export type ChainState = ReturnType<typeof createObserved> & {
  network: NetworkConfig
  client: Client
  head: Head
  heads: Heads
  /** How far our clock is from the chain's. */
  clock: Clock
  /** One per relayer key, in the order of the keys; then the desk's, when it is none of them. */
  relayers: readonly Relayer[]
  /** Contracts that may be called to deploy a payer's wallet (ERC-6492), checksummed. */
  factories: ReadonlySet<Address>
}

/** What is under way on a network, and what was observed of it. `isShared`: other processes may send, too. */
export function createObserved(now: () => number, isShared: boolean) {
  return {
    /** The last health check. */
    health: {
      /** Whether the network itself can be used; relayers have reasons of their own. */
      ready: false,
      /** Why it cannot be used. Names hosts and addresses, no URLs. */
      reason: 'not checked yet' as string | undefined,
      /** Checks so far that reached the node. */
      checks: 0,
      /** Other URLs that answered for this chain at the last check. */
      others: 0,
      /** Logs nothing until this process has looked for its accounts. */
      isQuiet: isShared,
    },
    /** Abilities of the nodes, as far as observed. */
    abilities: {
      /** Blocks that a node searches at once for logs, where it limits them; by host. */
      logSpans: new Map<string, bigint>(),
      /** True until a node reports that it has no eth_sendRawTransactionSync (EIP-7966). */
      hasSync: true,
      /** True until a node shows that it does not support block overrides. */
      hasOverrides: true,
      /**
       * Whether a node runs creation code in a call, which reads a payer's code during a simulation.
       */
      readsCode: true,
      /** Whether the chain has the contracts of the scheme `upto`, at the last look. */
      hasUpto: false,
      /**
       * Methods of the asset by which a deposit into a channel can be paid, the preferred one first. None
       * where the chain had no contract of channels at the last look.
       */
      channelMethods: [] as readonly TransferMethod[],
    },
    /** What waits for a relayer. */
    queue: {
      /** Oldest first. */
      payments: [] as QueuedPayment[],
      /** Those that only one relayer may send, in the order of `enqueueNamed`. */
      named: [] as QueuedPayment[],
      /** Oldest first. */
      jobs: [] as WaitingJob[],
      /** Set while the jobs are being offered to the relayers. */
      dispatching: undefined as Promise<void> | undefined,
      /** The jobs must be offered once more. */
      isJobsDue: false,
      /** Set in the turn of the event loop in which a payment has arrived. */
      arrival: undefined as ReturnType<typeof setImmediate> | undefined,
      /** Runs while payments collect behind a busy relayer. */
      collecting: undefined as ReturnType<typeof setTimeout> | undefined,
      /** Whether the payments have collected for long enough. */
      isDue: false,
      /** Whether the code of waiting payers is being read. */
      isProbing: false,
    },
    /** What was observed of payers. */
    known: {
      /** Payer code by address, read only when the payer's own key did not sign. */
      codes: new Map<string, { code: 'eoa' | 'contract'; until: number }>(),
      /** Payers that had no code when it was read (unix ms until when that counts). */
      eoas: new Map<string, number>(),
      /** Payers that made a shared transaction fail: they never share one again. */
      unshared: new Set<string>(),
    },
    /** What was observed of gas. */
    gas: {
      /** Recent gas of a settling call, by its kind. */
      used: new Map<string, bigint>(),
      /** Gas of the newest lone payment, by its method. */
      lone: new Map<string, bigint>(),
      /** Wei that failed batches cost, by product and day. */
      wasted: new Map<string, bigint>(),
    },
    /**
     * Where transactions were included that a reorganisation can still remove. Only a cache: the database
     * has what must be checked, and missing entries are read again.
     */
    watch: {
      /** One check of the blocks at a time. */
      turn: createTurn(),
      seen: new Map<Hex, WatchedInclusion>(),
      /** Lowest block whose transactions the next check must cover; undefined before the first one. */
      from: undefined as bigint | undefined,
      /** Bytes of external transactions that a reorganisation removed. */
      lostRaw: new Map<Hex, Hex>(),
      /** Checks since the reorganisation, by payment, and the newest block at the second of them. */
      restores: new Map<string, { attempts: number; since: bigint }>(),
    },
    channels: createChannelWatch(now),
    /** Called when a relayer may have become free: the queue then assigns waiting payments. */
    room: () => {},
  }
}

/** An account of ours on one network: its nonces, and every transaction that is not included yet. */
export type Relayer = ReturnType<typeof createRelayer>

export function createRelayer(
  privateKey: Uint8Array,
  { isReserved, isHeld }: { isReserved: boolean; isHeld: boolean },
) {
  return {
    address: Crypto.addressOf(privateKey),
    privateKey,
    /** Whether it sends only the jobs that name it. */
    isReserved,
    /** Whether this process chooses its account nonces. */
    isHeld,
    /**
     * Whether another process gets the account when nothing is open, so that payments use the other
     * accounts.
     */
    isLeaving: false,
    /** The next free account nonce; undefined until the chain was read. */
    next: undefined as number | undefined,
    /** A number above every nonce of an open transaction in the database. */
    floor: 0,
    /** Set while the chain's count of our transactions is below the known included ones. */
    lag: undefined as Lag | undefined,
    /** Nonces that are being written or driven. */
    slots: new Map<number, Slot>(),
    /** Those of them that the chain has not included. */
    open: 0,
    /** Those of the open ones that settle a charge. */
    charges: 0,
    /** Charges that share the next commit. */
    accepted: [] as AcceptedCharge[],
    /** False when a node has refused a transaction because too many of this account wait. */
    mayHaveMany: true,
    /** Those of the open ones, and of the batches that are being simulated, that settle for other servers. */
    facilitating: 0,
    /** Whether a batch is being simulated for this relayer. */
    isPreparing: false,
    /** Payments that name this relayer and are being simulated. */
    preparing: 0,
    /** Covers the time from the choice of an account nonce to the disk. */
    turn: createTurn(),
    balanceWei: undefined as bigint | undefined,
    /**
     * Why nothing new is sent: too little balance, refused by the node, or a transaction that stays
     * out at the fee cap. Earlier transactions are sent again until the reason ends.
     */
    poor: undefined as string | undefined,
    refused: undefined as string | undefined,
    stuck: undefined as string | undefined,
  }
}

/** `from`: the lowest block that a reorganisation could reach when that was first seen. */
type Lag = { count: number; expected: number; isSure: boolean; from: bigint }

/** A nonce of a relayer and the transactions that compete for it: the chain includes one. */
export type Slot = {
  relayer: Relayer
  nonce: number
  /** Oldest first. */
  transactions: TransactionRow[]
  /** The payments that share the transaction; none for a job, and none before they are written. */
  members: readonly Underway[]
  /** Code of the payer of a lone payment or of a job, as it was read before. */
  code: AccountCode
  job: JobRow | undefined
  /** Whether it settles a charge, which only this relayer may send. */
  isCharge: boolean
}

/** What was sent, and what cannot be sent now and is not written. The rest got its verdict. */
export type Written = { sent: readonly QueuedPayment[]; unsent: readonly QueuedPayment[] }

/** A charge that its simulation has accepted, until it is written. */
export type AcceptedCharge = {
  member: QueuedPayment
  /** The newest block at the start of its simulation. */
  knownBlock: bigint
  resolve: (written: Promise<Written>) => void
}

/**
 * Whether the payer's own key signed. `unchecked`: the signer was not recovered; then only a
 * simulation that passes counts. `checked`: the key signed, or the payer's code accepted the
 * signature.
 */
export type Signer = { kind: 'checked' } | { kind: 'unchecked'; isKey: () => boolean }

/** Whether the payer's own key is known not to have signed. Recovers the signer if needed. */
export function isForged(signer: Signer): boolean {
  return signer.kind === 'unchecked' && !signer.isKey()
}

/**
 * What a simulation that passed showed of a payer without code, and when (unix ms). The amounts are
 * only used with what was reserved since: other payments of the payer are subtracted from them.
 */
type Verified = {
  balanceAtomic: bigint
  allowanceAtomic: bigint | undefined
  at: number
}

/** A signed ceiling, in memory. After a restart there is none: what was forwarded before is void. */
export type Ceiling = {
  transfer: Transfer
  /** What its simulation showed of a payer without code. */
  verified: Verified | undefined
  /** Whether it reserves its amount: until a payment reserves the charge. */
  isReserved: boolean
  /** Called when it is released. */
  close: () => void
}

/** A payment as it is asked for. */
export type PaymentRequest = {
  /** Of a charge, that of its authorization; otherwise a new one is made. */
  id?: string
  transfer: Transfer
  purpose: Purpose
  /** Unix ms. */
  receivedAt: number
  /**
   * Whether the payer's own key signed; a function is called when the simulation does not decide.
   * Repeatable, no I/O.
   */
  isKeySigned?: boolean | (() => boolean)
  /** Id of the request, for the log. */
  requestId?: string | undefined
  /**
   * The caller has the claim of this money, and has read since then that no payment has it. Another
   * process may have written one meanwhile, which the commit before the send finds out.
   */
  isUnknown?: boolean
  /**
   * Written in the database transaction that inserts the payment, and not when the money is known.
   * `settle` rejects with RowsRefusedError when they are refused: nothing is written or sent then.
   */
  rows?: Rows | undefined
  /** Of a charge: what the simulation of its ceiling showed. */
  verified?: Verified | undefined
  /** Called after the transaction is sent, so its work adds no delay. Must not throw. */
  onSent?: ((payment: Payment) => void) | undefined
  /**
   * Called when the money has arrived. True starts the delivery in the same commit, which the
   * outcome shows as `deliveryStarted`. Then the caller delivers without `beginDelivery`, or ends
   * the delivery. Undefined: the delivery is not started with the confirmation.
   */
  deliverOnConfirm?: (() => boolean) | undefined
}

/** A request with the id of its payment. */
export type Requested = PaymentRequest & { id: string }

/** A payment that waits for a relayer. */
export type QueuedPayment = {
  request: Requested
  /** As its settling call has it. */
  transfer: Transfer
  /** The assumed code of the payer. */
  code: 'eoa' | 'contract' | 'unknown'
  /** Code of the payer in its simulation; `unknown` before, and where it was not read. */
  simulatedCode: AccountCode
  signer: Signer
  /** Fees that the payer's code was simulated with; undefined for others. */
  fees: Fees | undefined
  /** The stored payment, when it is sent again. */
  payment: Payment | undefined
  /** Whether it must not share a transaction. */
  isAlone: boolean
  /** Whether a write has decided it: then no other write may send it. */
  isDecided: boolean
  /** Whether the caller has left: then it does not wait for another turn. */
  isGivenUp: boolean
  /** Whether to send it now, because waiting adds no payment to its batch. */
  isUrgent: boolean
  deliverOnConfirm: Underway['deliverOnConfirm']
  /** The payer's funds at the simulation that passed, atomic; undefined for a charge of ours. */
  fundsAtomic?: bigint | undefined
  /** Kept from the simulation that passed until the payment is written. */
  reservation: Reservation | undefined
  /** Equal for payments whose Transfer logs cannot be distinguished. */
  logKey: string
  /** The settling call. */
  call: { to: Address; data: Hex }
  done(verdict: Verdict): void
}

/** The result of the queue for a payment. */
export type Verdict = ({ kind: 'sent' } & Sent) | NotSent

/** A payment that is written and on its way, with its reservation. */
export type Sent = Reservation & {
  member: Underway
  /** The end of the transaction that it is in. */
  conclusion: Promise<Conclusion>
}

/** What a slot paid, and why it did not pay the rest. */
export type Conclusion = {
  paid: ReadonlyMap<string, Payment>
  unpaid: ReadonlyMap<string, Reason>
  /**
   * Whether what is unpaid is sent again, alone: another payment of its batch, or another program with the
   * relayer's key, may have caused the failure.
   */
  isAgain: boolean
  /**
   * The unpaid payments whose payer caused the failure, which cost gas, with the code that caused it. The
   * code is `eoa` where the money explains the failure: moving money must not block other wallets of the
   * same code.
   */
  attributed: ReadonlyMap<string, AccountCode>
}

/** The result that the submitter of a payment gets. */
export type Admission = { kind: 'sent'; payment: Payment; outcome: Promise<Outcome> } | NotSent

type NotSent =
  /** The same money was written before. */
  | { kind: 'known'; payment: Payment }
  /** The chain shows the nonce as used or cancelled. */
  | { kind: 'used' }
  /** No key of the payer signed it; nothing was written. */
  | { kind: 'unsigned' }
  /** Its rows were refused: nothing was written. */
  | { kind: 'rows-refused'; reason: RowsRefusal }
  | PaymentRefusal

/** Why a job is not sent. */
export type JobRefusal = Extract<JobEnd, { kind: 'unavailable' | 'refused' }>

/** A job that is not written yet. */
export type WaitingJob = {
  job: Job
  rider: JobRider | undefined
  /** Whether it is being offered to a relayer. */
  isOffered: boolean
  /** Whether its caller no longer waits. */
  isOver: boolean
  /** Called with undefined when it is written and under way. */
  done(refusal: JobRefusal | undefined): void
  /** Nothing was written because of a fault. */
  fail(error: unknown): void
}

/** Where one transaction was included. */
type WatchedInclusion = {
  blockNumber: bigint
  /** Undefined while the chain's answer is not understood. */
  blockHash: Hex | undefined
  /** Number of checks at which the node had no such block. */
  misses: number
  /** Bytes of an external transaction: a node drops what it evicted. */
  raw: Hex | undefined
}

/** The state of a network. Throws for one that is not configured. */
export function chainOf({ chains }: Pick<Context, 'chains'>, id: Network.Id): ChainState {
  const chain = chains.get(id)
  if (!chain) throw new Error(`${id} is not a configured network`)
  return chain
}

/** Log fields of one payment. */
export function about({ id, requestId }: { id: string; requestId?: string | undefined }) {
  return requestId === undefined ? { payment: id } : { payment: id, requestId }
}

/** Ends what a ceiling reserves of the balance of its payer. May be called again. */
export function endReservation({ payers }: Pick<Context, 'payers'>, ceiling: Ceiling): void {
  if (ceiling.isReserved) payers.authorized.release(ceiling.transfer)
  ceiling.isReserved = false
}

/** Stores the block of a transaction, which saves reading it again. */
export function storeInclusion(
  { watch }: Pick<ChainState, 'watch'>,
  { blockNumber, blockHash, hash }: Receipt,
): void {
  watch.seen.set(hash, { blockNumber, blockHash, misses: 0, raw: undefined })
}
