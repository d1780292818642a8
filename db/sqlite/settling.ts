import type { ChangeListener, SettlingCommits } from '../Ledger'
import type { Payment } from '../Payment'
import { createEnds } from './ends'
import type { Group } from './group'
import type { Db } from './open'
import { fromRow } from './payments'
import { RefusedError, type Riders } from './riders'
import type { Statements } from './statements'
import { isDuplicate, write } from './write'

/** What the commits of settlement are made of. */
export type Parts = {
  db: Db
  group: Group
  statements: Statements
  changes: ChangeListener
  riders: Riders
}

export function createSettling(parts: Parts): SettlingCommits {
  return { ...createLaunches(parts), ...createChanges(parts), ...createEnds(parts) }
}

type Launches = Pick<SettlingCommits, 'launch' | 'launchJob' | 'adopt'>

/** What is written before bytes leave, or because they have left elsewhere. */
function createLaunches({ db, statements, changes, riders }: Parts): Launches {
  const { payments, transactions, jobs } = statements
  const insert: Insert = ({ row, rows }) => {
    payments.insertPayment(row)
    if (rows) riders.orders.insert(rows, { id: row.id, transaction: row.transactionHash })
    return fromRow(row)
  }
  return {
    async launch({ transaction, fresh, again }) {
      let writing = ''
      try {
        const stored = write(db, () => {
          const resent = again.map((payment): Payment => {
            if (!payments.rebroadcast(payment.id, transaction.hash)) {
              throw new Error(`payment ${payment.id} is not to be sent again`)
            }
            changes.payment(payment.id)
            return { ...payment, state: 'broadcast', transaction: transaction.hash }
          })
          const inserted = fresh.map((each) => {
            writing = each.row.id
            return insert(each)
          })
          const all = [...resent, ...inserted]
          transactions.insertTransaction(
            transaction,
            all.map(({ id }) => id),
          )
          return all
        })
        return { kind: 'stored', payments: stored }
      } catch (error) {
        if (error instanceof RefusedError) {
          return { kind: 'refused', id: writing, reason: error.reason }
        }
        if (!isDuplicate(error)) throw error
        const known = new Map(
          fresh.flatMap(({ row }) => {
            const payment = payments.find(row)
            return payment ? [[row.id, payment] as const] : []
          }),
        )
        if (known.size === 0) throw error
        return { kind: 'known', payments: known }
      }
    },
    async launchJob({ transaction, job, rider }) {
      try {
        write(db, () => {
          transactions.insertTransaction(transaction, [])
          jobs.insert(job)
          if (rider?.kind === 'order') riders.orders.ride(rider, transaction.hash)
          if (rider?.kind === 'grant') riders.grants.ride(rider, transaction.hash)
        })
        return undefined
      } catch (error) {
        if (rider?.kind === 'grant') riders.grants.undo()
        if (error instanceof RefusedError) return error.reason
        throw error
      }
    },
    async adopt(input) {
      try {
        write(db, () => void insert(input))
        changes.payment(input.row.id)
        return 'stored'
      } catch (error) {
        if (error instanceof RefusedError) return { refused: error.reason }
        if (isDuplicate(error)) return 'known'
        throw error
      }
    },
  }
}

type Insert = (payment: Parameters<SettlingCommits['adopt']>[0]) => Payment

type Changes = Pick<
  SettlingCommits,
  'replace' | 'confirm' | 'expire' | 'revert' | 'reopen' | 'resendJob'
>

function createChanges({ db, statements, changes }: Parts): Changes {
  const { payments, transactions, jobs, recent } = statements
  /** One payment whose state changes, or does not. */
  const change = (id: string, make: () => boolean) => {
    if (write(db, make)) changes.payment(id)
  }
  return {
    async replace({ transaction, hashes, payments: ids, job }) {
      write(db, () => {
        transactions.insertTransaction(transaction, ids)
        if (job !== undefined) jobs.renew(job, transaction.hash)
        for (const id of ids) payments.renew(id, transaction.hash, hashes)
      })
      if (job !== undefined) changes.job(job)
    },
    async confirm(id, assignment, at) {
      change(id, () => payments.confirm(id, assignment, at) !== undefined)
    },
    async expire(id, isUsed) {
      change(id, () => payments.expire(id, isUsed))
    },
    async revert(id, hashes) {
      change(id, () => payments.revert(id, hashes))
    },
    async reopen(network, hash) {
      const paid = recent.paidBy(network, hash)
      const job = write(db, () => {
        transactions.reopen(network, hash)
        return jobs.reopen(hash)
      })
      if (job !== undefined) changes.job(job)
      for (const id of paid) changes.payment(id)
      return { payments: paid, job }
    },
    async resendJob(id) {
      return write(db, () => {
        jobs.resend(id)
        return jobs.transactionsOf(id)
      })
    },
  }
}
