import type { Hex } from 'viem'
import type { Included, JobReads, TransactionReads } from './Ledger'
import type { Payment } from './Payment'
import { externalFrom } from './payment-reads'
import { toPayment } from './rows'
import { jobs, payments, transactions } from './schema'
import { columnsIn, decoderOf, rowsOf, type Selects } from './select'

const decode = decoderOf(transactions)

type Carrying = Awaited<ReturnType<TransactionReads['ofPayment']>>[number]
type InBlock = { hash: Hex; blockNumber: number }

export function createTransactionReads({ dialect, select }: Selects): TransactionReads {
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
    unfinished: async () =>
      (await unfinished()).map((row) => ({
        transaction: decode(row),
        job: row.job ?? undefined,
      })),
    async paymentsOf(hashes) {
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
    hasPayment: async (hash, id) => (await hasMember({ hash, id: id ?? null })).length > 0,
    ofPayment: (id) => carrying({ id }),
    async includedFrom(network, from) {
      const bounds = { network, block: Number(from) }
      const [ours, others] = await Promise.all([own(bounds), external(bounds)])
      return [...ours, ...others.map((row) => ({ ...row, relayer: undefined, nonce: 0 }))]
    },
    async includedAt(network, relayer, { from, to }) {
      const rows = await atNonces({ network, relayer, from, to })
      return rows.map((row) => ({ ...row, relayer }))
    },
  }
}

export function createJobReads(selects: Selects): JobReads {
  const byId = rowsOf(selects, jobs, decoderOf(jobs)).one('WHERE id = $id')
  return { find: (id) => byId({ id }) }
}
