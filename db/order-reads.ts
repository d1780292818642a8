import type { OrderLedger } from './OrderLedger'
import { toOrder } from './rows'
import { orders } from './schema'
import { rowsOf, type Selects, type Values } from './select'

/** The newest orders, which a reorganisation can reach. */
const recentMax = 10_000
/** As in the partial index, so that it is clear that it has these rows. */
const isUnfinished = "state IN ('settling', 'settled', 'swapping', 'refunding', 'held')"
const isUnderWay = "state IN ('settling', 'settled', 'swapping')"
const isRefunded = 'id > $since AND refund_reason IS NOT NULL'

const hasJob = (id: string, state: string) =>
  `EXISTS (SELECT 1 FROM jobs WHERE jobs.id = ${id} AND jobs.state ${state})`
const swapJob = "'swap:' || orders.id"
const refundJob = `CASE WHEN refund_attempts <= 1 THEN 'refund:' || orders.id
  ELSE 'refund:' || orders.id || ':' || refund_attempts END`
/** Orders whose end was premature, because its job is not confirmed or another one is. */
const doubtful = `SELECT id FROM orders
  WHERE id IN (SELECT id FROM orders ORDER BY id DESC LIMIT ${recentMax}) AND (
    state = 'delivered' AND ${hasJob(swapJob, "<> 'confirmed'")}
    OR state = 'refunded' AND ${hasJob(swapJob, "= 'confirmed'")}
    OR state = 'refunded' AND ${hasJob(refundJob, "<> 'confirmed'")})`

/** Statements that count orders by what they may cost, as `count`. */
export function orderCounts({ fold }: Selects['dialect']) {
  const count = 'SELECT count(*) AS count FROM orders WHERE'
  const isOfPayer = `${fold('payer')} = ${fold('$payer')}`
  return {
    open: `${count} ${isUnfinished} AND state <> 'held'`,
    /** Orders of a payer since an id that were refunded or will be. */
    refunds: `${count} ${isOfPayer} AND ${isRefunded}`,
    /** Orders of a payer that may still be delivered. */
    underWay: `${count} ${isOfPayer} AND ${isUnderWay}`,
    /** Those of all payers together. */
    refundable: `${count} ${isRefunded} OR (${isUnfinished} AND ${isUnderWay})`,
  }
}

export function createOrderReads(selects: Selects): Omit<OrderLedger, 'move'> {
  const { select, dialect } = selects
  const counts = orderCounts(dialect)
  const { all, one } = rowsOf(selects, orders, toOrder)
  const byId = one('WHERE id = $id')
  const byPayment = one('WHERE payment_id = $id')
  const open = all(`WHERE ${isUnfinished} ORDER BY id`)
  const recheck = select<{ id: string }>(doubtful)
  // Hides an order from others until its payment is on a chain.
  const isPublic = "state NOT IN ('settling', 'failed') AND id < $before"
  const newestFirst = 'ORDER BY id DESC LIMIT $limit'
  const newest = all(`WHERE ${isPublic} ${newestFirst}`)
  const isOfPayer = `${dialect.fold('payer')} = ${dialect.fold('$payer')}`
  const ofPayer = all(`WHERE ${isPublic} AND ${isOfPayer} ${newestFirst}`)
  const count = (text: string) => {
    const counted = select<{ count: number }>(text)
    return async (values?: Values) => (await counted(values))[0]?.count ?? 0
  }
  const [openCount, refunds] = [count(counts.open), count(counts.refunds)]
  const [underWay, refundable] = [count(counts.underWay), count(counts.refundable)]
  return {
    find: (id) => byId({ id }),
    findByPayment: (id) => byPayment({ id }),
    open: () => open(),
    toRecheck: async () => (await recheck()).map(({ id }) => id),
    // Above every id.
    history: ({ payer, limit, before = 'ord_~' }) =>
      payer === undefined ? newest({ before, limit }) : ofPayer({ before, limit, payer }),
    countOpen: () => openCount(),
    countRefunds: (payer, since) => refunds({ payer, since }),
    countUnderWay: (payer) => underWay({ payer }),
    countRefundable: (since) => refundable({ since }),
  }
}
