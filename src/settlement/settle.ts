import type { Address } from 'viem'
import { isDuplicate, write } from '../../db/write'
import type * as Network from '../protocol/Network'
import { type Money, moneyKey, type Transfer } from '../protocol/Transfer'
import {
  type Context,
  payerKey,
  type Rail,
  railOf,
  type SettlementOptions,
  within,
} from './context'
import * as Elsewhere from './elsewhere'
import { createContext, start } from './engine'
import * as Lane from './lane'
import type { Outcome, Payment, Purpose } from './Payment'
import type { KeyScope, PaymentRow } from './store'
import * as Verify from './verify'
import * as Work from './work'

/** Exclusive hold on money, in memory: one process owns the database. */
export type Claim = { release(): void }

export type Status = {
  network: Network.Id
  ready: boolean
  reason?: string
  relayer: Address
  balanceWei?: bigint
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
    options: { waitMs: number; receivedAt: number; proven?: boolean },
  ): Promise<Outcome>
  /** A known payment: waits for its transaction, or sends a reverted one again. */
  resume(
    payment: Payment,
    transfer: Transfer | undefined,
    options: { waitMs: number },
  ): Promise<Outcome>
  /**
   * Commits `attempts + 1` and `delivering`, before the upstream is contacted. Throws when the
   * payment is not confirmed or was delivered.
   */
  beginDelivery(id: string): Payment
  /** Throws when no delivery was begun. */
  endDelivery(id: string, result: Delivered): void
  /** An answer was sent for this payment, whatever it was. */
  markAnswered(id: string): void
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

export type Delivered =
  | { delivered: true; upstreamStatus: number; truncated: boolean }
  | {
      delivered: false
      upstreamStatus: number | undefined
      redeemTokenHash: string
      redeemUntil: number
    }

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
    async settle(transfer, purpose, { waitMs, receivedAt, proven }) {
      if (stopping) return Verify.unavailable(undefined)
      const known = store.find(transfer)
      if (known) return meet(context, known, purpose, waitMs)
      const id = paymentId(now(), random)
      return settle(context, { id, transfer, purpose, receivedAt, proven: proven === true }, waitMs)
    },
    resume: (payment, transfer, { waitMs }) =>
      resume(context, payment, stopping ? undefined : transfer, waitMs),
    ...deliveries(context),
    status: () => [...context.rails.values()].map(statusOf),
    isReady: (network) => {
      const rail = context.rails.get(network)
      return !stopping && rail !== undefined && isReady(rail)
    },
    recover: engine.recover,
    async stop(limitMs) {
      stopping = true
      await within(Promise.all(context.running.values()), limitMs)
      controller.abort()
      for (const { client } of context.rails.values()) client.close()
      await Promise.all([engine.stopped, ...context.running.values()])
    },
  }
}

type Order = {
  id: string
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
  const simulation = await Verify.simulate(rail, signed)
  if (simulation.kind === 'passes') return { ok: true }
  return simulation.kind === 'used' ? refuseUsed(transfer) : simulation
}

async function settle(context: Context, order: Order, waitMs: number): Promise<Outcome> {
  const { transfer, purpose, proven } = order
  const rail = railOf(context, transfer.network)
  if (transfer.asset !== rail.network.asset.address) throw new Error('not the asset of the network')
  const refusal = Verify.checkWindow(transfer, context.now())
  if (refusal) return refusal
  if (!isReady(rail)) return Verify.unavailable(undefined)
  if (isOverBudget(context, rail, purpose)) {
    return unavailable('The gas budget of today is spent.', 600)
  }
  const signed = proven
    ? Verify.assumeSigned(transfer)
    : await Verify.checkSignature(rail, transfer, context.now())
  if (signed.kind !== 'signed') return signed
  const knownBlock = rail.head.number
  const simulation = await Verify.simulate(rail, signed)
  if (simulation.kind === 'used') {
    return purpose.bound ? adopt(context, rail, order) : refuseUsed(transfer)
  }
  if (simulation.kind !== 'passes') return simulation
  // From here to `launch` nothing waits: what was simulated is written, then sent.
  const promised = context.inFlight.get(payerKey(transfer)) ?? 0n
  if (promised + transfer.amountAtomic > simulation.balanceAtomic) {
    return unavailable('Other payments of this payer are under way.', 1)
  }
  return broadcast(context, rail, order, signed, knownBlock, waitMs)
}

/** The write that decides, then the send. */
async function broadcast(
  context: Context,
  rail: Rail,
  order: Order,
  signed: Verify.Signed,
  knownBlock: bigint,
  waitMs: number,
): Promise<Outcome> {
  const { store, db, now } = context
  const nonce = Lane.freeNonce(rail.lane)
  if (nonce === undefined || context.signal.aborted) return Verify.unavailable(undefined)
  const row = Lane.sign(context, rail, Work.payloadOf(signed, order), nonce)
  try {
    write(db, () => {
      store.insertPayment({
        ...rowOf(order, signed.transfer, knownBlock, now()),
        state: 'broadcast',
        transactionHash: row.hash,
      })
      store.insertTransaction(row, [order.id])
    })
  } catch (error) {
    const known = isDuplicate(error) ? store.find(order.transfer) : undefined
    if (!known) throw error
    return meet(context, known, order.purpose, waitMs)
  }
  const payment = store.findById(order.id)
  if (!payment) throw new Error(`no payment ${order.id}`)
  const [work] = Work.launch(context, rail, Work.slotOf(row, [payment]), [payment])
  return wait(context, payment, work, waitMs)
}

/**
 * The chain has the money's nonce used before we sent anything, and the credential can only be meant
 * for us: somebody who saw it settled it in our stead.
 */
async function adopt(context: Context, rail: Rail, order: Order): Promise<Outcome> {
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
        ...rowOf(order, transfer, rail.head.number, now()),
        state: 'confirmed',
        transactionHash: found.transaction,
        logIndex: found.logIndex,
        blockNumber: found.blockNumber,
        confirmedAt: now(),
      }),
    )
    context.log('payment-settled-elsewhere', { payment: id, transaction: found.transaction })
    return Work.current(context, { id })
  } catch (error) {
    if (isDuplicate(error)) return refuseUsed(transfer)
    context.log('settlement-undecided', { payment: id, error })
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
    return Work.current(context, payment)
  }
  const running = context.running.get(id)
  if (running) return wait(context, payment, running, waitMs)
  // The stored signature has proven itself; the one presented now may be another form of it.
  const work = Work.run(context, payment, () =>
    payment.state === 'reverted' && transfer
      ? Work.again(context, payment)
      : Work.decide(context, id, 'invalid_exact_evm_transaction_failed'),
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
  if (outcome) return outcome
  const latest = context.store.findById(payment.id) ?? payment
  return latest.state === 'confirmed' || latest.state === 'expired'
    ? Work.current(context, latest)
    : { kind: 'pending', payment: latest }
}

function deliveries(context: Context) {
  const { db, store, now } = context
  return {
    beginDelivery(id: string): Payment {
      const payment = write(db, () => (store.beginDelivery(id) ? store.findById(id) : undefined))
      if (!payment) throw new Error(`payment ${id} is not to be delivered`)
      return payment
    },
    endDelivery(id: string, result: Delivered): void {
      const { upstreamStatus } = result
      const isChanged = write(db, () =>
        result.delivered
          ? store.deliver(id, result.upstreamStatus, result.truncated, now())
          : store.failDelivery(id, upstreamStatus, result.redeemTokenHash, result.redeemUntil),
      )
      if (!isChanged) throw new Error(`no delivery of payment ${id} was begun`)
    },
    markAnswered(id: string): void {
      write(db, () => store.markAnswered(id))
    },
  }
}

function rowOf(
  { id, purpose, receivedAt }: Order,
  transfer: Transfer,
  knownBlock: bigint,
  at: number,
): Omit<PaymentRow, 'state' | 'transactionHash'> {
  return {
    id,
    ...transfer,
    ...purpose,
    idempotencyKey: purpose.idempotencyKey ?? null,
    receivedAt,
    knownBlock,
    logIndex: null,
    blockNumber: null,
    delivery: 'none',
    attempts: 0,
    upstreamStatus: null,
    truncated: false,
    answered: false,
    redeemTokenHash: null,
    redeemUntil: null,
    createdAt: at,
    confirmedAt: null,
    deliveredAt: null,
  }
}

function isReady({ health, lane }: Rail): boolean {
  return health.ready && lane.paused === undefined && lane.next !== undefined
}

function statusOf(rail: Rail): Status {
  const { network, health, lane } = rail
  const reason = health.reason ?? lane.paused
  return {
    network: network.id,
    ready: isReady(rail),
    relayer: lane.address,
    ...(reason === undefined ? {} : { reason }),
    ...(health.balanceWei === undefined ? {} : { balanceWei: health.balanceWei }),
  }
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
