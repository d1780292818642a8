import type { Address } from 'viem'
import type * as Network from '../../src/protocol/Network'
import type { PayeeGas } from '../Ledger'
import type { Reader } from './reader'

/** Gas of a payment at each account nonce; `condition` selects the payments. */
const slots = (condition: string) => `
  SELECT payments.network, payments.payee, max(transactions.gas_limit::bigint / (
    SELECT count(*) FROM transaction_members AS m
    WHERE m.transaction_hash = transactions.hash)) AS gas
  FROM payments
  JOIN transaction_members ON transaction_members.payment_id = payments.id
  JOIN transactions ON transactions.hash = transaction_members.transaction_hash
  WHERE ${condition} AND payments.product = 'facilitator' AND transactions.state <> 'replaced'
  GROUP BY payments.id, lower(transactions.relayer), transactions.nonce`
const since = `SELECT network, min(payee) AS payee, sum(gas)::bigint AS gas
  FROM (${slots('payments.id >= $1')}) AS slots GROUP BY network, lower(payee)`
const ofOne = `SELECT sum(gas)::bigint AS gas FROM (${slots('payments.id = $1')}) AS slots`

/** Reads the gas of the facilitator by payee, as db/sqlite/payee-gas.ts says. */
export function createPayeeGas(reader: Reader) {
  return {
    /** Gas of payments that arrived since then (unix ms): their ids begin with the time. */
    gasSince: (at: number): Promise<readonly PayeeGas[]> =>
      reader.all<{ network: Network.Id; payee: Address; gas: number }>(since, [
        `pay_${at.toString(16).padStart(12, '0')}`,
      ]),
    /** Zero for a payment that is not the facilitator's. */
    gasOf: async (paymentId: string): Promise<number> =>
      (await reader.one<{ gas: number | null }>(ofOne, [paymentId]))?.gas ?? 0,
  }
}
