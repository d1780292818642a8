import type { Dialect } from './dialect'
import { isJobOf } from './sales-sql'

/** Statements of the pages for operators. `test/db/admin-ledger.test.ts` reads their query plans. */
export type AdminSql = ReturnType<typeof adminSql>

/** Reads of all payments of a payer, which have no common text. */
type PayerSql = {
  /** Gives `row` of each, by the index of the money, in each asset that was ever configured. */
  rowsOfPayer: string
  /** Whether the array of `row` in the JSON `$rows` has it. */
  isInRows: string
}

export function adminSql(dialect: Dialect, { rowsOfPayer, isInRows }: PayerSql) {
  return {
    ...windows(dialect),
    rowsOfPayer,
    byRows: `SELECT ${line} FROM payments WHERE ${isInRows}`,
    ...transactions(dialect),
    grants: grantsOf(dialect, 'grants', 'kind'),
    topUps: grantsOf(dialect, 'grant_top_ups', "'top-up'"),
    orders: 'SELECT id FROM orders WHERE id < $before ORDER BY id DESC LIMIT $limit',
    payees: payeesSql(dialect),
    answerOf: `SELECT status, length(body) AS bytes, expires_at AS "expiresAt"
      FROM answers WHERE payment_id = $id`,
    jobAt: 'SELECT created_at AS at FROM jobs WHERE id = $id',
    metaValue: 'SELECT value FROM meta WHERE key = $key',
  }
}

/**
 * As in `sales-sql.ts`, without what depends on the time: whether the buyer of an undelivered answer
 * can still fetch it.
 */
const outcome = `CASE WHEN state IN ('broadcast', 'reverted') THEN 'pending'
  WHEN state <> 'confirmed' THEN 'unpaid' WHEN product = 'desk' THEN 'order'
  WHEN product = 'facilitator' THEN 'settled'
  WHEN delivery = 'delivered' THEN 'delivered' ELSE 'undelivered' END`

const merchant = "CASE product WHEN 'desk' THEN 'stock' ELSE merchant END"

const line = `id, network, asset, payer, payee, amount_atomic AS amount, ${merchant} AS merchant,
  route, protocol, ${outcome} AS outcome, upstream_status AS "upstreamStatus",
  redeem_until AS "redeemUntil", transaction_hash AS "transaction", created_at AS "createdAt"`

/** The casts tell PostgreSQL the type of a parameter that may be NULL. */
function isAny(parameter: string): string {
  return `CAST(${parameter} AS TEXT) IS NULL`
}

function windows({ fold, opaque }: Dialect) {
  return {
    /** The id at which a window of `$rows` payments before an id begins. */
    windowStart: `SELECT id FROM payments WHERE id < $before
      ORDER BY id DESC LIMIT 1 OFFSET $rows`,
    /** Without `opaque` a partial index would be read in another order. */
    window: `SELECT ${line} FROM payments
      WHERE id < $before AND id >= $from
        AND (${isAny('$payer')} OR ${fold(opaque('payer'))} = ${fold('$payer')})
        AND (${isAny('$merchant')} OR ${merchant} = $merchant)
        AND (${isAny('$route')} OR ${opaque('route')} = $route)
        AND (${isAny('$outcome')} OR ${outcome} = $outcome)
      ORDER BY id DESC LIMIT $limit`,
    /** The condition is that of the partial index. The unfinished payments are few. */
    unfinished: `SELECT ${line} FROM payments
      WHERE state IN ('broadcast', 'reverted') AND ${opaque('id')} < $before
      ORDER BY ${opaque('id')} DESC LIMIT $limit`,
  }
}

function transactions({ join, serial }: Dialect) {
  return {
    membersOf: `SELECT payment_id AS id FROM transaction_members
      WHERE transaction_hash = $hash ORDER BY position`,
    /** Payments by external transactions have no members: by the index of the logs, in each network. */
    paidBy: `SELECT p.id, p.network, p.log_index AS place
      FROM (SELECT DISTINCT network FROM assets) AS n
      ${join('payments', 'p', 'p.network = n.network AND p.transaction_hash = $hash AND p.log_index IS NOT NULL')}
      UNION ALL SELECT id, network, -1 FROM payments
      WHERE state IN ('broadcast', 'reverted') AND transaction_hash = $hash
      ORDER BY network, place, id`,
    transactionsOfPayment: `SELECT ${transaction}, (SELECT count(*) FROM transaction_members AS b
          WHERE b.transaction_hash = t.hash) AS members
      FROM transaction_members AS m ${join('transactions', 't', 't.hash = m.transaction_hash')}
      WHERE m.payment_id = $id ORDER BY t.created_at, t.${serial}`,
    transactionsOfOrder: `SELECT ${transaction}, 1 AS members
      FROM job_transactions AS j ${join('transactions', 't', 't.hash = j.transaction_hash')}
      WHERE ${isJobOf('$id')}
      ORDER BY t.created_at, t.${serial}`,
  }
}

const transaction = `t.hash, t.kind, t.state, t.relayer, t.nonce, t.max_fee_wei AS "maxFeeWei",
  t.cost_wei AS "costWei", t.created_at AS "createdAt", t.first_sent_at AS "firstSentAt",
  t.block_number AS "blockNumber"`

function grantsOf({ fold }: Dialect, table: string, kind: string): string {
  return `SELECT network, address, ${kind} AS kind, amount_wei AS "amountWei",
      fee_wei AS "feeWei", transaction_hash AS "transaction", created_at AS "createdAt"
    FROM ${table} WHERE network = $network AND created_at >= $from AND created_at < $before
    ORDER BY created_at DESC, ${fold('address')} LIMIT $limit`
}

function payeesSql({ number, fold, any, opaque }: Dialect): string {
  const group = `network, ${fold('asset')}, ${fold('payee')}`
  return `SELECT network, ${any('asset')} AS asset, ${any('payee')} AS payee, count(*) AS payments,
      CAST(sum(${number('amount_atomic')}) AS TEXT) AS amount
    FROM payments
    WHERE id >= $from AND id < $to AND ${opaque('product')} = 'facilitator'
      AND ${opaque('state')} = 'confirmed'
    GROUP BY ${group} ORDER BY ${group}`
}
