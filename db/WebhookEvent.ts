import type * as Network from '../src/protocol/Network'
import { dayOf } from '../src/protocol/Time'
import { roomFor, type Tally } from './GrantBudget'
import type { NewGrant } from './GrantLedger'
import type { Order } from './Order'
import { type Payment, placeOf, schemeOf } from './Payment'
import type { Refund } from './Refund'
import type { WebhookEvent } from './webhooks'

/**
 * The events and their public data. Nothing of a buyer's request is in it beyond merchant and
 * route, and no credential, signature or token.
 */

export function paymentConfirmed(payment: Payment, at: number): WebhookEvent {
  const { transaction, logIndex, blockNumber } = payment
  return {
    type: 'payment.confirmed',
    subject: payment.id,
    // The same receipt that is recorded again, after a power loss, is the same event.
    occurrence: `${transaction} ${logIndex} ${blockNumber}`,
    at,
    data: {
      ...factsOf(payment),
      transaction: null,
      ...placeOf(payment),
      logIndex: logIndex ?? null,
      blockNumber: blockNumber === undefined ? null : Number(blockNumber),
    },
  }
}

/** The payer has the money back, or a part of it. */
export function paymentRefunded(payment: Payment, refund: Refund, at: number): WebhookEvent {
  const { account, amountAtomic, reason, transaction } = refund
  return {
    type: 'payment.refunded',
    subject: payment.id,
    // Recorded again after a reorganisation it is the same event.
    occurrence: `${transaction}`,
    at,
    data: {
      ...factsOf(payment),
      refundedAtomic: String(amountAtomic),
      refundedBy: account,
      refundReason: reason,
      refundTransaction: transaction ?? null,
    },
  }
}

/** `payment`: after the failed attempt. */
export function deliveryFailed(payment: Payment, at: number): WebhookEvent {
  const { upstreamStatus, attempts, redeemUntil } = payment
  return {
    type: 'delivery.failed',
    subject: payment.id,
    occurrence: `${attempts}`,
    at,
    data: {
      ...factsOf(payment),
      attempts,
      upstreamStatus: upstreamStatus ?? null,
      redeemableUntil: redeemUntil === undefined ? null : isoOf(redeemUntil),
    },
  }
}

/** Payments of a merchant whose upstream gave nothing since a time: an alert, and no webhook. */
export function deliveriesFailed(
  merchant: string,
  failed: { payments: number; since: number; route: string; upstreamStatus: number | undefined },
  at: number,
): WebhookEvent {
  const { payments, since, route, upstreamStatus = null } = failed
  const data = { merchant, payments, since: isoOf(since), route, upstreamStatus }
  return changed('delivery.failed', merchant, at, data)
}

function factsOf(payment: Payment) {
  const { id, purpose, transfer } = payment
  const { product, protocol, merchant, route } = purpose
  const { network, asset, amountAtomic, upto, payer, payee } = transfer
  return {
    payment: id,
    product,
    protocol,
    scheme: schemeOf(payment),
    merchant: merchant === '' ? null : merchant,
    route: route === '' ? null : route,
    network,
    asset,
    amountAtomic: String(amountAtomic),
    ...(upto === undefined ? {} : { ceilingAtomic: String(upto.ceilingAtomic) }),
    payer,
    payee,
  }
}

/** `asset`: the contract of the payment's asset. */
export function orderChanged(order: Order, asset: string): WebhookEvent {
  const { id, state, updatedAt, deliveredAtomic, returnedAtomic } = order
  return {
    type: `order.${state}`,
    subject: id,
    occurrence: `${updatedAt} ${order.refundAttempts}`,
    at: updatedAt,
    data: {
      order: id,
      payment: order.paymentId,
      state,
      network: order.network,
      asset,
      amountAtomic: String(order.totalAtomic),
      swapAtomic: String(order.usdgAtomic),
      symbol: order.symbol,
      token: order.token,
      deliveredTokenAtomic: deliveredAtomic === undefined ? null : String(deliveredAtomic),
      returnedAtomic: returnedAtomic === undefined ? null : String(returnedAtomic),
      payer: order.payer,
      recipient: order.recipient,
      settlementTransaction: order.settlementTx,
      swapTransaction: order.swapTx ?? null,
      refundTransaction: order.refundTx ?? null,
      refundReason: order.refundReason ?? null,
      heldReason: order.heldReason ?? null,
    },
  }
}

export function networkPaused(network: Network.Id, reason: string, at: number): WebhookEvent {
  return changed('network.paused', network, at, { network, ...withReason(reason) })
}

export function networkResumed(network: Network.Id, at: number): WebhookEvent {
  return changed('network.resumed', network, at, { network })
}

/**
 * `payments`: how many lone payments the balance pays for at the fees of now. `sendWei`: what to
 * send, so that it pays for about a thousand.
 */
type RelayerGas = {
  network: Network.Id
  relayer: string
  balanceWei: bigint
  payments: bigint
  sendWei: bigint
}

export function gasChanged(gas: RelayerGas, isLow: boolean, at: number): WebhookEvent {
  const { network, relayer, balanceWei, payments, sendWei } = gas
  const balance = { network, relayer, balanceWei: String(balanceWei), payments: Number(payments) }
  return {
    type: isLow ? 'gas.low' : 'gas.refilled',
    subject: network,
    occurrence: `${relayer} ${at}`,
    at,
    data: isLow ? { ...balance, sendWei: String(sendWei) } : balance,
  }
}

/** Refunds of a network that an operator must look at. `reason`: of the first of them. */
export type StuckRefunds = {
  network: Network.Id
  account: string
  reason: string
  payments: number
  amountAtomic: bigint
}

/** `stuck` is undefined when none waits any more. */
export function refundsChanged(
  network: Network.Id,
  stuck: StuckRefunds | undefined,
  at: number,
): WebhookEvent {
  if (stuck === undefined) return changed('refund.continues', network, at, { network })
  const data = { ...stuck, amountAtomic: String(stuck.amountAtomic) }
  return changed('refund.waits', network, at, data)
}

/** Claims of payment channels that are not made in time. */
export type LateClaims = {
  network: Network.Id
  reason: string
  /** Unix ms. */
  since: number
  unclaimedAtomic: bigint
}

/** `late` is undefined when claims come in time again. */
export function claimsChanged(
  network: Network.Id,
  late: LateClaims | undefined,
  at: number,
): WebhookEvent {
  if (late === undefined) return changed('channel.continues', network, at, { network })
  const { since, unclaimedAtomic } = late
  const data = { since: isoOf(since), unclaimedAtomic: String(unclaimedAtomic) }
  return changed('channel.waits', network, at, { network, ...withReason(late.reason), ...data })
}

/** `reason`: why the upstream delivers nothing; undefined when it delivers again. */
export function upstreamChanged(
  merchant: string,
  reason: string | undefined,
  at: number,
): WebhookEvent {
  const type = reason === undefined ? 'upstream.accepts' : 'upstream.refuses'
  return changed(type, merchant, at, { merchant, ...withReason(reason) })
}

/** `reason`: why clients cannot use HTTPS; undefined when they can again. */
export function certificateChanged(
  domain: string,
  reason: string | undefined,
  at: number,
): WebhookEvent {
  const type = reason === undefined ? 'certificate.works' : 'certificate.fails'
  return changed(type, domain, at, { domain, ...withReason(reason) })
}

export type SpentBudget = {
  network: Network.Id
  product: string
  /** `gas`: `gas_per_day_wei`; `grants`: the sponsor's grants and their gas. */
  budget: 'gas' | 'grants'
  spentWei: bigint
  budgetWei: bigint
  /** Of the sponsor. */
  grants?: { sent: number; max: number }
}

/** Once for each budget and UTC day. */
export function budgetSpent(spent: SpentBudget, at: number): WebhookEvent {
  const { network, product, budget, spentWei, budgetWei, grants } = spent
  const day = dayOf(at)
  return {
    type: 'budget.spent',
    subject: network,
    occurrence: `${product} ${day} ${budgetWei} ${grants?.max ?? ''}`,
    at,
    data: {
      network,
      product,
      budget,
      day,
      spentWei: String(spentWei),
      budgetWei: String(budgetWei),
      ...(grants === undefined ? {} : { grants: grants.sent, grantsPerDay: grants.max }),
    },
  }
}

/** Undefined while there is room for another grant like this one. `tally` includes this one. */
export function grantsSpent({ row, budget }: NewGrant, tally: Tally): WebhookEvent | undefined {
  const { network, createdAt } = row
  if (roomFor(tally, budget, row.amountWei + row.feeWei) !== 'spent') return undefined
  const sum = { network, product: 'sponsor', spentWei: tally.wei, budgetWei: budget.wei }
  const grants = { sent: tally.grants, max: budget.grants }
  return budgetSpent({ ...sum, budget: 'grants', grants }, createdAt)
}

/** A message to one endpoint, by which an operator sees whether it arrives. */
export function webhookTest(endpoint: string, at: number): WebhookEvent {
  const data = { text: 'An operator has sent this test at /admin.' }
  return { ...changed('webhook.test', endpoint, at, data), endpoint }
}

/** An event that its time alone tells from others of its type and subject. */
function changed(
  type: WebhookEvent['type'],
  subject: string,
  at: number,
  data: WebhookEvent['data'],
): WebhookEvent {
  return { type, subject, occurrence: `${at}`, at, data }
}

/** Longest text that others write, such as the message of a node. */
const textMax = 300

function withReason(reason: string | undefined) {
  return reason === undefined ? {} : { reason: reason.slice(0, textMax) }
}

/** The JSON of an event. */
export function bodyOf({ type, at, data }: WebhookEvent): string {
  return JSON.stringify({ type, timestamp: isoOf(at), data })
}

function isoOf(at: number): string {
  return new Date(at).toISOString()
}
