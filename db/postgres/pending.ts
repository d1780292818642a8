import type { Hex } from 'viem'
import type * as Network from '../../src/protocol/Network'
import type { Pending } from '../Ledger'
import type { PaymentRow } from '../schema'
import type { Reader } from './reader'

const total = `SELECT count(*) AS total FROM payments WHERE state IN ('broadcast', 'reverted')`
const oldest = `SELECT id, network, merchant, route, amount_atomic, state,
    transaction_hash AS transaction, created_at
  FROM payments WHERE state IN ('broadcast', 'reverted') ORDER BY created_at LIMIT $1`

type Row = {
  id: string
  network: Network.Id
  merchant: string
  route: string
  amount_atomic: string
  state: PaymentRow['state']
  transaction: Hex
  created_at: number
}

/** How many payments are sent and not decided, and the oldest of them. */
export async function readPending(reader: Reader, limit: number): Promise<Pending> {
  const [counted, rows] = await Promise.all([
    reader.one<{ total: number }>(total),
    reader.all<Row>(oldest, [limit]),
  ])
  return {
    count: counted?.total ?? 0,
    oldest: rows.map(({ amount_atomic, created_at, ...row }) => ({
      ...row,
      amountAtomic: BigInt(amount_atomic),
      createdAt: created_at,
    })),
  }
}
