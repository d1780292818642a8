import { eq, isNull, type SQL, sql } from 'drizzle-orm'
import type { SQLiteUpdateSetSource } from 'drizzle-orm/sqlite-core'
import { type State, transitions } from '../Order'
import type { OrderMove } from '../OrderLedger'
import { orders } from '../orders'
import { parameter } from './statement'

/** One compare-and-swap. Parameters have the names that `parametersOf` gives them. */
type Rule = {
  /** States in which the order may be. */
  from: readonly [State, ...State[]]
  /** State afterwards; undefined: it stays as it is. */
  to?: State
  set?: SQLiteUpdateSetSource<typeof orders>
  /** Conditions in addition to the state. */
  when?: readonly SQL[]
}

const hash = parameter('hash')
const released = { heldReason: null, retryAt: null }
const isAttempt = eq(orders.refundAttempts, parameter('attempts'))
const isUnsent = isNull(orders.refundTx)
const isUnrefunded = isNull(orders.refundReason)

/** Every change of an order that this program makes. */
export const rules: Readonly<Record<OrderMove['kind'], Rule>> = {
  // Caused by the payment.
  settle: {
    from: ['settling'],
    to: 'settled',
    set: { settlementTx: hash, settledAt: parameter('at') },
  },
  unsettle: { from: ['settled'], to: 'settling', set: { settledAt: null } },
  fail: { from: ['settling'], to: 'failed' },
  // Caused by the swap.
  swap: { from: ['settled'], to: 'swapping', set: { swapTx: hash } },
  deliver: {
    from: ['swapping'],
    to: 'delivered',
    set: {
      swapTx: hash,
      deliveredAtomic: parameter('amount'),
      returnedAtomic: parameter('returned'),
    },
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
    when: [sql`refund_tx IS ${parameter('refundTx')}`],
  },
  // Caused by the refund.
  refund: {
    from: ['settled', 'swapping'],
    to: 'refunding',
    set: { refundReason: parameter('reason') },
  },
  refunded: { from: ['refunding'], to: 'refunded', set: { refundTx: hash } },
  unrefund: { from: ['refunded'], to: 'refunding' },
  'attempt-refund': {
    from: ['refunding'],
    set: { refundAttempts: sql`refund_attempts + 1`, refundTx: hash },
    when: [isAttempt, isUnsent],
  },
  'abandon-refund': { from: ['refunding'], set: { refundTx: null }, when: [isAttempt] },
  'resume-attempt': { from: ['refunding'], set: { refundTx: hash }, when: [isAttempt, isUnsent] },
  // Caused by an operator.
  hold: {
    from: ['settled', 'swapping', 'refunding'],
    to: 'held',
    set: { heldReason: parameter('reason') },
  },
  'resume-settled': {
    from: ['held'],
    to: 'settled',
    set: released,
    when: [isNull(orders.swapTx), isUnrefunded],
  },
  'resume-swap': { from: ['held'], to: 'swapping', set: released, when: [isUnrefunded] },
  'resume-refund': {
    from: ['held'],
    to: 'refunding',
    set: { ...released, refundTx: parameter('refundTx') },
    when: [sql`refund_reason IS NOT NULL`],
  },
  'request-retry': { from: ['held'], set: { retryAt: parameter('at') } },
  'dismiss-retry': {
    from: ['held'],
    set: { retryAt: null },
    when: [eq(orders.retryAt, parameter('retryAt'))],
  },
}

/** Throws for a rule that makes a change which the table of states does not have. */
export function assertKnown({ from, to }: Rule): void {
  if (to === undefined || from.every((source) => transitions[source].includes(to))) return
  throw new Error(`${from.join(', ')} do not lead to ${to}`)
}

/** The parameters of a move's statement. */
export function parametersOf(move: OrderMove): Record<string, string | number | null> {
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
