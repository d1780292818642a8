import type { Hex } from 'viem'
import type * as Network from '../../src/protocol/Network'
import type { PaymentReads } from '../Ledger'
import type { Payment } from '../Payment'
import { fromRow } from '../payment-rows'
import { type PaymentRow, payments } from '../schema'
import { createPayeeGas } from './payee-gas'
import { readPending } from './pending'
import type { Reader } from './reader'
import { createRecent } from './recent'
import { fromJson, type Json } from './rows'
import { readTogether } from './together'

export type Selected = { row: Json }

const select = 'SELECT to_jsonb(payments) AS row FROM payments'
// One row for each that is asked for. The limit keeps the planner at the index, whatever it guesses.
const byMoney = `SELECT found.row
  FROM unnest($1::text[], $2::text[], $3::text[], $4::text[])
    WITH ORDINALITY AS asked (network, asset, payer, nonce, place)
  LEFT JOIN LATERAL (
    SELECT to_jsonb(payments) AS row FROM payments
    WHERE payments.network = asked.network AND lower(payments.asset) = lower(asked.asset)
      AND lower(payments.payer) = lower(asked.payer) AND payments.nonce = asked.nonce LIMIT 1
  ) AS found ON true
  ORDER BY asked.place`
// For a payment by itself, which waits for it: it costs half of the statement for many.
const byOneMoney = `${select} WHERE network = $1 AND lower(asset) = lower($2)
  AND lower(payer) = lower($3) AND nonce = $4 LIMIT 1`
const byId = `${select} WHERE id = $1`
const byRedeemToken = `${select} WHERE redeem_token_hash = $1`
const byKey = `${select} WHERE merchant = $1 AND route = $2 AND lower(payer) = lower($3)
  AND idempotency_key = $4 AND state <> 'expired' ORDER BY created_at DESC LIMIT 1`
const unfinished = `${select} WHERE state IN ('broadcast', 'reverted')`
const byLog =
  'SELECT id FROM payments WHERE network = $1 AND transaction_hash = $2 AND log_index = $3'
const taken = `SELECT log_index AS index FROM payments
  WHERE network = $1 AND transaction_hash = $2 AND log_index IS NOT NULL`
const paid = `SELECT 1 AS one FROM payments WHERE network = $1 AND lower(asset) = lower($2)
  AND lower(payer) = lower($3) AND state = 'confirmed' LIMIT 1`
// Both conditions, so that the partial index is used.
const broadcast = `SELECT network, count(*) AS count FROM payments
  WHERE state IN ('broadcast', 'reverted') AND state = 'broadcast' GROUP BY network`

export function createPaymentReads(reader: Reader): PaymentReads {
  const { gasSince, gasOf } = createPayeeGas(reader)
  const { orphans } = createRecent(reader)
  const one = async (text: string, values: readonly unknown[]) =>
    toPayment(await reader.one<Selected>(text, values))
  return {
    find: readTogether((moneys: readonly Money[]) => findAll(reader, moneys)),
    findById: (id) => one(byId, [id]),
    findByRedeemToken: (hash) => one(byRedeemToken, [hash]),
    findByIdempotencyKey: ({ merchant, route, payer, key }) =>
      one(byKey, [merchant, route, payer, key]),
    logOwner: async (network, hash, index) =>
      (await reader.one<{ id: string }>(byLog, [network, hash, index]))?.id,
    takenLogs: async (network: Network.Id, hash: Hex) => {
      const rows = await reader.all<{ index: number }>(taken, [network, hash])
      return new Set(rows.map(({ index }) => index))
    },
    hasPaid: async ({ network, asset, payer }) =>
      (await reader.one(paid, [network, asset, payer])) !== undefined,
    async arrivalOf(id) {
      const row = await reader.one<Selected>(byId, [id])
      if (row === undefined) throw new Error(`no payment ${id}`)
      const { receivedAt, knownBlock } = rowOf(row.row)
      return { receivedAt, knownBlock }
    },
    unfinished: async () => (await reader.all<Selected>(unfinished)).map(({ row }) => decode(row)),
    async countBroadcast() {
      const rows = await reader.all<{ network: Network.Id; count: number }>(broadcast)
      return new Map(rows.map(({ network, count }) => [network, count]))
    },
    pending: (limit) => readPending(reader, limit),
    orphans,
    payeeGasSince: gasSince,
    payeeGasOf: gasOf,
  }
}

type Money = Parameters<PaymentReads['find']>[0]

/** The payments of these moneys, in their order. */
async function findAll(
  reader: Reader,
  moneys: readonly Money[],
): Promise<readonly (Payment | undefined)[]> {
  const [first] = moneys
  if (first !== undefined && moneys.length === 1) {
    const { network, asset, payer, nonce } = first
    const values = [network, asset, payer, nonce.toLowerCase()]
    return [toPayment(await reader.one<Selected>(byOneMoney, values))]
  }
  const rows = await reader.all<{ row: Json }>(byMoney, [
    moneys.map(({ network }) => network),
    moneys.map(({ asset }) => asset),
    moneys.map(({ payer }) => payer),
    moneys.map(({ nonce }) => nonce.toLowerCase()),
  ])
  return rows.map(({ row }) => (row === null ? undefined : decode(row)))
}

/** The payment of a row that is JSON. */
export function decode(row: Json): Payment {
  return fromRow(rowOf(row))
}

function rowOf(row: Json): PaymentRow {
  return fromJson(payments, row)
}

function toPayment(found: Selected | undefined): Payment | undefined {
  return found && decode(found.row)
}
