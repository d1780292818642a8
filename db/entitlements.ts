import { dayMs } from '../src/protocol/Time'
import * as Entitlement from './Entitlement'
import type { Payment } from './Payment'
import { toPayment } from './rows'
import { type EntitlementRow, type PaymentRow, payments } from './schema'
import { rowsOf, type Selects, type WithNulls, withoutNulls } from './select'
import type { MessagesBase } from './webhooks'

/**
 * When an entitlement of a payment ends; NULL for others, and while its payment entitles to nothing. A
 * value of one row, because PostgreSQL without statistics would join all payments.
 */
export const untilOf = `(SELECT p.confirmed_at + e.period_ms FROM payments AS p
  WHERE p.id = e.payment_id AND p.state = 'confirmed'
    AND (SELECT r.payment_id FROM refunds AS r WHERE r.payment_id = p.id) IS NULL)`

/** The newest ones of a wallet that one look reads: a wallet may have paid thousands of times. */
const rowsMax = 100

type Row = WithNulls<Omit<Entitlement.Entitlement, 'payment'>> & { paymentId: string | null }

export function createEntitlementReads(selects: Selects) {
  const { dialect, select } = selects
  const isOfWallet = `wallet IS NOT NULL AND ${dialect.fold('wallet')} = ${dialect.fold('$wallet')}
    AND merchant = $merchant AND route = $route`
  const newest = (fingerprint: string) => `SELECT * FROM (SELECT * FROM entitlements
    WHERE ${isOfWallet} AND fingerprint ${fingerprint} ORDER BY id DESC LIMIT ${rowsMax}) AS newest`
  const columns = `e.id, e.kind, e.merchant, e.route, e.wallet, e.network, e.uses,
    e.uses_max AS "usesMax", e.attempts, e.payment_id AS "paymentId", ${untilOf} AS until`
  const ofWallet = select<Row>(
    `SELECT * FROM (SELECT ${columns}
       FROM (${newest('= $fingerprint')} UNION ALL ${newest('IS NULL')}) AS e) AS found
     WHERE kind = 'trial' OR until > $now
     ORDER BY CASE kind WHEN 'again' THEN 0 WHEN 'pass' THEN 1 ELSE 2 END, until, id`,
  )
  const ofIds = select<Row>(`SELECT ${columns} FROM entitlements AS e WHERE id IN ($again, $pass)`)
  const paid = rowsOf(selects, payments, toPayment).all(`WHERE ${dialect.isIn('id', '$ids')}`)
  const withPayments = async (rows: readonly Row[]): Promise<Entitlement.Entitlement[]> => {
    const ids = rows.flatMap(({ paymentId }) => paymentId ?? [])
    const found = ids.length === 0 ? [] : await paid({ ids: JSON.stringify(ids) })
    const byId = new Map<string | null, Payment>(found.map((payment) => [payment.id, payment]))
    return rows.map(({ paymentId, ...row }) => {
      return { ...withoutNulls(row), payment: byId.get(paymentId) }
    })
  }
  return {
    find: async (of: Parameters<Entitlement.EntitlementLedger['find']>[0]) =>
      withPayments(await ofWallet(of)),
    async findByPayment(id: string) {
      const ids = { again: Entitlement.idOf('again', id), pass: Entitlement.idOf('pass', id) }
      return (await withPayments(await ofIds(ids)))[0]
    },
  }
}

/** Most rows that one commit deletes. */
const deletedMax = 1_000

export function createEntitlementSweep({ change }: Pick<MessagesBase, 'change'>) {
  const first = (table: string, condition: string) =>
    change<{ id: string }>(
      'soon',
      `DELETE FROM ${table} WHERE id IN (SELECT id FROM ${table} WHERE ${condition}
         LIMIT ${deletedMax}) RETURNING id`,
    )
  const sweeps = [
    first('entitlement_uses', "created_at < $before AND state <> 'running'"),
    first('entitlements', 'expires_at IS NOT NULL AND expires_at < $before'),
  ]
  return async (before: number): Promise<void> => {
    for (const sweep of sweeps) while ((await sweep({ before })).length === deletedMax);
  }
}

const unused = { uses: 0, attempts: 0 } as const
const unpaid = { fingerprint: null, paymentId: null, periodMs: null } as const

/** The row of a new entitlement, which is written with its payment. */
export function entitlementRow(
  { fingerprint, ...terms }: Entitlement.NewEntitlement,
  { id, payer, network, createdAt }: Pick<PaymentRow, 'id' | 'payer' | 'network' | 'createdAt'>,
): EntitlementRow {
  return {
    ...{ ...terms, ...unused, id: Entitlement.idOf(terms.kind, id) },
    ...{ fingerprint: fingerprint ?? null, wallet: payer, paymentId: id, network, createdAt },
    // A day later, because its time begins when the payment is confirmed. A pass is kept.
    expiresAt: terms.kind === 'again' ? createdAt + terms.periodMs + dayMs : null,
  }
}

/** The rows that a use may need and that may be missing: of a trial, and of the day. */
export function freshRows({ entitlement, day, now }: Entitlement.NewUse): {
  trial: EntitlementRow | undefined
  day: EntitlementRow | undefined
} {
  if (!('trial' in entitlement)) {
    if (day !== undefined) throw new Error('only trials are counted by day')
    return { trial: undefined, day: undefined }
  }
  const { merchant, route, wallet, network, usesMax } = entitlement.trial
  const common = { merchant, route, ...unused, ...unpaid, createdAt: now }
  return {
    trial: {
      ...{ ...common, kind: 'trial', id: Entitlement.trialId(entitlement.trial) },
      ...{ wallet, network, usesMax, expiresAt: null },
    },
    day: day && {
      ...{ ...common, kind: 'day', id: day.id, wallet: null, network: null },
      ...{ usesMax: day.max, expiresAt: now + 2 * dayMs },
    },
  }
}
