import type { NewPayment, SettlingCommits } from '../Ledger'
import type { Payment } from '../Payment'
import { paymentOf } from '../rows'
import type { PaymentRow } from '../schema'
import type { Parts } from './parts'
import { RefusedError } from './riders'
import { isBarred, isDuplicate, write } from './write'

type Launches = Pick<SettlingCommits, 'launch' | 'launchJob' | 'storeExternal'>
type Launch = Parameters<SettlingCommits['launch']>[0]

/** Writes before bytes are sent, or for a payment with an external settlement. */
export function createLaunches(parts: Parts): Launches {
  const { db, changes } = parts
  return {
    async launch(input) {
      const progress = { id: '' }
      try {
        return { kind: 'stored', payments: write(db, () => store(parts, input, progress)) }
      } catch (error) {
        if (error instanceof RefusedError) {
          return { kind: 'refused', ids: [progress.id], reason: error.reason }
        }
        if (isBarred(error)) {
          return { kind: 'refused', ids: [progress.id], reason: 'money-authorized' }
        }
        const known = isDuplicate(error) ? findKnown(parts, input) : new Map<string, Payment>()
        if (known.size === 0) throw error
        return { kind: 'known', payments: known }
      }
    },
    launchJob: (input) => launchJob(parts, input),
    async storeExternal(input) {
      try {
        write(db, () => void insert(parts, input))
        changes.payment(input.row.id)
        return 'stored'
      } catch (error) {
        if (error instanceof RefusedError) return { refused: error.reason }
        if (isBarred(error)) return { refused: 'money-authorized' }
        if (isDuplicate(error)) return 'known'
        throw error
      }
    },
  }
}

/** `progress` reports which payment is being inserted. */
function store(
  { statements, changes, ...parts }: Parts,
  { transaction, fresh, again }: Launch,
  progress: { id: string },
): Payment[] {
  const resent = again.map((payment): Payment => {
    if (!statements.payments.rebroadcast(payment.id, transaction.hash)) {
      throw new Error(`payment ${payment.id} is not to be sent again`)
    }
    changes.payment(payment.id)
    return { ...payment, state: 'broadcast', transaction: transaction.hash }
  })
  const inserted = fresh.map((each) => {
    progress.id = each.row.id
    return insert({ statements, ...parts }, each)
  })
  const payments = [...resent, ...inserted]
  statements.transactions.insertTransaction(
    transaction,
    payments.map(({ id }) => id),
  )
  return payments
}

function insert(
  { statements, riders, outbox }: Pick<Parts, 'statements' | 'riders' | 'outbox'>,
  { row, rows }: NewPayment,
): Payment {
  const payment = insertWith(statements, riders, { row, rows })
  // With an external settlement the first row is confirmed already.
  if (payment.confirmedAt !== undefined) outbox.confirmed(payment, payment.confirmedAt)
  return payment
}

function insertWith(
  statements: Parts['statements'],
  riders: Parts['riders'],
  { row, rows }: NewPayment,
): Payment {
  if (rows && 'settles' in rows) return settle(statements, row)
  statements.payments.insertPayment(row)
  if (rows) riders.orders.insert(rows, { id: row.id, transaction: row.transactionHash })
  return paymentOf(row)
}

/** The payment of an authorization. Its buyer may have the answer already. */
function settle({ payments, authorizations }: Parts['statements'], row: PaymentRow): Payment {
  const authorization = authorizations.send(row.id)
  if (authorization === undefined) throw new RefusedError('money-authorized')
  const { delivered } = authorization
  const { createdAt: deliveredAt } = row
  const stored: PaymentRow =
    delivered === undefined
      ? row
      : { ...row, ...delivered, delivery: 'delivered', attempts: 1, answered: true, deliveredAt }
  payments.insertPayment(stored)
  return paymentOf(stored)
}

/** New payments whose money is stored already. */
function findKnown({ statements }: Parts, { fresh }: Launch): Map<string, Payment> {
  const known = new Map<string, Payment>()
  for (const { row } of fresh) {
    const payment = statements.payments.find(row)
    if (payment) known.set(row.id, payment)
  }
  return known
}

async function launchJob(
  { db, statements, riders }: Parts,
  { transaction, job, rider }: Parameters<SettlingCommits['launchJob']>[0],
): ReturnType<SettlingCommits['launchJob']> {
  try {
    write(db, () => {
      statements.transactions.insertTransaction(transaction, [])
      statements.jobs.insert(job)
      if (rider?.kind === 'order') riders.orders.ride(rider, transaction.hash)
      if (rider?.kind === 'grant') riders.grants.ride(rider, transaction.hash)
    })
    return undefined
  } catch (error) {
    if (rider?.kind === 'grant') riders.grants.undo()
    if (error instanceof RefusedError) return error.reason
    throw error
  }
}
