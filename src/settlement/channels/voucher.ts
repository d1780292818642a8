import type { Hex } from 'viem'
import type { Authorization, Charge } from '../../../db/Authorization'
import type { Channel, Reserved } from '../../../db/Channel'
import { storageCode } from '../../../db/fault'
import type { Rows } from '../../../db/Ledger'
import type { Payment, Purpose } from '../../../db/Payment'
import * as Refusals from '../read/refusals'
import type { Outcome } from '../send/Outcome'
import { rowOf } from '../send/transaction'
import { about, type ChainState, type Context, chainOf } from '../state/state'
import { type Authorized, type AuthorizeOptions, newCeiling } from '../upto/authorize'
import type { Forwarded } from '../upto/charges'
import type { Debtor } from '../upto/credit'
import { noteCharged } from './claims'
import { deposit } from './deposit'
import {
  type ChargedAuthorization,
  type PaidDeposit,
  type Presented,
  type Running,
  remember,
  type Settled,
} from './state'
import { mayTake, readChannels } from './watch'

/*
 * A voucher in the place of a transfer. `authorize` reserves it in the ledger before its request is
 * forwarded, and `charge` writes what the answer costs as a confirmed payment. The chain has no part in
 * either, so nothing is left to be settled.
 */

/** What only a voucher needs of its request. */
export type VoucherOptions = {
  requestId: string
  /** Longest wait for a deposit, ms. */
  waitMs: number
  /** Written with the charge. */
  rows: Rows | undefined
  /** Called when the next request of the channel may begin. */
  onEnd: (() => void) | undefined
}

type Options = Pick<AuthorizeOptions, 'id' | 'receivedAt' | 'client'> & VoucherOptions

/** The channel of a voucher, from memory or else from the ledger. Undefined: the ledger lacks it. */
export async function findChannel(
  { channels, ledger }: Pick<Context, 'channels' | 'ledger'>,
  id: Hex,
): Promise<Channel | undefined> {
  const known = channels.known.get(id)
  if (known !== undefined) return known
  const read = await ledger.channels.find(id)
  return read && remember(channels, read)
}

/** What was charged before the request of a voucher, as its client takes it. */
function baseOf({ voucher, amountAtomic }: Presented): bigint {
  return voucher.maxAtomic - amountAtomic
}

/**
 * The payment that a voucher has made already. One whose base is all that was charged has made none, and
 * costs no read.
 */
export async function findCharged(
  context: Context,
  transfer: Presented,
): Promise<Payment | undefined> {
  const channel = await findChannel(context, transfer.voucher.channelId)
  if (channel === undefined || baseOf(transfer) >= channel.chargedAtomic) return undefined
  // The payer may have used the same nonce elsewhere.
  const known = await context.ledger.payments.find(transfer)
  return known?.transfer.method === 'channel' ? known : undefined
}

/**
 * Checks and reserves a voucher; a deposit is paid in first. The caller has the turn of the channel, has
 * checked the signature, and ends with `charge`.
 */
export async function authorize(
  context: Context,
  transfer: Presented,
  purpose: Purpose,
  options: Options,
): Promise<Authorized | Refusals.PaymentRefusal> {
  const { ledger, channels, credit, now, log } = context
  const { id, receivedAt, rows, onEnd } = options
  const chain = chainOf(context, transfer.network)
  const refused = refuseUnread(context, chain, transfer)
  if (refused) return refused
  const debtor = debtorOf(transfer, purpose, options.client)
  try {
    await credit.read(debtor, transfer.amountAtomic)
    const opened =
      credit.refuse(debtor, transfer.amountAtomic, { isSecured: true }) ??
      (await open(context, chain, transfer, options))
    if (!('channel' in opened) || 'reason' in opened) return opened
    const { channel } = opened
    const reserved: Reserved = {
      id,
      maxAtomic: transfer.voucher.maxAtomic,
      signature: transfer.signature,
      fingerprint: purpose.fingerprint,
      at: now(),
    }
    const written = await ledger.channels.reserve(channel.id, {
      baseAtomic: baseOf(transfer),
      reserved,
    })
    if (written === undefined) throw new Error(`channel ${channel.id} is not in the ledger`)
    // Another process has charged or reserved something since it was read.
    if (written !== 'reserved') {
      const current = remember(channels, written)
      return refuseTake(context, chain, transfer, current) ?? outOfStep(current, busyDetail)
    }
    const { deposit } = opened
    channels.running.set(id, { channelId: channel.id, deposit, rows, debtor, onEnd })
    const asked = { id, transfer, purpose, receivedAt }
    const authorization = newCeiling(asked, chain.head.number, now())
    return { kind: 'authorized', authorization: { ...authorization, state: 'authorized' } }
  } catch (error) {
    log('settlement-fault', { ...about({ id, requestId: options.requestId }), error })
    return Refusals.unavailable(error)
  }
}

/** The checks that need neither the channel nor a node. */
function refuseUnread(
  { ledger, progress, policy }: Context,
  { network }: ChainState,
  { asset }: Presented,
): Refusals.PaymentRefusal | undefined {
  if (asset !== network.asset.address) throw new Error('not a channel of the asset')
  if (progress.isStopping || policy.isPaused(network.id)) return Refusals.unavailable(undefined)
  return ledger.fault() === undefined ? undefined : Refusals.unrecordable
}

/**
 * Whose risk a request is until it is charged: the money is there, but a request may make its upstream fail,
 * and then the work was for nothing. The signer, because a payer may not have chosen it.
 */
function debtorOf(
  { network, asset, voucher }: Presented,
  { merchant }: Purpose,
  client: string | undefined,
): Debtor {
  return { network, asset, payer: voucher.config.payerAuthorizer, merchant, client }
}

type Opened = { channel: Channel; deposit: PaidDeposit | undefined }

/** The channel that pays, after its deposit. */
async function open(
  context: Context,
  chain: ChainState,
  transfer: Presented,
  options: Options,
): Promise<Opened | Refusals.PaymentRefusal> {
  const { voucher } = transfer
  const known = await findChannel(context, voucher.channelId)
  if (voucher.kind === 'deposit') {
    // A request that is not served costs no deposit.
    const early =
      known &&
      (await refuseKnown(context, transfer, known, (row) => {
        return mayTake(context, chain, row) ?? refuseBase(transfer, row)
      }))
    if (early !== undefined && 'kind' in early) return early
    const paid = await deposit(context, chain, transfer, options)
    if (paid.kind !== 'deposited') return paid
    const refused = refuseTake(context, chain, transfer, paid.channel)
    return refused ?? { channel: paid.channel, deposit: paid }
  }
  if (known === undefined) return openUnknown(context, chain, transfer)
  const checked = await refuseKnown(context, transfer, known, (row) =>
    refuseTake(context, chain, transfer, row),
  )
  return 'kind' in checked ? checked : { channel: checked, deposit: undefined }
}

/** Checks a channel in memory. With several processes it is read again before it is refused. */
async function refuseKnown(
  context: Context,
  transfer: Presented,
  known: Channel,
  check: (channel: Channel) => Refusals.PaymentRefusal | undefined,
): Promise<Channel | Refusals.PaymentRefusal> {
  const { ledger, channels } = context
  const refused = check(known)
  if (refused === undefined) return (await refuseSpent(context, transfer, known)) ?? known
  const read = ledger.lanes.isShared ? await ledger.channels.find(known.id) : undefined
  if (read === undefined) return refused
  const current = remember(channels, read)
  return check(current) ?? (await refuseSpent(context, transfer, current)) ?? current
}

/**
 * A voucher pays once. One that was charged less than it allows is published by its claim, and everybody
 * could spend the rest. A voucher above all others before costs no read.
 */
async function refuseSpent(
  { ledger }: Context,
  { voucher, signature }: Presented,
  channel: Channel,
): Promise<Refusals.PaymentRefusal | undefined> {
  const { signed } = channel
  const isNew = signed === undefined || voucher.maxAtomic > signed.maxAtomic
  if (isNew || !(await ledger.channels.isSpent(channel, signature))) return undefined
  const detail = `The voucher of ${voucher.maxAtomic} has paid for a request: sign another amount.`
  return outOfStep(channel, detail)
}

/**
 * A channel that this ledger does not have, as after a backup was restored: what the chain shows of it
 * is all that was charged. What was signed is never inferred from what a client says.
 */
export async function openUnknown(
  context: Context,
  chain: ChainState,
  transfer: Presented,
): Promise<Opened | Refusals.PaymentRefusal> {
  const { ledger, channels, now } = context
  const { channelId: id, config } = transfer.voucher
  const state = (await readChannels(chain, [id])).get(id)
  if (state === undefined) return Refusals.unavailable(undefined)
  if (state.balanceAtomic === 0n) {
    const detail = `The channel ${id} has no money on ${transfer.network}: send a deposit.`
    return Refusals.refuse('invalid_batch_settlement_evm_channel_not_found', detail)
  }
  await ledger.channels.insert({ id, network: chain.network.id, config }, state, now())
  const row = await ledger.channels.find(id)
  if (row === undefined) throw new Error(`channel ${id} was not stored`)
  const channel = remember(channels, row)
  if (baseOf(transfer) !== channel.chargedAtomic) {
    return { ...outOfStep(channel, unknownDetail), isUnknown: true }
  }
  return refuseTake(context, chain, transfer, channel) ?? { channel, deposit: undefined }
}

/** Why a voucher does not pay now. */
function refuseTake(
  context: Context,
  chain: ChainState,
  transfer: Presented,
  channel: Channel,
): Refusals.PaymentRefusal | undefined {
  const refused = mayTake(context, chain, channel) ?? refuseBase(transfer, channel)
  if (refused) return refused
  const { maxAtomic } = transfer.voucher
  if (maxAtomic <= channel.balanceAtomic) return undefined
  const detail = `The voucher is of ${maxAtomic}, and the channel has ${channel.balanceAtomic}: deposit more.`
  const reason = 'invalid_batch_settlement_evm_cumulative_exceeds_balance'
  return { kind: 'refused', reason, detail, channel }
}

function refuseBase(transfer: Presented, channel: Channel): Refusals.PaymentRefusal | undefined {
  const { chargedAtomic } = channel
  if (baseOf(transfer) === chargedAtomic) return undefined
  const { maxAtomic } = transfer.voucher
  const detail =
    `The voucher is of ${maxAtomic}. It must be of ${chargedAtomic + transfer.amountAtomic}: ` +
    `${chargedAtomic} was charged before, and the price is ${transfer.amountAtomic}.`
  return outOfStep(channel, detail)
}

const unknownDetail =
  'This service has no record of the channel, and takes what the chain shows as charged: sign above that.'
export const busyDetail =
  'Another request of this channel is in progress: send it again, or use another channel beside it.'

/** The refusal that lets a client correct itself by the state of the channel. */
export function outOfStep(channel: Channel | undefined, detail: string): Refused {
  const reason = 'invalid_batch_settlement_evm_cumulative_amount_mismatch'
  return { kind: 'refused', reason, detail, ...(channel && { channel }) }
}

type Refused = Extract<Outcome, { kind: 'refused' }>

/**
 * Charges a reserved voucher what its answer costs; 0 releases it. Resolves when that is on the disk.
 * Rejects when the reservation is gone: another process took this one for dead.
 */
export async function charge(
  context: Context,
  authorization: Authorization,
  charged: Charge,
  forwarded: Forwarded,
): Promise<ChargedAuthorization> {
  const { ledger, channels, credit, metrics } = context
  const { id, transfer } = authorization
  const { amountAtomic } = charged
  const running = channels.running.get(id)
  if (running === undefined) throw new Error(`${id} was ended before`)
  if (amountAtomic < 0n || amountAtomic > transfer.amountAtomic) {
    throw new Error(`the charge of ${id} is above its price`)
  }
  const { channelId, deposit, debtor } = running
  const end = { ...authorization, charge: charged, delivered: forwarded.delivered }
  channels.running.delete(id)
  try {
    if (amountAtomic > 0n) {
      const charging = { running, amountAtomic, forwarded }
      const settled = await write(context, authorization, charging)
      credit.countCharged(debtor.payer, debtor.client)
      metrics.charged(transfer.network, 'metered')
      return { ...end, state: 'sent', settled }
    }
    await untilWritten(context, () => ledger.channels.release(channelId, id))
    if (forwarded.isLost) {
      credit.countUnpaid(debtor.payer, debtor.client)
      credit.lose(id, debtor, transfer.amountAtomic)
    }
    metrics.charged(transfer.network, 'void')
    const channel = await findChannel(context, channelId)
    return { ...end, state: 'void', ...(channel && { settled: { channel, deposit } }) }
  } catch (error) {
    // What was not charged must not keep the channel reserved. Of a charge that was written it ends nothing.
    await ledger.channels.release(channelId, id).catch(() => false)
    throw error
  } finally {
    running.onEnd?.()
  }
}

type Charging = { running: Running; amountAtomic: bigint; forwarded: Forwarded }

async function write(
  context: Context,
  { id, transfer, purpose, receivedAt, knownBlock, createdAt }: Authorization,
  { running, amountAtomic, forwarded }: Charging,
): Promise<Settled> {
  const { ledger, channels, metrics, now } = context
  const { channelId, rows, deposit } = running
  const { delivered, begins } = forwarded
  const at = now()
  const asked = { id, transfer: { ...transfer, amountAtomic }, purpose, receivedAt }
  const payment = {
    ...rowOf(asked, channelId, { knownBlock, at: createdAt }),
    state: 'confirmed' as const,
    confirmedAt: at,
    ...(begins && { delivery: 'delivering' as const, attempts: 1 }),
    ...(delivered && {
      delivery: 'delivered' as const,
      attempts: 1,
      deliveredAt: at,
      ...delivered,
    }),
  }
  const input = { channelId, reservationId: id, payment, rows }
  const written = await untilWritten(context, () => ledger.channels.charge(input))
  if (written === undefined) throw new Error(`the reservation of ${id} is gone`)
  const before = await findChannel(context, channelId)
  if (before === undefined) throw new Error(`channel ${channelId} is not in the ledger`)
  const maxAtomic = transfer.voucher?.maxAtomic ?? 0n
  const isGreatest = (before.signed?.maxAtomic ?? 0n) <= maxAtomic
  const channel = remember(channels, {
    ...before,
    chargedAtomic: maxAtomic - transfer.amountAtomic + amountAtomic,
    signed: isGreatest ? { maxAtomic, signature: transfer.signature } : before.signed,
    reserved: undefined,
  })
  metrics.paid(written)
  noteCharged(context, chainOf(context, transfer.network), channel, amountAtomic)
  return { payment: written, channel, deposit }
}

/** Repeats a write while the storage fails: an answer is kept back until its charge is on the disk. */
async function untilWritten<T>(
  { ledger, progress }: Pick<Context, 'ledger' | 'progress'>,
  change: () => Promise<T>,
): Promise<T> {
  for (;;) {
    try {
      return await change()
    } catch (error) {
      if (storageCode(error) === undefined) throw error
      await ledger.writable(progress.signal)
    }
  }
}

/** The payment of a charge, which is confirmed since the charge was written. */
export function outcomeOf(
  { metrics, now }: Pick<Context, 'metrics' | 'now'>,
  { id, transfer, purpose, receivedAt, settled }: ChargedAuthorization,
): Outcome {
  if (settled?.payment === undefined) throw new Error(`${id} was not charged`)
  const { payment } = settled
  const isStarted = payment.delivery === 'delivering' && { deliveryStarted: true as const }
  const outcome: Outcome = { kind: 'confirmed', payment, settled, ...isStarted }
  metrics.settled({ transfer, purpose }, outcome, (now() - receivedAt) / 1000)
  return outcome
}
