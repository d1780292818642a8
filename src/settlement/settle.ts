import type { Address, Hex } from 'viem'
import { isDuplicate, write } from '../../db/write'
import type * as Network from '../protocol/Network'
import { call, type Money, moneyKey, type Transfer } from '../protocol/Transfer'
import * as Batch from './batch'
import {
  type Admission,
  about,
  type Context,
  type Rail,
  railOf,
  type SettlementOptions,
  within,
} from './context'
import * as Decide from './decide'
import { type Delivered, deliveries } from './delivery'
import * as Elsewhere from './elsewhere'
import { createContext, start } from './engine'
import * as Lane from './lane'
import type { Outcome, Payment, Purpose } from './Payment'
import { read } from './read'
import { simulate } from './simulate'
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
  /** Signature, window and simulation; nothing is written or sent. */
  verify(transfer: Transfer): Promise<{ ok: true } | Outcome>
  /**
   * Verifies, writes, broadcasts and waits. The caller holds the claim. `waitMs` bounds the wait, not
   * the work. `proven`: the caller has recovered the payer from the signature.
   */
  settle(
    transfer: Transfer,
    purpose: Purpose,
    options: { waitMs: number; receivedAt: number; proven?: boolean; requestId?: string },
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
   * is written, which is after this turn of the event loop.
   */
  endDelivery(id: string, result: Delivered | (() => Delivered)): Promise<void>
  /** An answer was sent for this payment, whatever it was. */
  markAnswered(id: string): Promise<void>
  /**
   * Read-only eth_calls of products: addresses and calldata in one Multicall3 aggregate3 call
   * (allowFailure), results in order (undefined: that one failed). Throws RpcFault or RpcError.
   */
  read(
    network: Network.Id,
    calls: readonly { to: Address; data: Hex }[],
    options?: { timeoutMs?: number },
  ): Promise<{ blockNumber: bigint; results: readonly (Hex | undefined)[] }>
  /** Networks with the reason why one cannot settle. No I/O. */
  status(): readonly Status[]
  /** Whether a network can settle now. No I/O. */
  isReady(network: Network.Id): boolean
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
  const { store, now } = context
  const random = options.random ?? ((length) => crypto.getRandomValues(new Uint8Array(length)))
  const claims = new Set<string>()
  const engine = start(context, options.checkMs ?? 15_000)
  let stopping = false
  return {
    ready: engine.ready,
    find: store.find,
    findById: store.findById,
    findByRedeemToken: store.findByRedeemToken,
    findByIdempotencyKey: store.findByIdempotencyKey,
    claim(money) {
      const key = moneyKey(money).toLowerCase()
      if (claims.has(key)) return undefined
      claims.add(key)
      let held = true
      return {
        release() {
          if (held) claims.delete(key)
          held = false
        },
      }
    },
    verify: (transfer) => verify(context, transfer),
    async settle(transfer, purpose, { waitMs, receivedAt, proven, requestId }) {
      if (stopping) return Verify.unavailable(undefined)
      const known = store.find(transfer)
      const id = paymentId(now(), random)
      const request = { id, requestId, transfer, purpose, receivedAt, proven: proven === true }
      const outcome = await (known
        ? meet(context, known, purpose, waitMs)
        : settle(context, request, waitMs))
      context.metrics.settled(request, outcome, (now() - receivedAt) / 1000)
      return outcome
    },
    resume(payment, transfer, { waitMs, requestId }) {
      if (requestId !== undefined) context.requestIds.set(payment.id, requestId)
      return resume(context, payment, stopping ? undefined : transfer, waitMs)
    },
    ...deliveries(context),
    read: async (network, calls, options) => read(railOf(context, network), calls, options),
    status: () => [...context.rails.values()].map(statusOf),
    isReady: (network) => {
      const rail = context.rails.get(network)
      return !stopping && rail !== undefined && Lane.isReady(rail)
    },
    recover: engine.recover,
    async stop(limitMs) {
      stopping = true
      await within(Promise.all(context.running.values()), limitMs)
      controller.abort()
      for (const { client, heads } of context.rails.values()) {
        client.close()
        heads.close()
      }
      for (const rail of context.rails.values()) {
        clearTimeout(rail.collecting)
        context.pump(rail)
      }
      await Promise.all([engine.stopped, ...context.running.values()])
      context.group.flush()
    },
  }
}

type Request = {
  id: string
  requestId: string | undefined
  transfer: Transfer
  purpose: Purpose
  receivedAt: number
  proven: boolean
}

async function verify(context: Context, transfer: Transfer): Promise<{ ok: true } | Outcome> {
  const rail = railOf(context, transfer.network)
  const refusal = Verify.checkWindow(transfer, context.now())
  if (refusal) return refusal
  const signed = await Verify.checkSignature(rail, transfer, context.now())
  if (signed.kind !== 'signed') return signed
  const candidate = { ...signed, call: call(signed.transfer) }
  const [simulation] = await simulate(rail, rail.lanes[0]?.address, [candidate])
  if (!simulation) return Verify.unavailable(undefined)
  if (simulation.kind === 'passes') return { ok: true }
  return simulation.kind === 'used' ? refuseUsed(transfer) : simulation
}

async function settle(context: Context, request: Request, waitMs: number): Promise<Outcome> {
  const { id, requestId, transfer, purpose, receivedAt, proven } = request
  const rail = railOf(context, transfer.network)
  if (transfer.asset !== rail.network.asset.address) throw new Error('not the asset of the network')
  const refusal = Verify.checkWindow(transfer, context.now())
  if (refusal) return refusal
  if (!Lane.isReady(rail)) return Verify.unavailable(undefined)
  if (isOverBudget(context, rail, purpose)) {
    return unavailable('The gas budget of today is spent.', 600)
  }
  const signed = proven
    ? Verify.assumeSigned(transfer)
    : await Verify.checkSignature(rail, transfer, context.now())
  if (signed.kind !== 'signed') return signed
  const waitSeconds = context.failures.waitSeconds(transfer.payer, signed.hasCode === true)
  if (waitSeconds > 0) return Verify.lockedOut(waitSeconds)
  if (requestId !== undefined) context.requestIds.set(id, requestId)
  const submitted = context.submit(rail, {
    id,
    requestId,
    transfer: signed.transfer,
    hasCode: signed.hasCode,
    purpose,
    receivedAt,
    payment: undefined,
    isAlone: false,
  })
  const { admission } = submitted
  const ended = admission.then(async (result): Promise<Admission | Outcome> => {
    return result.kind === 'sent' ? result.outcome : result
  })
  const outcome = await within(ended, waitMs)
  if (outcome === undefined && submitted.cancel()) {
    context.requestIds.delete(id)
    return unavailable('The network is busy; try again with the same credential.', 2)
  }
  // Too late to take it back: it is being simulated or has been written.
  const result = outcome ?? (await admission)
  switch (result.kind) {
    case 'sent':
      return latest(context, result.payment)
    case 'known':
      context.requestIds.delete(id)
      return meet(context, result.payment, purpose, waitMs)
    case 'used':
      return meetUsed(context, rail, request, waitMs)
    default:
      if (!context.running.has(id)) context.requestIds.delete(id)
      return result
  }
}

async function meetUsed(
  context: Context,
  rail: Rail,
  request: Request,
  waitMs: number,
): Promise<Outcome> {
  const { id, transfer, purpose } = request
  const written = context.store.find(transfer)
  const outcome = written
    ? await meet(context, written, purpose, waitMs)
    : purpose.bound
      ? await adopt(context, rail, request)
      : refuseUsed(transfer)
  context.requestIds.delete(id)
  return outcome
}

/**
 * The chain has the money's nonce used before we sent anything, and the credential can only be meant
 * for us: somebody who saw it settled it in our stead.
 */
async function adopt(context: Context, rail: Rail, order: Request): Promise<Outcome> {
  const { store, db, now } = context
  const { transfer, id } = order
  try {
    const found = await Elsewhere.find(context, rail, transfer, undefined)
    if (!found || !Elsewhere.counts(found, order.purpose.bound, undefined)) {
      return refuseUsed(transfer)
    }
    await Lane.assertConfirmed(context, rail, found.transaction)
    write(db, () =>
      store.insertPayment({
        ...Batch.rowOf(order, rail.head.number, now()),
        state: 'confirmed',
        transactionHash: found.transaction,
        logIndex: found.logIndex,
        blockNumber: found.blockNumber,
        confirmedAt: now(),
      }),
    )
    context.log('payment-settled-elsewhere', {
      ...about(context, id),
      transaction: found.transaction,
    })
    return Decide.current(context, { id })
  } catch (error) {
    if (isDuplicate(error)) return refuseUsed(transfer)
    context.log('settlement-undecided', { ...about(context, id), error })
    return Verify.unavailable(error)
  }
}

/** Money that is known already: the same purpose waits for it, another one comes too late. */
async function meet(
  context: Context,
  known: Payment,
  purpose: Purpose,
  waitMs: number,
): Promise<Outcome> {
  const { product, merchant, route, fingerprint } = known.purpose
  const isSame =
    product === purpose.product &&
    merchant === purpose.merchant &&
    route === purpose.route &&
    fingerprint === purpose.fingerprint
  if (!isSame) return refuseUsed(known.transfer)
  return resume(context, known, known.transfer, waitMs)
}

async function resume(
  context: Context,
  { id }: Payment,
  transfer: Transfer | undefined,
  waitMs: number,
): Promise<Outcome> {
  const payment = context.store.findById(id)
  if (!payment) throw new Error(`no payment ${id}`)
  if (payment.state === 'confirmed' || payment.state === 'expired') {
    return Decide.current(context, payment)
  }
  const running = context.running.get(id)
  if (running) return wait(context, payment, running, waitMs)
  // The stored signature has proven itself; the one presented now may be another form of it.
  const work = Decide.run(context, payment, () =>
    payment.state === 'reverted' && transfer
      ? Decide.again(context, payment)
      : Decide.decide(context, id, 'invalid_exact_evm_transaction_failed'),
  )
  return wait(context, payment, work, waitMs)
}

async function wait(
  context: Context,
  payment: Payment,
  work: Promise<Outcome> | undefined,
  waitMs: number,
): Promise<Outcome> {
  const outcome = work && (await within(work, waitMs))
  return outcome ?? latest(context, payment)
}

function latest(context: Context, payment: Payment): Outcome {
  const stored = context.store.findById(payment.id) ?? payment
  return stored.state === 'confirmed' || stored.state === 'expired'
    ? Decide.current(context, stored)
    : { kind: 'pending', payment: stored }
}

function isOverBudget(context: Context, { network }: Rail, { product }: Purpose): boolean {
  return (
    context.store.gasSpentOn(network.id, product, context.now()) >= network.gasPerDayWei[product]
  )
}

function refuseUsed(transfer: Transfer): Outcome {
  const reason = Verify.usedReason(transfer)
  return { kind: 'refused', reason, detail: 'the nonce of the authorization is used' }
}

function unavailable(detail: string, retryAfterSeconds: number): Outcome {
  return { kind: 'unavailable', detail, retryAfterSeconds }
}

/** `pay_`, the time and randomness: grows with time, so that inserts stay local in the index. */
function paymentId(now: number, random: (length: number) => Uint8Array): string {
  return `pay_${now.toString(16).padStart(12, '0')}${Buffer.from(random(10)).toString('hex')}`
}
