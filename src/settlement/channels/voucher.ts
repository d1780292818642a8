import type { Hex } from 'viem'
import type { Authorization, Charge } from '../../../db/Authorization'
import type { Channel, OnChain } from '../../../db/Channel'
import type { Payment, Purpose } from '../../../db/Payment'
import * as Refusals from '../read/refusals'
import type { Outcome } from '../send/Outcome'
import { rowOf } from '../send/transaction'
import { about, type ChainState, type Context, chainOf } from '../state/state'
import { untilWritten } from '../state/wait'
import type { Authorized, AuthorizeOptions } from '../upto/authorize'
import type { Forwarded } from '../upto/charges'
import { noteCharged } from './claims'
import { type Deposited, deposit } from './deposit'
import { readUntil } from './sponsored'
import {
  type ChargedAuthorization,
  type Presented,
  type Running,
  remember,
  type Settled,
} from './state'
import { mayTake, syncChannels } from './watch'

/*
 * A voucher in the place of a transfer. `authorize` reserves it in the ledger before its request is
 * forwarded, and `charge` writes what the answer costs as a confirmed payment. The chain has no part in
 * either, so nothing is left to be settled.
 */

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
  { id, receivedAt, client, requestId, waitMs = 0, rows }: AuthorizeOptions,
): Promise<Authorized | Refusals.PaymentRefusal> {
  const { ledger, channels, credit, progress, policy, now, log } = context
  const { network, asset, amountAtomic, signature, voucher } = transfer
  const chain = chainOf(context, network)
  if (asset !== chain.network.asset.address) throw new Error('not a channel of the asset')
  if (progress.isStopping || policy.isPaused(network)) return Refusals.unavailable(undefined)
  if (ledger.fault() !== undefined) return Refusals.unrecordable
  const { channelId, maxAtomic, config } = voucher
  const { merchant, fingerprint } = purpose
  // Whose risk a request is until it is charged: the money is there, but a request may make its upstream
  // fail, and then the work was for nothing. The signer, because a payer may not have chosen it.
  const debtor = { network, asset, payer: config.payerAuthorizer, merchant, client }
  let close = () => {}
  try {
    await credit.read(debtor, amountAtomic)
    const uncredited = credit.refuse(debtor, amountAtomic, { isSecured: true })
    if (uncredited) return uncredited
    close = credit.open(debtor, amountAtomic)
    const opened = await open(context, chain, transfer, waitMs)
    if (opened && opened.kind !== 'deposited') return opened
    const reserved = { id, maxAtomic, signature, fingerprint, at: now() }
    const baseAtomic = baseOf(transfer)
    const written = await ledger.channels.reserve({ channelId, baseAtomic, reserved })
    if (written === undefined) {
      // A crash of the database has undone it: the next request reads the chain.
      channels.known.delete(channelId)
      throw new Error(`channel ${channelId} is not in the ledger`)
    }
    // Another process has charged or reserved something since it was read, or a crash of the database has undone
    // a deposit.
    if (written !== 'reserved') {
      remember(channels, written)
      const refuse = (row: Channel) => refuseTake(context, chain, transfer, row)
      const refused = await refuseChannel(context, chain, transfer, refuse)
      return refused ?? outOfStep(context, await findChannel(context, channelId), busyDetail)
    }
    channels.running.set(id, { transfer, deposit: opened, rows, debtor, close })
    const authorization: Authorization = {
      ...{ id, transfer, purpose, receivedAt, knownBlock: chain.head.number },
      ...{ state: 'authorized', createdAt: now() },
    }
    return { kind: 'authorized', authorization }
  } catch (error) {
    log('settlement-fault', { ...about({ id, requestId }), error })
    return Refusals.unavailable(error)
  } finally {
    if (!channels.running.has(id)) close()
  }
}

/** Why the channel does not pay, or the deposit that was paid into it. Undefined: it pays as it is. */
async function open(
  context: Context,
  chain: ChainState,
  transfer: Presented,
  waitMs: number,
): Promise<Deposited | Refusals.PaymentRefusal | undefined> {
  const refuse = (row: Channel) => refuseTake(context, chain, transfer, row)
  if (transfer.voucher.kind !== 'deposit') return refuseChannel(context, chain, transfer, refuse)
  // A request that is not served costs no deposit.
  const early = await refuseChannel(context, chain, transfer, (row) => {
    return mayTake(context, chain, row) ?? refuseBase(context, transfer, row)
  })
  if (early) return early
  const paid = await deposit(context, chain, transfer, { waitMs })
  return paid.kind === 'deposited' ? (refuse(paid.channel) ?? paid) : paid
}

/**
 * Checks a channel as the memory has it. Before a refusal it is read again where several processes write, and
 * from the chain where its balance is too low: its payer may have sent a deposit, or an earlier process. Only a
 * deposit needs no channel.
 */
export async function refuseChannel(
  context: Context,
  chain: ChainState,
  transfer: Presented,
  check: (channel: Channel) => Refusals.PaymentRefusal | undefined,
): Promise<Refusals.PaymentRefusal | undefined> {
  const { ledger, channels } = context
  const { channelId, kind } = transfer.voucher
  const known = await findChannel(context, channelId)
  if (known === undefined)
    return kind === 'deposit' ? undefined : openUnknown(context, chain, transfer)
  const refused = check(known)
  if (refused === undefined) return undefined
  const isAbove = 'reason' in refused && refused.reason === aboveBalance
  if (isAbove) await syncChannels(context, chain, [channelId])
  const isRead = isAbove || ledger.lanes.isShared
  const read = isRead ? await ledger.channels.find(channelId) : undefined
  return read ? check(remember(channels, read)) : refused
}

/**
 * Stores a channel that this ledger does not have, as after a backup was restored: what the chain shows of it
 * is all that was charged. What was signed is never inferred from what a client says. Resolves with why it
 * does not pay.
 */
async function openUnknown(
  context: Context,
  chain: ChainState,
  transfer: Presented,
): Promise<Refusals.PaymentRefusal | undefined> {
  const isShown = ({ balanceAtomic }: OnChain) => balanceAtomic > 0n
  const channel = await readUntil(context, chain, transfer, { isShown, limitMs: 0 })
  if (channel === undefined) {
    const { network, voucher } = transfer
    const detail = `The channel ${voucher.channelId} has no money on ${network}: send a deposit.`
    return Refusals.refuse('invalid_batch_settlement_evm_channel_not_found', detail)
  }
  if (baseOf(transfer) !== channel.chargedAtomic)
    return { ...outOfStep(context, channel, unknownDetail), isUnknown: true }
  return refuseTake(context, chain, transfer, channel)
}

/** Why a voucher does not pay now. */
function refuseTake(
  context: Context,
  chain: ChainState,
  transfer: Presented,
  channel: Channel,
): Refusals.PaymentRefusal | undefined {
  const refused = mayTake(context, chain, channel) ?? refuseBase(context, transfer, channel)
  if (refused) return refused
  const { maxAtomic } = transfer.voucher
  if (maxAtomic <= channel.balanceAtomic) return undefined
  const detail = `The voucher is of ${maxAtomic}, and the channel has ${channel.balanceAtomic}: deposit more.`
  return outOfStep(context, channel, detail, aboveBalance)
}

const aboveBalance = 'invalid_batch_settlement_evm_cumulative_exceeds_balance'

/**
 * A claim publishes the voucher that it claims by, and everybody could spend what that allows above its
 * charge. Others were sent by their buyer only.
 */
function refuseBase(
  context: Context,
  transfer: Presented,
  channel: Channel,
): Refusals.PaymentRefusal | undefined {
  const { id, chargedAtomic, signed } = channel
  const { maxAtomic } = transfer.voucher
  if (baseOf(transfer) === chargedAtomic) {
    const isUnpublished = context.channels.unpublished.get(id) === maxAtomic
    if (signed?.maxAtomic !== maxAtomic || isUnpublished) return undefined
    const detail = `The voucher of ${maxAtomic} has paid for a request: sign another amount.`
    return outOfStep(context, channel, detail)
  }
  const detail =
    `The voucher is of ${maxAtomic}. It must be of ${chargedAtomic + transfer.amountAtomic}: ` +
    `${chargedAtomic} was charged before, and the price is ${transfer.amountAtomic}.`
  return outOfStep(context, channel, detail)
}

const unknownDetail =
  'This service has no record of the channel, and takes what the chain shows as charged: sign above that.'
export const busyDetail =
  'Another request of this channel is in progress: send it again, or use another channel beside it.'

/** The refusal that lets a client correct itself by the state of the channel, which shows its voucher. */
export function outOfStep(
  { channels }: Pick<Context, 'channels'>,
  channel: Channel | undefined,
  detail: string,
  reason: Refused['reason'] = 'invalid_batch_settlement_evm_cumulative_amount_mismatch',
): Refused {
  if (channel) channels.unpublished.delete(channel.id)
  return { kind: 'refused', reason, detail, ...(channel && { channel }) }
}

type Refused = Extract<Outcome, { kind: 'refused' }>

type Charged = Authorization & { charge: Charge }

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
  const { amountAtomic } = charged
  const { id } = authorization
  const running = channels.running.get(id)
  if (running === undefined) throw new Error(`${id} was ended before`)
  const { transfer, deposit, debtor } = running
  if (amountAtomic < 0n || amountAtomic > transfer.amountAtomic) {
    throw new Error(`the charge of ${id} is above its price`)
  }
  const { network, payer, voucher } = transfer
  const end = { ...authorization, charge: charged, delivered: forwarded.delivered }
  const release = () => ledger.channels.release(voucher.channelId, id)
  channels.running.delete(id)
  try {
    if (amountAtomic > 0n) {
      const settled = await write(context, end, running, forwarded.begins)
      credit.countCharged(debtor.payer, debtor.client)
      if (debtor.payer !== payer) credit.countSigned(debtor, amountAtomic)
      metrics.charged(network, 'metered')
      return { ...end, state: 'sent', settled }
    }
    await untilWritten(context, release)
    if (forwarded.isLost) {
      credit.countUnpaid(debtor.payer, debtor.client)
      credit.lose(id, debtor, transfer.amountAtomic)
    }
    metrics.charged(network, 'void')
    const channel = await findChannel(context, voucher.channelId)
    return { ...end, state: 'void', ...(channel && { settled: { channel, deposit } }) }
  } catch (error) {
    // What was not charged must not keep the channel reserved. Of a charge that was written it ends nothing.
    await release().catch(() => false)
    throw error
  } finally {
    running.close()
  }
}

async function write(
  context: Context,
  { id, purpose, receivedAt, knownBlock, createdAt, charge, delivered }: Charged,
  { transfer, rows, deposit }: Running,
  begins: boolean | undefined,
): Promise<Settled> {
  const { ledger, channels, metrics, now } = context
  const { channelId, maxAtomic } = transfer.voucher
  const { amountAtomic } = charge
  const at = now()
  const asked = { id, transfer: { ...transfer, amountAtomic }, purpose, receivedAt }
  const row = {
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
  const chargedAtomic = baseOf(transfer) + amountAtomic
  const covers = (signed: Channel['signed']) => signed && signed.maxAtomic >= chargedAtomic
  // Before the ledger has it, from where a claim may take it at once. Another process may, too.
  if (!ledger.lanes.isShared && !covers(channels.known.get(channelId)?.signed))
    channels.unpublished.set(channelId, maxAtomic)
  const written = await untilWritten(context, () => ledger.channels.charge({ row, rows }))
  if (written === undefined) throw new Error(`the reservation of ${id} is gone`)
  const before = await findChannel(context, channelId)
  if (before === undefined) throw new Error(`channel ${channelId} is not in the ledger`)
  const channel = remember(channels, {
    ...before,
    chargedAtomic,
    signed: covers(before.signed) ? before.signed : { maxAtomic, signature: transfer.signature },
    reserved: undefined,
  })
  metrics.paid(written)
  noteCharged(chainOf(context, transfer.network), channel, amountAtomic)
  return { payment: written, channel, deposit }
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
