import { expect } from 'bun:test'
import type { Hex } from 'viem'
import type { IncludedPayment, Inclusion } from '../../db/Ledger'
import type { NewOrder } from '../../db/orders'
import type { Payment } from '../../db/Payment'
import type { PaymentRow, TransactionRow } from '../../db/schema'
import type { SettlingLedger } from './settling-ledgers'
import {
  asset,
  at,
  freshNetwork,
  hashOf,
  jobRow,
  next,
  paymentRow,
  transactionRow,
} from './settling-rows'

/** Payments that were launched in one transaction. */
export type Launch = {
  transaction: TransactionRow
  rows: readonly PaymentRow[]
  ids: readonly string[]
}

/** What tests of a ledger do again and again. */
export function actionsOf(own: Pick<SettlingLedger, 'ledger' | 'changed' | 'run'>) {
  const { settling, payments } = own.ledger
  const actions = {
    /** Launches payments of new money in one transaction. */
    async launch(
      count = 1,
      changes: Partial<PaymentRow> = {},
      transaction = transactionRow(freshNetwork()),
    ): Promise<Launch> {
      const rows = Array.from({ length: count }, () => paymentRow(transaction, changes))
      const fresh = rows.map((row) => ({ row }))
      const end = await settling.launch({ transaction, fresh, again: [] })
      if (end.kind !== 'stored') throw new Error(end.kind)
      return { transaction, rows, ids: rows.map(({ id }) => id) }
    },
    /** Launches payments, and records a log for each of them. */
    async confirm(count = 1, changes: Partial<PaymentRow> = {}): Promise<Launch> {
      const launched = await actions.launch(count, changes)
      await settling.record(inclusionOf(launched), paidBy(launched.ids))
      return launched
    },
    async launchJob(network = freshNetwork()) {
      const transaction = transactionRow(network, { kind: 'refund', product: 'desk' })
      const job = jobRow(transaction)
      expect(await settling.launchJob({ transaction, job })).toBeUndefined()
      return { transaction, job }
    },
    /** Another transaction at the nonce of a job. */
    async replaceJob({ transaction, job }: { transaction: TransactionRow; job: { id: string } }) {
      const newer = { ...transaction, hash: hashOf(next()), createdAt: at + 1 }
      const hashes = [transaction.hash]
      await settling.replace({ transaction: newer, hashes, payments: [], job: job.id })
      return newer
    },
    async payment(id: string | undefined): Promise<Payment> {
      const found = await payments.findById(id ?? '')
      if (!found) throw new Error(`no payment ${id}`)
      return found
    },
    statesOf: async (ids: readonly string[]) =>
      (await Promise.all(ids.map(actions.payment))).map(({ state }) => state),
    /** State, block and cost of a transaction. */
    transaction: async (hash: Hex) =>
      (
        await own.run(
          `SELECT state, block_number AS block, cost_wei AS cost FROM transactions WHERE hash = '${hash}'`,
        )
      )[0],
    /** Ids that the listeners were told of, each once. */
    async changedBy(work: () => Promise<unknown>): Promise<string[]> {
      const before = own.changed.length
      await work()
      return [...new Set(own.changed.slice(before))].toSorted()
    },
    /** A charge that the buyer may have been given the answer for. */
    authorize: (row: PaymentRow, isDelivered = true) => own.run(authorizationOf(row, isDelivered)),
  }
  return actions
}

export type Actions = ReturnType<typeof actionsOf>

/** The receipt of a transaction at block 200. */
export function inclusionOf(
  { transaction: included }: Pick<Launch, 'transaction'>,
  changes: Partial<Inclusion> = {},
): Inclusion {
  return {
    included,
    blockNumber: 200n,
    success: true,
    spentWei: 11n,
    receipt: '',
    hashes: [included.hash],
    job: undefined,
    at: at + 1,
    ...changes,
  }
}

/** One log for each payment. */
export function paidBy(ids: readonly string[], startsDelivery = false): IncludedPayment[] {
  return ids.map((id, index) => ({ id, logs: [index], startsDelivery }))
}

export function orderOf({ network, payer }: PaymentRow): NewOrder {
  return {
    id: `ord_${next().toString(16).padStart(32, '0')}`,
    network,
    symbol: 'TSLA',
    token: asset,
    pool: asset,
    poolFee: 500,
    payer,
    recipient: payer,
    usdgAtomic: 5n,
    totalAtomic: 6n,
    quotedAtomic: 7n,
    floorAtomic: 4n,
    createdAt: at,
  }
}

function authorizationOf(row: PaymentRow, isDelivered: boolean): string {
  const delivered = isDelivered ? 'true, 200, true' : 'false, NULL, false'
  return `INSERT INTO authorizations (id, network, chain_id, asset, payer, payee, ceiling_atomic,
      facilitator, nonce, valid_after, valid_before, signature, product, merchant, route,
      fingerprint, resource, bound, received_at, known_block, state, charge_atomic, units,
      is_delivered, upstream_status, truncated, created_at)
    VALUES ('${row.id}', '${row.network}', ${row.chainId}, '${row.asset}', '${row.payer}',
      '${row.payee}', '${row.ceilingAtomic}', '${row.facilitator}', '${row.nonce}', '0',
      '${row.validBefore}', '0xab', 'gateway', '${row.merchant}', '${row.route}', 'f', 'x', true,
      ${at}, 1, 'metered', '${row.amountAtomic}', '{}', ${delivered}, ${at})`
}
