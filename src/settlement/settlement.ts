import type { Address } from 'viem'
import type { PaymentReads } from '../../db/Ledger'
import type { Payment } from '../../db/Payment'
import type { Asset } from '../protocol/Asset'
import * as Crypto from '../protocol/Crypto'
import type { Transfer } from '../protocol/Transfer'
import * as CrossCheck from './read/cross-check'
import { type ChainReads, createChainReads } from './read/reads'
import * as Refusals from './read/refusals'
import { verify } from './read/verify'
import { createUnsettled } from './repair/accept-external'
import { createDeliveries, type Deliveries } from './send/delivery'
import * as Intake from './send/intake'
import { createJobRunner, type Jobs } from './send/jobs'
import type { Outcome } from './send/Outcome'
import { pump } from './send/queue'
import { type Background, createContext, type SettlementOptions, start } from './start'
import { type Availability, createAvailability } from './state/availability'
import { type Context, chainOf } from './state/context'
import type { PaymentRequest } from './state/state'
import { within } from './state/wait'
import { type Authorizations, createAuthorizations } from './upto/authorizations'
import * as Charges from './upto/charges'
import { createOverdue } from './upto/overdue'

/*
 * The stages of a payment. Each stage calls those below it, and returns a value.
 *
 *  1. intake       Refuses what needs no simulation: window, signer (signature), payer (payers), gas.
 *  2. queue        Waits for a relayer of its network, with the jobs.
 *  3. batch        Is simulated with the others (simulate; alone: examine), and accepted or refused.
 *  4. transaction  Is signed, and written with its transaction: that insert decides whose money it is.
 *  5. confirm      Is driven to its end (broadcast), and gets its Transfer log in one commit, or the
 *                  failure is attributed to members (attribution).
 *  6. broadcast    Is sent, polled, and replaced with higher fees until its nonce is decided.
 *  7. resolve      Where no log pays: paid by an external transaction (external), over, or to be sent
 *                  again, in which case `{ kind: 'resend' }` goes back to the queue.
 *  8. delivery     The paid answer is delivered.
 *
 * Not in the order of stages: accept-external (settled externally before the request), reorg and
 * restore (a reorganisation removed the transaction), recover (unfinished work of a process),
 * cross-check (what other nodes show), health (of the networks).
 */

export type Payments = Pick<
  PaymentReads,
  'find' | 'findById' | 'findByRedeemToken' | 'findByIdempotencyKey'
> & {
  /** A new id of a payment. */
  createId(): string
  /**
   * Checks signature, window and simulation in one call to a node; nothing is written or sent.
   * `eip712`: the signing domain that the payer was given, by default the token's own.
   */
  verify(transfer: Transfer, eip712?: Asset['eip712']): Promise<{ ok: true } | Outcome>
  /**
   * Verifies, writes, broadcasts and waits. The caller has the claim. `waitMs` bounds the wait only:
   * settlement continues.
   */
  settle(request: PaymentRequest, waitMs: number): Promise<Outcome>
  /** A known payment: waits for its transaction, or sends a reverted one again. */
  resume(
    payment: Payment,
    transfer: Transfer | undefined,
    options: { waitMs: number; requestId?: string },
  ): Promise<Outcome>
  /**
   * Calls back with the id after a change of a payment's state (confirmed, reverted, expired, back
   * to broadcast) is on the disk. May call without a change, so read the state.
   */
  onPayment(listener: (id: string) => void): void
  /**
   * Stores the time of a credential, bound to this service, that arrived while nothing could be
   * sold.
   */
  noteUnsettled(transfer: Transfer): void
  /** Whether a payment counts only after `confirmTwice` returns true. No I/O. */
  needsSecond(payment: Pick<Payment, 'transfer' | 'purpose'>): boolean
  /**
   * Whether a second node shows the transfer of a confirmed payment. Waits seconds for one that
   * lags behind, and logs differences. True with one URL. Never rejects.
   */
  confirmTwice(payment: Payment): Promise<boolean>
  /** What the nodes show of a confirmed payment now. With one URL, throws RpcFault or RpcError. */
  observationOf(payment: Payment): Promise<CrossCheck.Observation>
}

export type Lifecycle = {
  /** Resolves after the first check of every network, ready or not. */
  ready: Promise<void>
  /** Resumes what an earlier process left; resolves when everything was checked once. */
  recover(): Promise<void>
  /** Accepts nothing new; resolves when nothing is running or after the limit. */
  stop(limitMs: number): Promise<void>
}

export type Settlement = Payments &
  Deliveries &
  Jobs &
  ChainReads &
  Availability &
  Lifecycle & {
    /** The stock desk's account. */
    desk: Address
    /** Whether this process has that account: no other one takes steps of orders. */
    hasDesk(): boolean
    /** Changes each time that this process takes the account. Undefined while it does not have it. */
    deskEpoch(): string | undefined
    /** Whether other processes may use the database. */
    isShared: boolean
    /**
     * Whether the other processes take this one for alive. Else they may end its authorizations, and
     * it cannot charge what it gives.
     */
    isFresh(): boolean
    /** The functions of the scheme `upto`. */
    authorizations: Authorizations
  }

export type { SettlementOptions }

/** Creates settlement: one per process and database. Throws when there is no relayer key. */
export async function createSettlement(options: SettlementOptions): Promise<Settlement> {
  const controller = new AbortController()
  const context = await createContext(options, controller.signal)
  const random = options.random ?? ((length) => crypto.getRandomValues(new Uint8Array(length)))
  const createId = () => paymentId(context.now(), random)
  const intake = { ...context, unsettled: createUnsettled(), createId }
  const reportOverdue = createOverdue(context)
  const background = start(context, {
    checkMs: options.checkMs ?? 15_000,
    resumeCharges: async (isStart) => reportOverdue(await Charges.resume(intake, isStart)),
  })
  return {
    ...createPayments(intake),
    authorizations: createAuthorizations(intake),
    ...createDeliveries(context),
    ...createJobRunner(context),
    ...createChainReads(context),
    ...createAvailability(context),
    desk: deskOf(options),
    hasDesk: () => deskEpoch(context, options) !== undefined,
    deskEpoch: () => deskEpoch(context, options),
    isShared: options.ledger.lanes.isShared,
    isFresh: options.ledger.lanes.isFresh,
    ready: background.ready,
    recover: background.recover,
    stop: (limitMs) => stop(context, background, controller, limitMs),
  }
}

function createPayments(context: Intake.Intake): Payments {
  const { ledger, now } = context
  const { payments } = ledger
  const { unsettled } = context
  const headOf = ({ network }: Transfer) => chainOf(context, network).head.number
  const chainOfPayment = ({ transfer }: Pick<Payment, 'transfer'>) =>
    chainOf(context, transfer.network)
  return {
    find: payments.find,
    findById: payments.findById,
    findByRedeemToken: payments.findByRedeemToken,
    findByIdempotencyKey: payments.findByIdempotencyKey,
    createId: context.createId,
    verify: (transfer, eip712) => verify(context, transfer, eip712),
    async settle(asked, waitMs) {
      const { transfer, purpose, receivedAt, isUnknown } = asked
      if (context.progress.isStopping) return Refusals.unavailable(undefined)
      const known = isUnknown ? undefined : await payments.find(transfer)
      const knownBlock = headOf(transfer)
      const request = { ...asked, id: context.createId() }
      const settleNew = () =>
        context.policy.isPaused(transfer.network)
          ? Refusals.unavailable(undefined)
          : Intake.settle(context, request, waitMs)
      const outcome = await (known
        ? Intake.joinKnown(context, known, request, waitMs)
        : settleNew())
      if (outcome.kind === 'unavailable' && purpose.bound) {
        unsettled.note(transfer, { receivedAt, knownBlock })
      }
      context.metrics.settled(request, outcome, (now() - receivedAt) / 1000)
      return outcome
    },
    resume(payment, transfer, { waitMs, requestId }) {
      const sent = context.progress.isStopping ? undefined : transfer
      return Intake.resume(context, payment, { transfer: sent, requestId, waitMs })
    },
    onPayment: context.events.payments.on,
    noteUnsettled: (transfer) =>
      unsettled.note(transfer, { receivedAt: now(), knownBlock: headOf(transfer) }),
    needsSecond: (payment) => CrossCheck.needsSecond(context, chainOfPayment(payment), payment),
    confirmTwice: (payment) => CrossCheck.confirm(context, chainOfPayment(payment), payment),
    observationOf: (payment) => CrossCheck.observationOf(context, chainOfPayment(payment), payment),
  }
}

async function stop(
  context: Context,
  background: Background,
  controller: AbortController,
  limitMs: number,
): Promise<void> {
  const { progress, events, ledger, chains } = context
  const underWay = () => [...progress.running.values(), ...progress.driving]
  progress.isStopping = true
  await within(Promise.all(underWay()), limitMs)
  controller.abort()
  events.jobs.release()
  for (const { client, heads } of chains.values()) {
    client.close()
    heads.close()
  }
  for (const chain of chains.values()) {
    clearTimeout(chain.queue.collecting)
    pump(context, chain)
  }
  await Promise.all([...chains.values()].map(({ queue }) => queue.dispatching))
  await Promise.all([background.stopped, ...underWay()])
  ledger.flush()
}

function deskOf({ deskKey, relayerKeys }: SettlementOptions): Address {
  const key = deskKey ?? relayerKeys[0]
  if (!key) throw new Error('settlement needs a relayer key')
  return Crypto.addressOf(key)
}

function deskEpoch({ ledger }: Context, options: SettlementOptions): string | undefined {
  const relayer = deskOf(options)
  const networks = options.networks.map(({ id }) => id)
  const { deskNetwork } = options
  const own = deskNetwork === undefined ? networks : [deskNetwork]
  const epochs = own.map((network) => ledger.lanes.epochOf({ network, relayer }))
  return epochs.includes(undefined) ? undefined : epochs.join()
}

/** `pay_`, the time and randomness. Grows with time, so that inserts stay local in the index. */
function paymentId(now: number, random: (length: number) => Uint8Array): string {
  return `pay_${now.toString(16).padStart(12, '0')}${random(10).toHex()}`
}
