import type { Statement } from 'bun:sqlite'
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
} from '../AdminLedger'
import type { AuthorizationLedger } from '../AuthorizationLedger'
import type { PaymentReads } from '../Ledger'
import type { OrderLedger } from '../OrderLedger'
import * as Sql from './admin-sql'
import type { Db } from './open'
import { write } from './write'

/** The reads of other parts that a story needs. */
export type StoryReads = {
  payments: Pick<PaymentReads, 'findById'>
  authorizations: Pick<AuthorizationLedger, 'findById'>
  orders: Pick<OrderLedger, 'find' | 'findByPayment'>
}

type Values = Readonly<Record<string, string | number | null>>
type All = <Row>(sql: string, values: Values) => Row[]

/** Above every id. */
const last = '~'
const pausesKey = 'paused'

export function createAdmin(db: Db, reads: StoryReads): AdminLedger {
  const prepared = new Map<string, Statement>()
  /** Prepared on first use, because a service may never need them. */
  const all: All = <Row>(sql: string, values: Values): Row[] => {
    const statement = prepared.get(sql) ?? db.sqlite.prepare(sql)
    prepared.set(sql, statement)
    return statement.all({ ...values }) as Row[]
  }
  return {
    ...createLists(all),
    story: (id) => storyOf(all, reads, id),
    paymentOfOrder: async (id) => (await reads.orders.find(id))?.paymentId,
    async orders(page) {
      const ids = all<{ id: string }>(Sql.orders, bounds(page))
      const found = await Promise.all(ids.map(({ id }) => reads.orders.find(id)))
      return found.filter((order) => order !== undefined)
    },
    async pauses() {
      const [row] = all<{ value: string }>(Sql.metaValue, { key: pausesKey })
      return row === undefined ? [] : (JSON.parse(row.value) as Pause[])
    },
    async setPauses(pauses) {
      const values = { key: pausesKey, value: JSON.stringify(pauses) }
      write(db, () => void all(Sql.setMeta, values))
    },
  }
}

function bounds({ before = last, limit }: PageOf) {
  return { before, limit }
}

type Lists = Omit<AdminLedger, 'story' | 'paymentOfOrder' | 'orders' | 'pauses' | 'setPauses'>

function createLists(all: All): Lists {
  return {
    async payments(filter, page) {
      const { payer = null, merchant = null, route = null, outcome = null } = filter
      const { before, limit } = bounds(page)
      const [start] = all<{ id: string }>(Sql.windowStart, { before, rows: page.rows })
      const values = { before, from: start?.id ?? '', limit, payer, merchant, route, outcome }
      const lines = all<LineRow>(Sql.window, values).map(toLine)
      const isFull = lines.length === limit
      return { lines, next: isFull ? lines.at(-1)?.id : start?.id }
    },
    async ofPayer(payer, max) {
      const rows = all<{ row: number }>(Sql.rowsOfPayer, { payer, limit: max + 1 })
      if (rows.length > max) return undefined
      const ids = JSON.stringify(rows.map(({ row }) => row))
      const lines = all<LineRow>(Sql.byRows, { rows: ids }).map(toLine)
      return lines.sort((left, right) => (left.id < right.id ? 1 : -1))
    },
    pendingPayments: async (page) => all<LineRow>(Sql.unfinished, bounds(page)).map(toLine),
    async inTransaction(hash) {
      const text = hash.toLowerCase()
      const rows = [
        ...all<{ id: string }>(Sql.membersOf, { hash: text }),
        ...all<{ id: string }>(Sql.paidBy, { hash: text }),
      ]
      return [...new Set(rows.map(({ id }) => id))]
    },
    async grants(network, range) {
      const values = { network, ...range }
      return [...all<GrantRow>(Sql.grants, values), ...all<GrantRow>(Sql.topUps, values)]
        .map((row): GrantLine => {
          return { ...row, amountWei: BigInt(row.amountWei), feeWei: BigInt(row.feeWei) }
        })
        .sort((left, right) => right.createdAt - left.createdAt)
        .slice(0, range.limit)
    },
    async payees({ from, to }) {
      const ids = { from: idAt(from), to: idAt(to) }
      return all<PayeeRow>(Sql.payees, ids).map(({ amount, ...row }): PayeeLine => {
        return { ...row, amountAtomic: BigInt(amount) }
      })
    },
    jobAt: async (id) => all<{ at: number }>(Sql.jobAt, { id })[0]?.at,
  }
}

type LineRow = Omit<PaymentLine, 'amountAtomic' | 'upstreamStatus'> & {
  amount: string
  upstreamStatus: number | null
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

function toLine({ amount, upstreamStatus, ...row }: LineRow): PaymentLine {
  return { ...row, amountAtomic: BigInt(amount), upstreamStatus: upstreamStatus ?? undefined }
}

async function storyOf(all: All, reads: StoryReads, id: string): Promise<Story | undefined> {
  const payment = await reads.payments.findById(id)
  const authorization = await reads.authorizations.findById(id)
  if (payment === undefined && authorization === undefined) return undefined
  const order =
    payment?.purpose.product === 'desk' ? await reads.orders.findByPayment(id) : undefined
  const ofOrder = order && all<TransactionRow>(Sql.transactionsOfOrder, { id: order.id })
  const rows = [...all<TransactionRow>(Sql.transactionsOfPayment, { id }), ...(ofOrder ?? [])]
  const [answer] = all<NonNullable<Story['answer']>>(Sql.answerOf, { id })
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

function idAt(at: number): string {
  return `pay_${at.toString(16).padStart(12, '0')}`
}
