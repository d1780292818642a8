/** Statements of the pages for operators. `test/admin-ledger.test.ts` reads their query plans. */

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
  route, protocol, ${outcome} AS outcome, upstream_status AS upstreamStatus,
  transaction_hash AS "transaction", created_at AS createdAt`

/** The id at which a window of `$rows` payments before an id begins. */
export const windowStart = `SELECT id FROM payments WHERE id < $before
  ORDER BY id DESC LIMIT 1 OFFSET $rows`

/** The unary plus keeps SQLite from reading a partial index in another order. */
export const window = `SELECT ${line} FROM payments
  WHERE id < $before AND id >= $from
    AND ($payer IS NULL OR +payer = $payer)
    AND ($merchant IS NULL OR ${merchant} = $merchant)
    AND ($route IS NULL OR +route = $route)
    AND ($outcome IS NULL OR ${outcome} = $outcome)
  ORDER BY id DESC LIMIT $limit`

/** By the index of the money, in each asset that was ever configured. */
export const rowsOfPayer = `SELECT p.rowid AS "row" FROM assets AS a
  CROSS JOIN payments AS p ON p.network = a.network AND p.asset = a.address AND p.payer = $payer
  LIMIT $limit`

export const byRows = `SELECT ${line} FROM payments
  WHERE rowid IN (SELECT value FROM json_each($rows))`

/** The condition is that of the partial index. The unfinished payments are few. */
export const unfinished = `SELECT ${line} FROM payments
  WHERE state IN ('broadcast', 'reverted') AND +id < $before ORDER BY id DESC LIMIT $limit`

export const membersOf = `SELECT payment_id AS id FROM transaction_members
  WHERE transaction_hash = $hash ORDER BY position`

/** Payments by external transactions have no members: by the index of the logs, network by network. */
export const paidBy = `SELECT p.id FROM (SELECT DISTINCT network FROM assets) AS n
  CROSS JOIN payments AS p ON p.network = n.network AND p.transaction_hash = $hash`

const transaction = `t.hash, t.kind, t.state, t.relayer, t.nonce, t.max_fee_wei AS maxFeeWei,
  t.cost_wei AS costWei, t.created_at AS createdAt, t.first_sent_at AS firstSentAt,
  t.block_number AS blockNumber`

export const transactionsOfPayment = `SELECT ${transaction},
    (SELECT count(*) FROM transaction_members WHERE transaction_hash = t.hash) AS members
  FROM transaction_members AS m CROSS JOIN transactions AS t ON t.hash = m.transaction_hash
  WHERE m.payment_id = $id ORDER BY t.created_at`

/** Ids of jobs are those of src/stock/Order.ts; `;` follows `:`. */
export const transactionsOfOrder = `SELECT ${transaction}, 1 AS members
  FROM job_transactions AS j CROSS JOIN transactions AS t ON t.hash = j.transaction_hash
  WHERE j.job_id = 'swap:' || $id
    OR (j.job_id >= 'refund:' || $id AND j.job_id < 'refund:' || $id || ';')
  ORDER BY t.created_at`

export const answerOf = `SELECT status, length(body) AS bytes, expires_at AS expiresAt
  FROM answers WHERE payment_id = $id`

const grantsOf = (table: string, kind: string) => `SELECT network, address, ${kind} AS kind,
    amount_wei AS amountWei, fee_wei AS feeWei, transaction_hash AS "transaction",
    created_at AS createdAt
  FROM ${table} WHERE network = $network AND created_at >= $from AND created_at < $before
  ORDER BY created_at DESC LIMIT $limit`

export const grants = grantsOf('grants', 'kind')
export const topUps = grantsOf('grant_top_ups', "'top-up'")

export const orders = 'SELECT id FROM orders WHERE id < $before ORDER BY id DESC LIMIT $limit'

export const payees = `SELECT network, asset, payee, count(*) AS payments,
    CAST(sum(CAST(amount_atomic AS INTEGER)) AS TEXT) AS amount
  FROM payments WHERE id >= $from AND id < $to AND +product = 'facilitator' AND +state = 'confirmed'
  GROUP BY network, asset, payee`

export const jobAt = 'SELECT created_at AS at FROM jobs WHERE id = $id'
export const metaValue = 'SELECT value FROM meta WHERE key = $key'
export const setMeta = 'INSERT OR REPLACE INTO meta (key, value) VALUES ($key, $value)'
