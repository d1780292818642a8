import type { Address, Hex } from 'viem'
import type { Ahead } from '../chain/clock'
import { fees } from '../chain/head'
import type { Asset } from '../protocol/Asset'
import * as Crypto from '../protocol/Crypto'
import type * as Network from '../protocol/Network'
import { type Money, moneyKey, type Transfer } from '../protocol/Transfer'
import * as Availability from './availability'
import * as Budget from './budget'
import { type Context, railOf, type SettlementOptions, within } from './context'
import * as Corroborate from './corroborate'
import { type Delivered, deliveries } from './delivery'
import type { Errand, ErrandEnd } from './Errand'
import { createContext, start } from './engine'
import * as Errands from './errands'
import * as Lane from './lane'
import type { Outcome, Payment, Product, Purpose } from './Payment'
import { type Read, read } from './reads'
import * as Request from './request'
import { type LaneStatus, statusOf } from './status'
import type { KeyScope } from './store'
import * as Verify from './verify'

/** Exclusive hold on money, in memory: one process owns the database. */
export type Claim = { release(): void }

export type Status = {
  network: Network.Id
  ready: boolean
  reason?: string
  /** The first one; `lanes` has all. */
  relayer: Address
  balanceWei?: bigint
  /** How far our clock may be ahead of the chain's; infinite where blocks prove nothing. */
  clockAheadMs: Ahead
  lanes: readonly LaneStatus[]
}

export type Settlement = {
  /** Resolves after the first look at every network, whatever it says. */
  ready: Promise<void>
  /** The payment of this money; one indexed read. */
  find(money: Money): Payment | undefined
  findById(id: string): Payment | undefined
  findByRedeemToken(tokenHash: string): Payment | undefined
  /** Newest payment of the key that is not expired. */
  findByIdempotencyKey(scope: KeyScope): Payment | undefined
  /** Undefined while another request holds the money. */
  claim(money: Money): Claim | undefined
  /**
   * Signature, window and simulation in one call to a node; nothing is written or sent. `eip712`: the
   * signing domain that the payer was told, by default the token's own.
   */
  verify(transfer: Transfer, eip712?: Asset['eip712']): Promise<{ ok: true } | Outcome>
  /**
   * Verifies, writes, broadcasts and waits. The caller holds the claim. `waitMs` bounds the wait, not
   * the work. `proven`: whether the payer's own key signed; a function is asked when the simulation
   * does not tell. `write` runs inside the database transaction that inserts the payment, once, and not
   * when the money is known; what it throws is what this rejects with, and nothing is written or sent
   * then. `onSent` is called when the transaction has left: what it computes then costs no time. It
   * must not throw. `beginsDelivery` is asked when the money has arrived: true begins the delivery in the
   * same commit, which the outcome tells with `isBegun`; then the caller delivers without
   * `beginDelivery`, or ends it.
   */
  settle(
    transfer: Transfer,
    purpose: Purpose,
    options: {
      waitMs: number
      receivedAt: number
      proven?: Request.Proof
      requestId?: string
      write?: (paymentId: string) => void
      onSent?: (payment: Payment) => void
      beginsDelivery?: () => boolean
    },
  ): Promise<Outcome>
  /** A known payment: waits for its transaction, or sends a reverted one again. */
  resume(
    payment: Payment,
    transfer: Transfer | undefined,
    options: { waitMs: number; requestId?: string },
  ): Promise<Outcome>
  /**
   * Commits `attempts + 1` and `delivering`; resolves before the upstream may be contacted. Rejects
   * when the payment is not confirmed or was delivered.
   */
  beginDelivery(id: string): Promise<Payment>
  /**
   * Resolves when it is on the disk. Rejects when no delivery was begun. A function is asked when it
   * is written, which is after this turn of the event loop; while the disk takes nothing it is kept and
   * written later. A token is not: then this rejects.
   */
  endDelivery(id: string, result: Delivered | (() => Delivered)): Promise<void>
  /**
   * Delivery none -> delivered in one commit: true for exactly one caller ever, false for the others
   * and while the payment is not confirmed. Undefined when that could not be written: it has been handed
   * to no caller, and the same call may succeed later. Never rejects.
   */
  handOver(id: string): Promise<boolean | undefined>
  /** An answer was sent for this payment, whatever it was. */
  markAnswered(id: string): Promise<void>
  /**
   * Calls back when the state of a payment has changed (confirmed, reverted, expired, back to
   * broadcast), with its id, after the change is on the disk. May call without a change: read it.
   */
  onPayment(listener: (id: string) => void): void
  /**
   * Sends a transaction of our own, exactly once for its id: `write` runs inside the database
   * transaction that stores the signed bytes, before they leave; the same id again, whatever else it
   * says, waits for what is under way or answers how it ended. `waitMs` bounds the wait, not the work:
   * it is driven to its end in the background and after a restart. Rejects with what `write` throws
   * (nothing was written or sent then), and for a relayer that has no lane on the network.
   */
  run(
    errand: Errand,
    options: { waitMs: number; write?: (transaction: Hex) => void },
  ): Promise<ErrandEnd>
  /** How an errand stands, from the database. Undefined when it was never written. */
  errand(id: string): Errands.ErrandStatus | undefined
  /**
   * Calls back after every change of an errand's state or newest transaction (also when a
   * reorganisation takes it back to broadcast), with its id. May call without a change: read it.
   */
  onErrand(listener: (id: string) => void): void
  /**
   * Read-only calls of products in the state of the newest block, results in order, undefined for each
   * that failed. Throws RpcFault.
   */
  read(
    network: Network.Id,
    calls: readonly { to: Address; data: Hex }[],
    options?: { timeoutMs?: number },
  ): Promise<Read>
  /** One JSON-RPC request through the network's client. Throws RpcFault or RpcError. */
  rpc(network: Network.Id, method: string, params: readonly unknown[]): Promise<unknown>
  /** Fees of a transaction that would be signed now, the newest base fee, and the tip of the nodes. */
  fees(network: Network.Id): {
    maxFeeWei: bigint
    maxTipWei: bigint
    baseFeeWei: bigint
    suggestedTipWei: bigint
  }
  /** The stock desk's account. */
  desk: Address
  /** Networks with the reason why one cannot settle. No I/O. */
  status(): readonly Status[]
  /** Whether a network can settle now. No I/O. */
  isReady(network: Network.Id): boolean
  /** Why a network is left out of a 402 now, as the end of a sentence; undefined: it is offered. No I/O. */
  whyNot(network: Network.Id, sale: Availability.Sale): string | undefined
  /** What a lone payment costs now. No I/O. */
  costOf(network: Network.Id): Availability.SaleCost
  /** Whether a product may still spend gas today. From memory. */
  hasBudget(network: Network.Id, product: Product): boolean
  /** Remembers a credential bound to this service that came while nothing could be sold. */
  noteShown(transfer: Transfer): void
  /** Whether a payment counts only after `confirmTwice` returns true. No I/O. */
  needsSecond(payment: Pick<Payment, 'transfer' | 'purpose'>): boolean
  /**
   * Whether a second node shows the transfer of a confirmed payment; waits seconds for one that lags
   * behind, and logs what differs. True with one URL. Never rejects.
   */
  confirmTwice(payment: Payment): Promise<boolean>
  /** What the nodes show of a confirmed payment now. Throws RpcFault or RpcError with one URL. */
  sightOf(payment: Payment): Promise<Corroborate.Sight>
  /** Takes up what an earlier process left; returns when all has been looked at once. */
  recover(): Promise<void>
  /** Nothing new; resolves when nothing is under way or after the limit. */
  stop(limitMs: number): Promise<void>
}

export type { SettlementOptions }

/** How money moves: one per process and database. Throws when there is no relayer key. */
export async function createSettlement(options: SettlementOptions): Promise<Settlement> {
  const controller = new AbortController()
  const context = createContext(options, controller.signal)
  const { db, store, now } = context
  const random = options.random ?? ((length) => crypto.getRandomValues(new Uint8Array(length)))
  const engine = start(context, options.checkMs ?? 15_000)
  return {
    ready: engine.ready,
    find: store.find,
    findById: store.findById,
    findByRedeemToken: store.findByRedeemToken,
    findByIdempotencyKey: store.findByIdempotencyKey,
    claim: createClaims(),
    verify: (transfer, eip712) => Request.verify(context, transfer, eip712),
    async settle(transfer, purpose, options) {
      const { waitMs, receivedAt } = options
      if (context.isStopping) return Verify.unavailable(undefined)
      const known = store.find(transfer)
      const knownBlock = railOf(context, transfer.network).head.number
      const id = paymentId(now(), random)
      const request: Request.Request = {
        id,
        requestId: options.requestId,
        transfer,
        purpose,
        receivedAt,
        proven: options.proven ?? false,
        write: options.write,
        onSent: options.onSent,
        beginsDelivery: options.beginsDelivery,
      }
      const outcome = await (known
        ? Request.meet(context, known, purpose, waitMs)
        : Request.settle(context, request, waitMs))
      if (outcome.kind === 'unavailable' && purpose.bound) {
        context.shown.note(transfer, { receivedAt, knownBlock })
      }
      context.metrics.settled(request, outcome, (now() - receivedAt) / 1000)
      return outcome
    },
    resume(payment, transfer, { waitMs, requestId }) {
      if (requestId !== undefined) context.requestIds.set(payment.id, requestId)
      const sent = context.isStopping ? undefined : transfer
      return Request.resume(context, payment, sent, waitMs)
    },
    ...deliveries(context),
    ...forProducts(context),
    desk: deskOf(options),
    status: () => [...context.rails.values()].map((rail) => statusOf(context, rail)),
    hasBudget: (network, product) =>
      !Budget.isSpent(context, railOf(context, network), product, now()),
    whyNot(network, sale) {
      const rail = context.rails.get(network)
      return rail ? Availability.whyNot(context, rail, sale) : 'it is not configured'
    },
    costOf: (network) => Availability.costOf(railOf(context, network)),
    isReady: (network) => {
      const rail = context.rails.get(network)
      if (context.isStopping || db.storage.fault() !== undefined) return false
      return rail !== undefined && Lane.isReady(rail)
    },
    recover: engine.recover,
    async stop(limitMs) {
      context.isStopping = true
      await within(Promise.all(underWay(context)), limitMs)
      controller.abort()
      context.errandBell.release()
      for (const { client, heads } of context.rails.values()) {
        client.close()
        heads.close()
      }
      for (const rail of context.rails.values()) {
        clearTimeout(rail.collecting)
        context.pump(rail)
      }
      await Promise.all([engine.stopped, ...underWay(context)])
      context.group.flush()
    },
  }
}

/** What products do beside settling payments. */
function forProducts(
  context: Context,
): Pick<
  Settlement,
  | 'onPayment'
  | 'run'
  | 'errand'
  | 'onErrand'
  | 'read'
  | 'rpc'
  | 'fees'
  | 'noteShown'
  | 'needsSecond'
  | 'confirmTwice'
  | 'sightOf'
> {
  return {
    noteShown(transfer) {
      const knownBlock = railOf(context, transfer.network).head.number
      context.shown.note(transfer, { receivedAt: context.now(), knownBlock })
    },
    needsSecond: (payment) =>
      Request.needsSecond(context, railOf(context, payment.transfer.network), payment),
    confirmTwice: (payment) =>
      Corroborate.confirm(context, railOf(context, payment.transfer.network), payment),
    sightOf: (payment) =>
      Corroborate.sightOf(context, railOf(context, payment.transfer.network), payment),
    onPayment: context.paymentBell.on,
    run: (errand, limits) => Errands.run(context, errand, limits),
    errand: (id) => Errands.statusOf(context, id),
    onErrand: context.errandBell.on,
    read: (network, calls, limits) => read(context, network, calls, limits),
    rpc: (network, method, params) => railOf(context, network).client.call(method, params),
    fees(network) {
      const { head, network: config } = railOf(context, network)
      const { baseFeeWei, suggestedTipWei } = head
      return { ...fees(head, config.feeCapWei), baseFeeWei, suggestedTipWei }
    },
  }
}

function createClaims(): Settlement['claim'] {
  const claims = new Set<string>()
  return (money) => {
    const key = moneyKey(money)
    if (claims.has(key)) return undefined
    claims.add(key)
    let held = true
    return {
      release() {
        if (held) claims.delete(key)
        held = false
      },
    }
  }
}

/** Never reject. */
function underWay({ running, driving }: Context): Promise<unknown>[] {
  return [...running.values(), ...driving]
}

function deskOf({ deskKey, relayerKeys }: SettlementOptions): Address {
  const key = deskKey ?? relayerKeys[0]
  if (!key) throw new Error('settlement needs a relayer key')
  return Crypto.addressOf(key)
}

/** `pay_`, the time and randomness: grows with time, so that inserts stay local in the index. */
function paymentId(now: number, random: (length: number) => Uint8Array): string {
  return `pay_${now.toString(16).padStart(12, '0')}${Buffer.from(random(10)).toString('hex')}`
}
