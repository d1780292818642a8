import type { JobReads, PaymentReads, TransactionReads } from '../Ledger'
import type { Db } from './open'
import { createPayeeGas } from './payee-gas'
import { readPending } from './pending'
import type { Statements } from './statements'

export function createPaymentReads(db: Db, { payments, recent }: Statements): PaymentReads {
  const { gasSince, gasOf } = createPayeeGas(db)
  return {
    find: async (money) => payments.find(money),
    findById: async (id) => payments.findById(id),
    findByRedeemToken: async (hash) => payments.findByRedeemToken(hash),
    findByIdempotencyKey: async (scope) => payments.findByIdempotencyKey(scope),
    logOwner: async (network, hash, index) => payments.logOwner(network, hash, index),
    takenLogs: async (network, hash) => payments.takenLogs(network, hash),
    hasPaid: async (payer) => payments.hasPaid(payer),
    arrivalOf: async (id) => payments.arrivalOf(id),
    unfinished: async () => payments.unfinishedPayments(),
    countBroadcast: async () => payments.countBroadcast(),
    pending: async (limit) => readPending(db, limit),
    orphans: async (network) => recent.orphans(network),
    payeeGasSince: async (at) => gasSince(at),
    payeeGasOf: async (id) => gasOf(id),
  }
}

export function createTransactionReads({
  payments,
  transactions,
  jobs,
  recent,
}: Statements): TransactionReads {
  return {
    unfinished: async () =>
      transactions.unfinishedTransactions().map((transaction) => ({
        transaction,
        job: jobs.findByTransaction(transaction.hash),
      })),
    paymentsOf: async (hashes) => {
      const ids = new Set(hashes.flatMap(transactions.membersOf))
      return [...ids].flatMap((id) => payments.findById(id) ?? [])
    },
    hasPayment: async (hash, id) => {
      const members = transactions.membersOf(hash)
      return id === undefined ? members.length > 0 : members.includes(id)
    },
    ofPayment: async (id) => transactions.transactionsOf(id),
    includedFrom: async (network, block) => recent.includedFrom(network, block),
    includedAt: async (network, relayer, nonces) => recent.includedAt(network, relayer, nonces),
  }
}

export function createJobReads({ jobs }: Statements): JobReads {
  return { find: async (id) => jobs.find(id) }
}
