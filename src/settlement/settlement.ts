import type { Address } from 'viem'
import type { Payment } from '../../db/Payment'
import type { Asset } from '../protocol/Asset'
import * as Crypto from '../protocol/Crypto'
import type { Transfer } from '../protocol/Transfer'
import { createChannelSales } from './channels/channels'
import { createLooks } from './channels/looks'
import * as CrossCheck from './read/cross-check'
import { createChainReads } from './read/reads'
import * as Refusals from './read/refusals'
import { verify } from './read/simulate'
import { noteUnsettled } from './repair/accept-external'
import { createDeliveryStates } from './send/delivery'
import { createJobRunner } from './send/jobs'
import * as Payments from './send/lifecycle'
import type { Outcome } from './send/Outcome'
import { pump } from './send/queue'
import { type Background, createContext, type SettlementOptions, startBackground } from './start'
import { createAvailability } from './state/availability'
import { type Context, chainOf, type PaymentRequest } from './state/state'
import { within } from './state/wait'
import { createUptoAuthorizations } from './upto/authorizations'
import * as Charges from './upto/charges'

/** What the products have of settlement. */
export type Settlement = Awaited<ReturnType<typeof createSettlement>>

export type { SettlementOptions }

/** Creates settlement: one per process and database. Throws when there is no relayer key. */
export async function createSettlement(options: SettlementOptions) {
  const controller = new AbortController()
  const context = await createContext(options, controller.signal)
  const reportOverdue = Charges.createOverdue(context)
  const background = startBackground(context, options.checkMs ?? 15_000, async (isStart) =>
    reportOverdue(await Charges.resumeCharges(context, isStart)),
  )
  const looks = createLooks(context, options.checkMs ?? 15_000)
  return {
    ...createPayments(context),
    /** The functions of the scheme `upto`. */
    authorizations: createUptoAuthorizations(context),
    /** Payment channels. */
    channels: createChannelSales(context),
    ...createDeliveryStates(context),
    ...createJobRunner(context),
    ...createChainReads(context),
    ...createAvailability(context),
    /** The stock desk's account. */
    desk: deskOf(options),
    /** Whether this process has that account: no other one takes steps of orders. */
    hasDesk: () => deskEpoch(context, options) !== undefined,
    /** Changes each time that this process takes the account. Undefined while it does not have it. */
    deskEpoch: () => deskEpoch(context, options),
    /** Whether other processes may use the database. */
    isShared: options.ledger.lanes.isShared,
    /**
     * Whether the other processes take this one for alive. Else they may end its authorizations, and
     * it cannot charge what it gives.
     */
    isFresh: options.ledger.lanes.isFresh,
    ready: background.ready,
    async recover(): Promise<void> {
      await background.recover()
      looks.start()
    },
    /** Accepts nothing new; resolves when nothing is running or after the limit. */
    async stop(limitMs: number): Promise<void> {
      const stopping = stop(context, background, controller, limitMs)
      controller.signal.addEventListener('abort', () => void looks.stop())
      await stopping
      await looks.stop()
    },
  }
}

function createPayments(context: Context) {
  const { ledger, now } = context
  const { find, findById, findByRedeemToken, findByIdempotencyKey } = ledger.payments
  const headOf = ({ network }: Transfer) => chainOf(context, network).head.number
  return {
    find,
    findById,
    findByRedeemToken,
    findByIdempotencyKey,
    createId: context.createId,
    /**
     * Checks signature, window and simulation in one call to a node; nothing is written or sent.
     * `eip712`: the signing domain that the payer was given, by default the token's own.
     */
    verify: (transfer: Transfer, eip712?: Asset['eip712']) => verify(context, transfer, eip712),
    /**
     * Verifies, writes, broadcasts and waits. The caller has the claim. `waitMs` bounds the wait only:
     * settlement continues.
     */
    async settle(asked: PaymentRequest, waitMs: number): Promise<Outcome> {
      const { transfer, purpose, receivedAt, isUnknown } = asked
      if (context.progress.isStopping) return Refusals.unavailable(undefined)
      const known = isUnknown ? undefined : await find(transfer)
      const knownBlock = headOf(transfer)
      const request = { ...asked, id: context.createId() }
      const settleNew = () =>
        context.policy.isPaused(transfer.network)
          ? Refusals.unavailable(undefined)
          : Payments.settle(context, request, waitMs)
      const outcome = await (known
        ? Payments.joinKnown(context, known, request, waitMs)
        : settleNew())
      if (outcome.kind === 'unavailable' && purpose.bound) {
        noteUnsettled(context, transfer, { receivedAt, knownBlock })
      }
      context.metrics.settled(request, outcome, (now() - receivedAt) / 1000)
      return outcome
    },
    /** A known payment: waits for its transaction, or sends a reverted one again. */
    resume(
      payment: Payment,
      transfer: Transfer | undefined,
      { waitMs, requestId }: { waitMs: number; requestId?: string },
    ): Promise<Outcome> {
      const sent = context.progress.isStopping ? undefined : transfer
      return Payments.resumePayment(context, payment, { transfer: sent, requestId }, waitMs)
    },
    /**
     * Calls back with the id after a change of a payment's state (confirmed, reverted, expired, back
     * to broadcast) was committed, which may be before it is on the disk. May call without a change, so read the state.
     */
    onPayment: context.events.payments.on,
    /**
     * Stores the time of a credential, bound to this service, that arrived while nothing could be
     * sold.
     */
    noteUnsettled: (transfer: Transfer): void =>
      noteUnsettled(context, transfer, { receivedAt: now(), knownBlock: headOf(transfer) }),
    /** Whether a payment counts only after `confirmTwice` returns true. No I/O. */
    needsSecond: (payment: Pick<Payment, 'transfer' | 'purpose'>): boolean =>
      Payments.needsSecond(context, chainOf(context, payment.transfer.network), payment),
    /**
     * Whether a second node shows the transfer of a confirmed payment. Waits seconds for one that
     * lags behind, and logs differences. True with one URL. Never rejects.
     */
    confirmTwice: (payment: Payment): Promise<boolean> =>
      CrossCheck.confirm(context, chainOf(context, payment.transfer.network), payment),
    /** What the nodes show of a confirmed payment now. With one URL, throws RpcFault or RpcError. */
    observationOf: (payment: Payment): Promise<CrossCheck.Observation> =>
      CrossCheck.observationOf(context, chainOf(context, payment.transfer.network), payment),
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
  events.jobs.wakeAll()
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
