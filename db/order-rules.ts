import { getTableColumns } from 'drizzle-orm'
import { type State, transitions } from './Order'
import type { OrderMove } from './OrderLedger'
import type { OrderRow } from './schema'
import { orders } from './schema'

/** A value of a move: what the caller gives under this name, or the number after it. */
export type Value = null | { given: Given } | { after: Given }

type Given = 'hash' | 'at' | 'amount' | 'returned' | 'refundTx' | 'reason' | 'attempts' | 'retryAt'

type Column = Exclude<keyof OrderRow, 'id' | 'state' | 'updatedAt'>

/** What a column must be in addition to the state. NULL is equal to NULL. */
type Condition = { column: Column; is: Value } | { column: Column; isSet: true }

/** One compare-and-swap of an order. Both databases make their statements from it. */
export type Rule = {
  /** States in which the order may be. */
  from: readonly [State, ...State[]]
  /** State afterwards; undefined: it stays as it is. */
  to?: State
  set?: Readonly<Partial<Record<Column, Value>>>
  when?: readonly Condition[]
}

const given = (name: Given): Value => ({ given: name })
const hash = given('hash')
const released = { heldReason: null, retryAt: null }
const isAttempt = { column: 'refundAttempts', is: given('attempts') } as const
const isUnsent = { column: 'refundTx', is: null } as const
const isUnrefunded = { column: 'refundReason', is: null } as const

/** Every change of an order that this program makes. */
export const rules: Readonly<Record<OrderMove['kind'], Rule>> = {
  // Caused by the payment.
  settle: {
    from: ['settling'],
    to: 'settled',
    set: { settlementTx: hash, settledAt: given('at') },
  },
  unsettle: { from: ['settled'], to: 'settling', set: { settledAt: null } },
  fail: { from: ['settling'], to: 'failed' },
  revive: { from: ['failed'], to: 'settling' },
  // Caused by the swap.
  swap: { from: ['settled'], to: 'swapping', set: { swapTx: hash } },
  deliver: {
    from: ['swapping'],
    to: 'delivered',
    set: { swapTx: hash, deliveredAtomic: given('amount'), returnedAtomic: given('returned') },
  },
  undeliver: {
    from: ['delivered'],
    to: 'swapping',
    set: { deliveredAtomic: null, returnedAtomic: null },
  },
  reswap: {
    from: ['refunding'],
    to: 'swapping',
    set: { refundReason: null, refundTx: null },
    when: [{ column: 'refundTx', is: given('refundTx') }],
  },
  // Caused by the refund.
  refund: {
    from: ['settled', 'swapping'],
    to: 'refunding',
    set: { refundReason: given('reason') },
  },
  refunded: { from: ['refunding'], to: 'refunded', set: { refundTx: hash } },
  unrefund: { from: ['refunded'], to: 'refunding' },
  'attempt-refund': {
    from: ['refunding'],
    set: { refundAttempts: { after: 'attempts' }, refundTx: hash },
    when: [isAttempt, isUnsent],
  },
  'abandon-refund': { from: ['refunding'], set: { refundTx: null }, when: [isAttempt] },
  'resume-attempt': { from: ['refunding'], set: { refundTx: hash }, when: [isAttempt, isUnsent] },
  // Caused by an operator.
  hold: {
    from: ['settled', 'swapping', 'refunding'],
    to: 'held',
    set: { heldReason: given('reason') },
  },
  'resume-settled': {
    from: ['held'],
    to: 'settled',
    set: released,
    when: [{ column: 'swapTx', is: null }, isUnrefunded],
  },
  'resume-swap': { from: ['held'], to: 'swapping', set: released, when: [isUnrefunded] },
  'resume-refund': {
    from: ['held'],
    to: 'refunding',
    set: { ...released, refundTx: given('refundTx') },
    when: [{ column: 'refundReason', isSet: true }],
  },
  'request-retry': { from: ['held'], set: { retryAt: given('at') } },
  'dismiss-retry': {
    from: ['held'],
    set: { retryAt: null },
    when: [{ column: 'retryAt', is: given('retryAt') }],
  },
}

// No rule makes a change that the table of states does not have.
for (const { from, to } of Object.values(rules)) {
  if (to === undefined || from.every((source) => transitions[source].includes(to))) continue
  throw new Error(`${from.join(', ')} do not lead to ${to}`)
}

const columns: Readonly<Record<string, { name: string }>> = getTableColumns(orders)

/** The name in the database of a column of orders. */
export function nameOf(column: string): string {
  const name = columns[column]?.name
  if (name === undefined) throw new Error(`orders have no ${column}`)
  return name
}

/** What a move gives, by the names of `Value`, as it is written in the columns. */
export function givenBy(move: OrderMove): Record<string, string | number | null> {
  switch (move.kind) {
    case 'deliver': {
      const { amountAtomic, returnedAtomic, ...rest } = move
      const returned = returnedAtomic > 0n ? String(returnedAtomic) : null
      return { ...rest, amount: String(amountAtomic), returned }
    }
    case 'reswap':
    case 'resume-refund':
      return { ...move, refundTx: move.refundTx ?? null }
    default:
      return move
  }
}
