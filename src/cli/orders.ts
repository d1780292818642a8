import { type Db, openBeside } from '../../db/open'
import { write } from '../../db/write'
import * as Amount from '../protocol/Amount'
import * as Order from '../stock/Order'
import { createStore, type Store } from '../stock/store'

export type OrdersOptions = {
  dataDir: string
  /** `list`, `show` or `retry`. */
  verb: string
  /** Id of an order; ignored by `list`. */
  id: string
  /** Unix ms. */
  now: () => number
  /** Prints one line. */
  out: (line: string) => void
  /** How long `retry` waits for a running service to act, ms. */
  waitMs?: number
}

/** Decimals of USDG, and of every stock token. */
const units: Order.Units = { assetDecimals: 6, tokenDecimals: 18 }
const listed = 50

/**
 * Shows stock orders to the operator, while a service may be running. `retry` writes a request into
 * the database. The service reads it within seconds, or at its next start. Returns the exit code: 1
 * when there is no such order, or when the retry had no effect yet.
 */
export async function orders(options: OrdersOptions): Promise<number> {
  const { dataDir, out } = options
  const db = openBeside({ dataDir })
  if (db === undefined) {
    out(`turnpike: there is no database in ${dataDir}`)
    return 1
  }
  try {
    if (!hasOrders(db)) {
      out(
        'turnpike: this database has no orders yet, or those of an older version: start serve once',
      )
      return 1
    }
    const store = createStore(db)
    if (options.verb === 'list') return list(db, store, options)
    const order = Order.isId(options.id) ? store.find(options.id) : undefined
    if (order === undefined) {
      out(`turnpike: there is no order ${options.id}`)
      return 1
    }
    return options.verb === 'show'
      ? show(db, order, options)
      : await retry(db, store, order, options)
  } finally {
    db.close()
  }
}

function hasOrders({ sqlite }: Db): boolean {
  const row = sqlite
    .query<{ name: string }, []>(
      "SELECT name FROM pragma_table_info('orders') WHERE name = 'returned_atomic'",
    )
    .get()
  return row !== null
}

function list(db: Db, store: Store, { now, out }: OrdersOptions): number {
  const open = store.open()
  const unseen = unseenOf(db, now())
  const held = open.filter(({ state }) => state === 'held')
  const rest = open.filter(({ state }) => state !== 'held')
  const seen = new Set(open.map(({ id }) => id))
  const newest = store
    .history({ payer: undefined, limit: listed, before: undefined })
    .filter(({ id }) => !seen.has(id))
  for (const order of [...held, ...rest, ...newest].slice(0, Math.max(listed, open.length))) {
    out(lineOf(order, unseen.has(order.id)))
  }
  out(`${held.length} held, ${rest.length} unfinished`)
  return 0
}

function lineOf(order: Order.Order, isUnseen: boolean): string {
  const { id, state, symbol, usdgAtomic, payer, heldReason, refundReason, createdAt } = order
  const usdg = Amount.toDecimal(usdgAtomic, units.assetDecimals)
  const reason = heldReason ?? refundReason ?? (isUnseen ? 'settlement-unseen' : '')
  const columns = [id, state.padEnd(9), symbol.padEnd(6), usdg.padStart(11), payer]
  return [...columns, new Date(createdAt).toISOString(), reason].join('  ').trimEnd()
}

/** A confirmed payment settles its order at once, unless no node shows its receipt again, ms. */
const unseenMs = 30_000

/** Orders that are not settled although their payment has been confirmed for a while. */
function unseenOf({ sqlite }: Db, now: number): ReadonlySet<string> {
  const rows = sqlite
    .query<{ id: string }, [number]>(
      'SELECT orders.id FROM orders JOIN payments ON payments.id = orders.payment_id ' +
        "WHERE orders.state = 'settling' AND payments.state = 'confirmed' AND confirmed_at <= ?",
    )
    .all(now - unseenMs)
  return new Set(rows.map(({ id }) => id))
}

function show(db: Db, order: Order.Order, { now, out }: OrdersOptions): number {
  const { paymentId, refundAttempts, retryAt } = order
  out(
    JSON.stringify({ ...Order.toJson(order, units), paymentId, refundAttempts, retryAt }, null, 2),
  )
  for (const { id, state, hash, nonce } of jobsOf(db, order)) {
    out(`${id}  ${state}  account nonce ${nonce}  ${hash}`)
  }
  if (order.heldReason !== undefined) out(advice[order.heldReason])
  if (unseenOf(db, now()).has(order.id)) out(unseenAdvice)
  return 0
}

type JobLine = { id: string; state: string; hash: string; nonce: number }

function jobsOf({ sqlite }: Db, { id }: Order.Order): JobLine[] {
  return sqlite
    .query<JobLine, [string, string, string]>(
      'SELECT id, state, transaction_hash AS hash, nonce FROM jobs ' +
        'WHERE id IN (?, ?) OR id GLOB ? ORDER BY nonce',
    )
    .all(`swap:${id}`, `refund:${id}`, `refund:${id}:*`)
}

const unseenAdvice =
  'settlement-unseen: the payment was confirmed, and no node shows its receipt now. Nothing is sent ' +
  'on it; it goes on by itself as soon as a node does. Check settlementTx and the nodes of rpc_urls.'

const advice: Readonly<Record<Order.HeldReason, string>> = {
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
    'retry: the order goes on when the nodes agree that it was paid.',
}

async function retry(
  db: Db,
  store: Store,
  order: Order.Order,
  { now, out, waitMs = 10_000 }: OrdersOptions,
): Promise<number> {
  const { id, state } = order
  if (write(db, () => store.requestRetry(id, now()) ?? null) === null) {
    out(`${id} is ${state}: only an order that is held can be retried`)
    return 1
  }
  const until = now() + waitMs
  for (;;) {
    const current = store.find(id)
    const isOver = now() >= until
    // A result that was read from the chain is recorded within a moment.
    const isDeciding =
      current?.state === 'swapping' ||
      (current?.state === 'refunding' && current.refundTx !== undefined)
    if (current?.retryAt === undefined && (isOver || !isDeciding)) {
      const { heldReason } = current ?? {}
      out(`${id} is ${current?.state}${heldReason === undefined ? '' : `: ${heldReason}`}`)
      if (heldReason === undefined) return 0
      out(advice[heldReason])
      return 1
    }
    if (isOver) {
      out('No effect yet: no service is running, or no node answers. The request stays.')
      return 1
    }
    await Bun.sleep(100)
  }
}
