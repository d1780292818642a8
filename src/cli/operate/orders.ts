import type { Ledger } from '../../../db/Ledger'
import type { HeldReason, Order as StoredOrder } from '../../../db/Order'
import type { JobRow } from '../../../db/schema'
import * as Amount from '../../protocol/Amount'
import * as Order from '../../stock/Order'
import { CommandError } from '../Command'
import type { Run } from '../commands'
import { poll } from '../poll'
import { withLedger } from './database'

type Options = Run<'orders'>

/** Decimals of USDG. */
const assetDecimals = 6
const listed = 50

/**
 * Shows stock orders to the operator, while a service may be running. `retry` writes a request into
 * the database. The service reads it within seconds, or at its next start. Returns the exit code: 1
 * when there is no such order, or when the retry had no effect yet. `waitMs`: how long it
 * waits for a running service to act.
 */
export function orders(options: Options, waitMs = 10_000): Promise<number> {
  const { verb, operand: id } = options
  return withLedger(options, async (ledger) => {
    if (verb === 'list') return list(ledger, options)
    const order = Order.isId(id) ? await ledger.orders.find(id) : undefined
    if (order === undefined)
      throw new CommandError(`there is no order ${id}; turnpike orders list shows the newest`)
    return verb === 'show' ? show(ledger, order, options) : retry(ledger, order, options, waitMs)
  })
}

async function list(ledger: Ledger, { now, out }: Options): Promise<number> {
  const open = await ledger.orders.open()
  const unseen = await unseenOf(ledger, open, now())
  const held = open.filter(({ state }) => state === 'held')
  const rest = open.filter(({ state }) => state !== 'held')
  const seen = new Set(open.map(({ id }) => id))
  const page = { payer: undefined, limit: listed, before: undefined }
  const history = await ledger.orders.history(page)
  const newest = history.filter(({ id }) => !seen.has(id))
  for (const order of [...held, ...rest, ...newest].slice(0, Math.max(listed, open.length)))
    out(lineOf(order, unseen.has(order.id)))
  out(`${held.length} held, ${rest.length} unfinished`)
  return 0
}

function lineOf(order: StoredOrder, isUnseen: boolean): string {
  const { id, state, symbol, usdgAtomic, payer, heldReason, refundReason, createdAt } = order
  const usdg = Amount.toDecimal(usdgAtomic, assetDecimals)
  const reason = heldReason ?? refundReason ?? (isUnseen ? 'settlement-unseen' : '')
  const columns = [id, state.padEnd(9), symbol.padEnd(6), usdg.padStart(11), payer]
  return [...columns, new Date(createdAt).toISOString(), reason].join('  ').trimEnd()
}

/** A confirmed payment settles its order at once, unless no node shows its receipt again, ms. */
const unseenMs = 30_000

/** Orders that are not settled although their payment has been confirmed for a while. */
async function unseenOf(
  { payments }: Ledger,
  orders: readonly StoredOrder[],
  now: number,
): Promise<ReadonlySet<string>> {
  const unseen = new Set<string>()
  for (const { id, state, paymentId } of orders) {
    const payment = state === 'settling' ? await payments.findById(paymentId) : undefined
    if (payment?.state !== 'confirmed' || payment.confirmedAt === undefined) continue
    if (payment.confirmedAt <= now - unseenMs) unseen.add(id)
  }
  return unseen
}

async function show(ledger: Ledger, order: StoredOrder, { now, out }: Options): Promise<number> {
  const { paymentId, refundAttempts, retryAt } = order
  out(
    JSON.stringify(
      { ...Order.toJson(order, assetDecimals), paymentId, refundAttempts, retryAt },
      null,
      2,
    ),
  )
  for (const { id, state, transactionHash, nonce } of await jobsOf(ledger, order)) {
    out(`${id}  ${state}  account nonce ${nonce}  ${transactionHash}`)
  }
  if (order.heldReason !== undefined) out(advice[order.heldReason])
  const unseen = await unseenOf(ledger, [order], now())
  if (unseen.has(order.id)) out(unseenAdvice)
  return 0
}

/** The swap and the refunds of an order, by account nonce. */
async function jobsOf({ jobs }: Ledger, order: StoredOrder): Promise<JobRow[]> {
  const ids = [Order.swapId(order)]
  for (let attempt = 1; attempt <= Math.max(1, order.refundAttempts); attempt++)
    ids.push(Order.refundId({ ...order, refundAttempts: attempt }))
  const found = (await Promise.all(ids.map((id) => jobs.find(id)))).filter(
    (job) => job !== undefined,
  )
  return found.sort((left, right) => left.nonce - right.nonce)
}

const unseenAdvice =
  'settlement-unseen: the payment was confirmed, and no node shows its receipt now. Nothing is sent ' +
  'on it; it continues by itself when a node does. Check settlementTx and the nodes of rpc_urls.'

const advice: Readonly<Record<HeldReason, string>> = {
  'delivery-not-found':
    'The swap succeeded and its receipt shows no Transfer from the pool to the recipient. It is never ' +
    'refunded. Retry asks a node for the receipt again and delivers if the Transfer is there; what was ' +
    'delivered by hand stays held.',
  'refund-failed':
    'The asset refused the refund, for instance because it blocks the payer. Retry when it can ' +
    'receive again: another refund is written once a reorganisation cannot undo the failed one.',
  'refund-not-found':
    'The refund succeeded and its receipt shows no Transfer of the whole amount to the payer. Retry asks ' +
    'a node for the receipt again.',
  'settlement-lost': 'A reorganisation removed the payment for good: there is nothing to refund.',
  'settlement-disputed':
    'One node of rpc_urls shows the payment, another one shows that its transaction did not pay. Nothing ' +
    'was sent. Check settlementTx in an explorer, remove the faulty URL from rpc_urls, restart, and ' +
    'retry: the order continues when the nodes agree that it was paid.',
}

async function retry(
  { orders: stored }: Ledger,
  { id, state }: StoredOrder,
  { now, out }: Options,
  waitMs: number,
): Promise<number> {
  if ((await stored.move({ kind: 'request-retry', id, at: now() })) === undefined) {
    out(`${id} is ${state}: only an order that is held can be retried`)
    return 1
  }
  const current = await poll({ now, waitMs }, () => stored.find(id), isDecided)
  if (current?.retryAt !== undefined) {
    out('No effect yet: no service is running, or no node answers. The request stays.')
    return 1
  }
  const { heldReason } = current ?? {}
  out(`${id} is ${current?.state}${heldReason === undefined ? '' : `: ${heldReason}`}`)
  if (heldReason === undefined) return 0
  out(advice[heldReason])
  return 1
}

/** A result that was read from the chain is recorded within a moment. */
function isDecided(order: StoredOrder | undefined): boolean {
  const { state, retryAt, refundTx } = order ?? {}
  const isDeciding = state === 'swapping' || (state === 'refunding' && refundTx !== undefined)
  return retryAt === undefined && !isDeciding
}
