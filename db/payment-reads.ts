import type { Address, Hex } from 'viem'
import type * as Network from '../src/protocol/Network'
import type { Money } from '../src/protocol/Transfer'
import type { KeyScope, Payment } from './Payment'
import { toPayment } from './rows'
import { idAt } from './sales'
import type { TransactionRow } from './schema'
import { jobs, type PaymentRow, payments, transactions } from './schema'
import { columnsIn, decoderOf, rowsOf, type Selects } from './select'

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

const externalFrom = `SELECT DISTINCT transaction_hash AS hash, block_number AS "blockNumber"
  FROM payments WHERE network = $network AND block_number >= $block AND ${isExternal}`

/** A payer of one asset. */
type PayerOfAsset = Pick<Money, 'network' | 'asset' | 'payer'>

/** When the simulated request arrived: its time (unix ms) and the newest known block. */
export type Arrival = Pick<PaymentRow, 'receivedAt' | 'knownBlock'>

export type Pending = {
  count: number
  oldest: readonly (Pick<
    PaymentRow,
    'id' | 'network' | 'merchant' | 'route' | 'amountAtomic' | 'state' | 'createdAt'
  > & { transaction: Hex })[]
}

type PayeeGas = { network: Network.Id; payee: Address; gas: number }

export type PaymentReads = ReturnType<typeof createPaymentReads>

export function createPaymentReads(selects: Selects) {
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
    /** The payment of this money; one indexed read. */
    find: ({ network, asset, payer, nonce }: Money) =>
      byMoney({ network, asset, payer, nonce: nonce.toLowerCase() }),
    findById: (id: string) => byId({ id }),
    findByRedeemToken: (hash: string) => byToken({ hash }),
    /** Newest payment of the key that is not expired. */
    findByIdempotencyKey: ({ merchant, route, payer, key }: KeyScope) =>
      byKey({ merchant, route, payer, key }),
    /** Id of the payment that a Transfer log is assigned to. */
    async logOwner(network: Network.Id, hash: Hex, index: number): Promise<string | undefined> {
      return (await byLog({ network, hash, index }))[0]?.id
    },
    /** Indexes of the logs of a transaction that pay for payments. */
    async takenLogs(network: Network.Id, hash: Hex): Promise<ReadonlySet<number>> {
      return new Set((await taken({ network, hash })).map(({ index }) => index))
    },
    /** Whether a payment of the payer is confirmed. */
    hasPaid: async ({ network, asset, payer }: PayerOfAsset) =>
      (await paid({ network, asset, payer })).length > 0,
    /** Throws when there is no such payment. */
    async arrivalOf(id: string): Promise<Arrival> {
      const [row] = await arrived({ id })
      if (row === undefined) throw new Error(`no payment ${id}`)
      return { receivedAt: row.receivedAt, knownBlock: BigInt(row.knownBlock) }
    },
    /** Those that are `broadcast` or `reverted`. */
    unfinished: () => unfinished(),
    /** Those that are `broadcast`, by network. */
    async countBroadcast(): Promise<ReadonlyMap<Network.Id, number>> {
      return new Map((await broadcast()).map(({ network, count }) => [network, count]))
    },
    pending: readPending(selects),
    /** Ids of `broadcast` payments without an open transaction: it was removed, or displaced. */
    orphans: async (network: Network.Id) => (await orphaned({ network })).map(({ id }) => id),
    ...readPayeeGas(selects),
  }
}

type PendingRow = Omit<Pending['oldest'][number], 'amountAtomic'> & { amount: string }

/** Reads how many payments are unfinished, and the oldest of them. */
function readPending({ select }: Selects) {
  const total = select<{ count: number }>(
    `SELECT count(*) AS count FROM payments WHERE ${isUnfinished}`,
  )
  const oldest = select<PendingRow>(
    `SELECT id, network, merchant, route, amount_atomic AS amount, state,
       transaction_hash AS "transaction", created_at AS "createdAt"
     FROM payments WHERE ${isUnfinished} ORDER BY created_at LIMIT $limit`,
  )
  return async (limit: number): Promise<Pending> => {
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
function readPayeeGas({ dialect: { fold, any }, select }: Selects) {
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
  const since = select<PayeeGas>(
    `SELECT network, ${any('payee')} AS payee, ${total} FROM ${slots('payments.id >= $id')}
     GROUP BY network, ${fold('payee')}`,
  )
  const ofOne = select<{ gas: number | null }>(`SELECT ${total} FROM ${slots('payments.id = $id')}`)
  return {
    /** Reserved gas of payments of the facilitator since a time (unix ms), by payee. */
    payeeGasSince: (at: number) => since({ id: idAt(at) }),
    /** The same for one payment; zero for one that is not the facilitator's. */
    payeeGasOf: async (id: string) => (await ofOne({ id }))[0]?.gas ?? 0,
  }
}

const decode = decoderOf(transactions)

type Carrying = Pick<TransactionRow, 'hash' | 'state' | 'relayer' | 'nonce'>
type InBlock = { hash: Hex; blockNumber: number }

/** An included transaction; without a relayer it is an external one. */
export type Included = {
  hash: Hex
  blockNumber: number
  relayer: Address | undefined
  /** Account nonce of the relayer. */
  nonce: number
}

/** `job`: the id of the job that it is for. */
export type Unfinished = { transaction: TransactionRow; job: string | undefined }

export type TransactionReads = ReturnType<typeof createTransactionReads>

export function createTransactionReads({ dialect, select }: Selects) {
  const { fold, isIn, serial } = dialect
  const unfinished = select<{ job: string | null }>(
    `SELECT ${columnsIn(transactions)}, job_transactions.job_id AS job FROM transactions
     LEFT JOIN job_transactions ON job_transactions.transaction_hash = transactions.hash
     WHERE transactions.state IN ('signed', 'sent')
     ORDER BY transactions.nonce, transactions.created_at, transactions.${serial}`,
  )
  const members = select<{ carrier: Hex }>(
    `SELECT m.transaction_hash AS carrier, ${columnsIn(payments)}
     FROM transaction_members AS m JOIN payments ON payments.id = m.payment_id
     WHERE ${isIn('m.transaction_hash', '$hashes')} ORDER BY m.position`,
  )
  const hasMember = select(
    `SELECT 1 FROM transaction_members
     WHERE transaction_hash = $hash AND (CAST($id AS TEXT) IS NULL OR payment_id = $id) LIMIT 1`,
  )
  const carrying = select<Carrying>(
    `SELECT t.hash, t.state, t.relayer, t.nonce FROM transaction_members AS m
     JOIN transactions AS t ON t.hash = m.transaction_hash
     WHERE m.payment_id = $id ORDER BY t.${serial}`,
  )
  const own = select<Included>(
    `SELECT hash, block_number AS "blockNumber", relayer, nonce FROM transactions
     WHERE network = $network AND block_number >= $block`,
  )
  const external = select<InBlock>(externalFrom)
  const atNonces = select<InBlock & { nonce: number }>(
    `SELECT hash, block_number AS "blockNumber", nonce FROM transactions
     WHERE network = $network AND ${fold('relayer')} = ${fold('$relayer')}
       AND nonce >= $from AND nonce < $to
       AND state IN ('mined', 'failed') AND block_number IS NOT NULL ORDER BY nonce`,
  )
  return {
    /** Lower account nonces first, then the older. */
    async unfinished(): Promise<readonly Unfinished[]> {
      const rows = await unfinished()
      return rows.map((row) => ({ transaction: decode(row), job: row.job ?? undefined }))
    },
    /** The payments that one of these transactions contains. */
    async paymentsOf(hashes: readonly Hex[]): Promise<readonly Payment[]> {
      const rows = await members({ hashes: JSON.stringify(hashes) })
      const found = new Map<string, Payment>()
      for (const hash of hashes) {
        for (const row of rows.filter(({ carrier }) => carrier === hash)) {
          const payment = toPayment(row)
          found.set(payment.id, payment)
        }
      }
      return [...found.values()]
    },
    /** Whether a transaction contains this payment, or any when none is named. */
    hasPayment: async (hash: Hex, id?: string) =>
      (await hasMember({ hash, id: id ?? null })).length > 0,
    /** Every transaction that ever contained the payment. */
    ofPayment: (id: string) => carrying({ id }),
    /** Transactions in this block and above it, those of ours and those that paid us. */
    async includedFrom(network: Network.Id, from: bigint): Promise<readonly Included[]> {
      const bounds = { network, block: Number(from) }
      const [ours, others] = await Promise.all([own(bounds), external(bounds)])
      return [...ours, ...others.map((row) => ({ ...row, relayer: undefined, nonce: 0 }))]
    },
    /** Transactions of a relayer that are recorded as included at account nonces below `to`. */
    async includedAt(
      network: Network.Id,
      relayer: Address,
      { from, to }: { from: number; to: number },
    ): Promise<readonly Included[]> {
      const rows = await atNonces({ network, relayer, from, to })
      return rows.map((row) => ({ ...row, relayer }))
    },
  }
}

export type JobReads = ReturnType<typeof createJobReads>

export function createJobReads(selects: Selects) {
  const byId = rowsOf(selects, jobs, decoderOf(jobs)).one('WHERE id = $id')
  return { find: (id: string) => byId({ id }) }
}
