import type { PaymentReads } from '../Ledger'
import { createPaymentReads as createReads } from '../payment-reads'
import { toPayment } from '../rows'
import { type Reader, selectsOf } from './reader'
import type { Json } from './rows'
import { readTogether } from './together'

export type Selected = { row: Json }

// One row for each that is asked for. The limit keeps the planner at the index, whatever it guesses.
const byMoneys = `SELECT found.row
  FROM unnest($1::text[], $2::text[], $3::text[], $4::text[])
    WITH ORDINALITY AS asked (network, asset, payer, nonce, place)
  LEFT JOIN LATERAL (
    SELECT to_jsonb(payments) AS row FROM payments
    WHERE payments.network = asked.network AND lower(payments.asset) = lower(asked.asset)
      AND lower(payments.payer) = lower(asked.payer) AND payments.nonce = asked.nonce LIMIT 1
  ) AS found ON true
  ORDER BY asked.place`

export function createPaymentReads(reader: Reader): PaymentReads {
  const reads = createReads(selectsOf(reader))
  const find = async (moneys: readonly Parameters<PaymentReads['find']>[0][]) => {
    const [first] = moneys
    // A payment by itself waits for it: it costs half of the statement for many.
    if (first !== undefined && moneys.length === 1) return [await reads.find(first)]
    const rows = await reader.all<Selected>(byMoneys, [
      moneys.map(({ network }) => network),
      moneys.map(({ asset }) => asset),
      moneys.map(({ payer }) => payer),
      moneys.map(({ nonce }) => nonce.toLowerCase()),
    ])
    return rows.map(({ row }) => (row === null ? undefined : toPayment(row)))
  }
  return { ...reads, find: readTogether(find) }
}
