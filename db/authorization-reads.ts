import type { Address } from 'viem'
import { type AuthorizationLedger, standingRowsMax } from './AuthorizationLedger'
import { toAuthorization } from './rows'
import { authorizations } from './schema'
import { rowsOf, type Selects, type Values } from './select'

export type AuthorizationReads = Pick<
  AuthorizationLedger,
  | 'find'
  | 'findById'
  | 'findByIdempotencyKey'
  | 'findVoid'
  | 'open'
  | 'hasFailedSince'
  | 'lossesSince'
  | 'standingOf'
>

/** As in the partial indexes, so that it is clear that they have these rows. */
const isOpen = "state IN ('authorized', 'metered')"
const isUnpaid = `NOT EXISTS (SELECT 1 FROM payments
  WHERE payments.id = authorizations.id AND payments.state = 'confirmed')`
const isLost = `failed_at IS NOT NULL AND product = 'gateway' AND ${isUnpaid}`
const lost =
  "CASE WHEN coalesce(charge_atomic, '0') = '0' THEN ceiling_atomic ELSE charge_atomic END"

type LossRow = { id: string; merchant: string; payer: Address; atomic: string; at: number }

/** `left`: which open ones no other living process works on. */
export function createAuthorizationReads(
  selects: Selects,
  left: { condition: string; values?: Values } = { condition: 'true' },
): AuthorizationReads {
  const { select, dialect } = selects
  const { fold, number } = dialect
  const { all, one } = rowsOf(selects, authorizations, toAuthorization)
  const isOf = (column: string) => `${fold(column)} = ${fold(`$${column}`)}`
  const isOfMoney = `network = $network AND ${isOf('asset')} AND ${isOf('payer')}`
  const newest = 'ORDER BY created_at DESC LIMIT 1'
  const isOfKey = `merchant = $merchant AND route = $route AND ${isOf('payer')}
    AND idempotency_key = $key`
  const byMoney = one(`WHERE ${isOfMoney} AND nonce = $nonce`)
  const byId = one('WHERE id = $id')
  const byKey = one(`WHERE ${isOfKey} AND ${isOpen} ${newest}`)
  const voidByKey = one(`WHERE ${isOfKey} AND state = 'void' ${newest}`)
  const open = all(`WHERE ${isOpen} AND ${left.condition} ORDER BY created_at DESC`)
  const failed = select(
    `SELECT 1 FROM authorizations WHERE ${isOf('payer')} AND failed_at > $at AND state <> 'void'
       AND ${isUnpaid} LIMIT 1`,
  )
  const losses = select<LossRow>(
    `SELECT id, merchant, payer, ${lost} AS atomic, failed_at AS at
     FROM authorizations WHERE ${isLost} AND failed_at > $at`,
  )
  const sumOf = (atomic: string) => `CAST(coalesce(sum(${number(atomic)}), 0) AS TEXT)`
  const standing = select<{ paid: string; lost: string }>(
    `SELECT (
       SELECT ${sumOf('amount_atomic')} FROM (
         SELECT amount_atomic, merchant, product, state FROM payments
         WHERE ${isOfMoney} LIMIT ${standingRowsMax}) AS paid
       WHERE merchant = $merchant AND product = 'gateway' AND state = 'confirmed'
     ) AS paid, (
       SELECT ${sumOf('lost')} FROM (
         SELECT ${lost} AS lost FROM authorizations
         WHERE ${isLost} AND ${isOf('payer')} AND merchant = $merchant
         ORDER BY failed_at DESC LIMIT ${standingRowsMax}) AS losses
     ) AS lost`,
  )
  return {
    find: ({ network, asset, payer, nonce }) =>
      byMoney({ network, asset, payer, nonce: nonce.toLowerCase() }),
    findById: (id) => byId({ id }),
    findByIdempotencyKey: ({ merchant, route, payer, key }) =>
      byKey({ merchant, route, payer, key }),
    findVoid: ({ merchant, route, payer, key }) => voidByKey({ merchant, route, payer, key }),
    open: () => open(left.values),
    hasFailedSince: async (payer, at) => (await failed({ payer, at })).length > 0,
    lossesSince: async (at) =>
      (await losses({ at })).map((row) => ({ ...row, atomic: BigInt(row.atomic) })),
    async standingOf({ network, asset, payer, merchant }) {
      const [row] = await standing({ network, asset, payer, merchant })
      return { paidAtomic: BigInt(row?.paid ?? 0), lostAtomic: BigInt(row?.lost ?? 0) }
    },
  }
}
