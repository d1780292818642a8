import type { Hex } from 'viem'
import type {
  AdminLedger,
  GrantLine,
  PageOf,
  Pause,
  PayeeLine,
  PaymentLine,
  Story,
  StoryTransaction,
} from './AdminLedger'
import type { AuthorizationLedger } from './AuthorizationLedger'
import type { AdminSql } from './admin-sql'
import type { PaymentReads } from './Ledger'
import type { OrderLedger } from './OrderLedger'
import { idAt } from './sales-figures'

/** The reads of other parts that a story needs. */
export type StoryReads = {
  payments: Pick<PaymentReads, 'findById'>
  authorizations: Pick<AuthorizationLedger, 'findById'>
  orders: Pick<OrderLedger, 'find' | 'findByPayment'>
}

type Values = Readonly<Record<string, string | number | null>>

/** The database of the pages for operators. */
type AdminBase = {
  sql: AdminSql
  all<Row>(sql: string, values: Values): Promise<readonly Row[]>
  /**
   * Adds or removes one entry of the JSON list in a value of `meta`. `kind` and `name` identify an
   * entry. Resolves with the list when it is on the disk.
   */
  setPause(key: string, pause: Pause, isPause: boolean): Promise<readonly Pause[]>
}

/** Sorts after every id. */
const last = '~'
const pausesKey = 'paused'

export function createAdminLedger(base: AdminBase, reads: StoryReads): AdminLedger {
  const { all, sql } = base
  return {
    ...createLists(base),
    story: (id) => storyOf(base, reads, id),
    paymentOfOrder: async (id) => (await reads.orders.find(id))?.paymentId,
    async orders(page) {
      const ids = await all<{ id: string }>(sql.orders, bounds(page))
      const found = await Promise.all(ids.map(({ id }) => reads.orders.find(id)))
      return found.filter((order) => order !== undefined)
    },
    async pauses() {
      const [row] = await all<{ value: string }>(sql.metaValue, { key: pausesKey })
      return row === undefined ? [] : (JSON.parse(row.value) as Pause[])
    },
    setPause: (pause, isPause) => base.setPause(pausesKey, pause, isPause),
  }
}

function bounds({ before = last, limit }: PageOf) {
  return { before, limit }
}

type Lists = Omit<AdminLedger, 'story' | 'paymentOfOrder' | 'orders' | 'pauses' | 'setPause'>

function createLists({ all, sql }: AdminBase): Lists {
  return {
    async payments(filter, page) {
      const { payer = null, merchant = null, route = null, outcome = null } = filter
      const { before, limit } = bounds(page)
      const [start] = await all<{ id: string }>(sql.windowStart, { before, rows: page.rows })
      const values = { before, from: start?.id ?? '', limit, payer, merchant, route, outcome }
      const lines = (await all<LineRow>(sql.window, values)).map(toLine)
      const isFull = lines.length === limit
      return { lines, next: isFull ? lines.at(-1)?.id : start?.id }
    },
    async ofPayer(payer, max) {
      const rows = await all<{ row: string | number }>(sql.rowsOfPayer, { payer, limit: max + 1 })
      if (rows.length > max) return undefined
      const ids = JSON.stringify(rows.map(({ row }) => row))
      const lines = (await all<LineRow>(sql.byRows, { rows: ids })).map(toLine)
      return lines.sort((left, right) => (left.id < right.id ? 1 : -1))
    },
    pendingPayments: async (page) => (await all<LineRow>(sql.unfinished, bounds(page))).map(toLine),
    async inTransaction(hash) {
      const text = hash.toLowerCase()
      const rows = [
        ...(await all<{ id: string }>(sql.membersOf, { hash: text })),
        ...(await all<{ id: string }>(sql.paidBy, { hash: text })),
      ]
      return [...new Set(rows.map(({ id }) => id))]
    },
    async grants(network, range) {
      const values = { network, ...range }
      const rows = [
        ...(await all<GrantRow>(sql.grants, values)),
        ...(await all<GrantRow>(sql.topUps, values)),
      ]
      return rows
        .map((row): GrantLine => {
          return { ...row, amountWei: BigInt(row.amountWei), feeWei: BigInt(row.feeWei) }
        })
        .sort((left, right) => right.createdAt - left.createdAt)
        .slice(0, range.limit)
    },
    async payees({ from, to }) {
      const ids = { from: idAt(from), to: idAt(to) }
      return (await all<PayeeRow>(sql.payees, ids)).map(({ amount, ...row }): PayeeLine => {
        return { ...row, amountAtomic: BigInt(amount) }
      })
    },
    jobAt: async (id) => (await all<{ at: number }>(sql.jobAt, { id }))[0]?.at,
  }
}

type LineRow = Omit<PaymentLine, 'amountAtomic' | 'upstreamStatus' | 'redeemUntil'> & {
  amount: string
  upstreamStatus: number | null
  redeemUntil: number | null
}
type GrantRow = Omit<GrantLine, 'amountWei' | 'feeWei'> & { amountWei: string; feeWei: string }
type PayeeRow = Omit<PayeeLine, 'amountAtomic'> & { amount: string }
type TransactionRow = Omit<
  StoryTransaction,
  'maxFeeWei' | 'costWei' | 'firstSentAt' | 'blockNumber'
> & {
  maxFeeWei: string
  costWei: string | null
  firstSentAt: number | null
  blockNumber: number | null
}

function toLine({ amount, upstreamStatus, redeemUntil, ...row }: LineRow): PaymentLine {
  return {
    ...row,
    amountAtomic: BigInt(amount),
    upstreamStatus: upstreamStatus ?? undefined,
    redeemUntil: redeemUntil ?? undefined,
  }
}

async function storyOf(
  { all, sql }: AdminBase,
  reads: StoryReads,
  id: string,
): Promise<Story | undefined> {
  const payment = await reads.payments.findById(id)
  const authorization = await reads.authorizations.findById(id)
  if (payment === undefined && authorization === undefined) return undefined
  const order =
    payment?.purpose.product === 'desk' ? await reads.orders.findByPayment(id) : undefined
  const ofPayment = await all<TransactionRow>(sql.transactionsOfPayment, { id })
  const ofOrder = order && (await all<TransactionRow>(sql.transactionsOfOrder, { id: order.id }))
  const rows = [...ofPayment, ...(ofOrder ?? [])]
  const [answer] = await all<NonNullable<Story['answer']>>(sql.answerOf, { id })
  return { payment, authorization, order, transactions: rows.map(toTransaction), answer }
}

function toTransaction(row: TransactionRow): StoryTransaction {
  return {
    ...row,
    hash: row.hash as Hex,
    maxFeeWei: BigInt(row.maxFeeWei),
    costWei: row.costWei === null ? undefined : BigInt(row.costWei),
    firstSentAt: row.firstSentAt ?? undefined,
    blockNumber: row.blockNumber ?? undefined,
  }
}
