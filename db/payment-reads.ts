import type { Address, Hex } from 'viem'
import type * as Network from '../src/protocol/Network'
import type { PayeeGas, PaymentReads } from './Ledger'
import { toPayment } from './rows'
import { idAt } from './sales-figures'
import { type PaymentRow, payments } from './schema'
import { rowsOf, type Selects } from './select'

/** As in the partial indexes, so that it is clear that they have these rows. */
const isUnfinished = "state IN ('broadcast', 'reverted')"

/** No transaction of ours contains the payment. */
const isExternal = `NOT EXISTS (SELECT 1 FROM transactions
  WHERE transactions.hash = payments.transaction_hash)`

/** Another transaction was included at the account nonce of the payment's transaction. */
const isDisplaced = `EXISTS (SELECT 1 FROM transactions
  WHERE transactions.hash = payments.transaction_hash AND transactions.state = 'replaced')`

/** No transaction with the payment can still be included. */
const hasNoOpen = `NOT EXISTS (SELECT 1 FROM transaction_members
  JOIN transactions ON transactions.hash = transaction_members.transaction_hash
  WHERE transaction_members.payment_id = payments.id
    AND transactions.state IN ('signed', 'sent'))`

export const externalFrom = `SELECT DISTINCT transaction_hash AS hash, block_number AS "blockNumber"
  FROM payments WHERE network = $network AND block_number >= $block AND ${isExternal}`

export function createPaymentReads(selects: Selects): PaymentReads {
  const { dialect, select } = selects
  const isOf = (column: string) => `${dialect.fold(column)} = ${dialect.fold(`$${column}`)}`
  const { all, one } = rowsOf(selects, payments, toPayment)
  const isOfPayer = `network = $network AND ${isOf('asset')} AND ${isOf('payer')}`
  const isOfTransaction = 'network = $network AND transaction_hash = $hash'
  const byMoney = one(`WHERE ${isOfPayer} AND nonce = $nonce`)
  const byId = one('WHERE id = $id')
  const byKey = one(`WHERE merchant = $merchant AND route = $route AND ${isOf('payer')}
    AND idempotency_key = $key AND state <> 'expired' ORDER BY created_at DESC LIMIT 1`)
  const byToken = one('WHERE redeem_token_hash = $hash')
  const arrived = select<{ receivedAt: number; knownBlock: number }>(
    'SELECT received_at AS "receivedAt", known_block AS "knownBlock" FROM payments WHERE id = $id',
  )
  const byLog = select<{ id: string }>(
    `SELECT id FROM payments WHERE ${isOfTransaction} AND log_index = $index`,
  )
  const taken = select<{ index: number }>(
    `SELECT log_index AS "index" FROM payments WHERE ${isOfTransaction} AND log_index IS NOT NULL`,
  )
  const paid = select(`SELECT 1 FROM payments WHERE ${isOfPayer} AND state = 'confirmed' LIMIT 1`)
  const unfinished = all(`WHERE ${isUnfinished}`)
  const broadcast = select<{ network: Network.Id; count: number }>(
    `SELECT network, count(*) AS count FROM payments
     WHERE ${isUnfinished} AND state = 'broadcast' GROUP BY network`,
  )
  const orphaned = select<{ id: string }>(
    `SELECT id FROM payments WHERE ${isUnfinished} AND state = 'broadcast' AND network = $network
       AND (${isExternal} OR (${isDisplaced} AND ${hasNoOpen})) ORDER BY id`,
  )
  return {
    find: ({ network, asset, payer, nonce }) =>
      byMoney({ network, asset, payer, nonce: nonce.toLowerCase() }),
    findById: (id) => byId({ id }),
    findByRedeemToken: (hash) => byToken({ hash }),
    findByIdempotencyKey: ({ merchant, route, payer, key }) =>
      byKey({ merchant, route, payer, key }),
    logOwner: async (network, hash, index) => (await byLog({ network, hash, index }))[0]?.id,
    takenLogs: async (network, hash) =>
      new Set((await taken({ network, hash })).map(({ index }) => index)),
    hasPaid: async ({ network, asset, payer }) =>
      (await paid({ network, asset, payer })).length > 0,
    async arrivalOf(id) {
      const [row] = await arrived({ id })
      if (row === undefined) throw new Error(`no payment ${id}`)
      return { receivedAt: row.receivedAt, knownBlock: BigInt(row.knownBlock) }
    },
    unfinished: () => unfinished(),
    countBroadcast: async () =>
      new Map((await broadcast()).map(({ network, count }) => [network, count])),
    pending: readPending(selects),
    orphans: async (network) => (await orphaned({ network })).map(({ id }) => id),
    ...readPayeeGas(selects),
  }
}

type PendingRow = {
  id: string
  network: Network.Id
  merchant: string
  route: string
  amount: string
  state: PaymentRow['state']
  transaction: Hex
  createdAt: number
}

function readPending({ select }: Selects): PaymentReads['pending'] {
  const total = select<{ count: number }>(
    `SELECT count(*) AS count FROM payments WHERE ${isUnfinished}`,
  )
  const oldest = select<PendingRow>(
    `SELECT id, network, merchant, route, amount_atomic AS amount, state,
       transaction_hash AS "transaction", created_at AS "createdAt"
     FROM payments WHERE ${isUnfinished} ORDER BY created_at LIMIT $limit`,
  )
  return async (limit) => {
    const [counted, rows] = await Promise.all([total(), oldest({ limit })])
    return {
      count: counted[0]?.count ?? 0,
      oldest: rows.map(({ amount, ...row }) => ({ ...row, amountAtomic: BigInt(amount) })),
    }
  }
}

/**
 * Reads the gas of the facilitator by payee, as parts of the gas limits of its transactions. The
 * gas that each of them used is not stored, and the limit distinguishes a wallet that uses it all.
 * Members of a batch have equal parts of it. A replacement counts once, a payment that is sent
 * again twice.
 */
function readPayeeGas({
  dialect: { fold, any },
  select,
}: Selects): Pick<PaymentReads, 'payeeGasSince' | 'payeeGasOf'> {
  /** Gas of a payment at each account nonce; `condition` selects the payments. */
  const slots = (condition: string) => `(
    SELECT payments.network, payments.payee, max(CAST(transactions.gas_limit AS BIGINT) / (
      SELECT count(*) FROM transaction_members AS m
      WHERE m.transaction_hash = transactions.hash)) AS gas
    FROM payments
    JOIN transaction_members ON transaction_members.payment_id = payments.id
    JOIN transactions ON transactions.hash = transaction_members.transaction_hash
    WHERE ${condition} AND payments.product = 'facilitator' AND transactions.state <> 'replaced'
    GROUP BY payments.id, ${fold('transactions.relayer')}, transactions.nonce) AS slots`
  const total = 'CAST(sum(gas) AS BIGINT) AS gas'
  const since = select<{ network: Network.Id; payee: Address; gas: number }>(
    `SELECT network, ${any('payee')} AS payee, ${total} FROM ${slots('payments.id >= $id')}
     GROUP BY network, ${fold('payee')}`,
  )
  const ofOne = select<{ gas: number | null }>(`SELECT ${total} FROM ${slots('payments.id = $id')}`)
  return {
    payeeGasSince: (at): Promise<readonly PayeeGas[]> => since({ id: idAt(at) }),
    payeeGasOf: async (id) => (await ofOne({ id }))[0]?.gas ?? 0,
  }
}
