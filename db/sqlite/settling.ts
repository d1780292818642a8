import type { SettlingCommits } from '../Ledger'
import { createEnds } from './ends'
import { createLaunches } from './launches'
import type { Parts } from './parts'
import { write } from './write'

export function createSettling(parts: Parts): SettlingCommits {
  return { ...createLaunches(parts), ...createChanges(parts), ...createEnds(parts) }
}

type Changes = Pick<
  SettlingCommits,
  'replace' | 'confirm' | 'expire' | 'revert' | 'reopen' | 'resendJob'
>

function createChanges({ db, statements, changes, outbox }: Parts): Changes {
  const { payments, transactions, jobs } = statements
  /** Changes the state of one payment, and reports a change. */
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
      change(id, () => {
        const confirmed = payments.confirm(id, assignment, at)
        if (confirmed) outbox.confirmed(confirmed, at)
        return confirmed !== undefined
      })
    },
    async expire(id, isUsed) {
      change(id, () => payments.expire(id, isUsed))
    },
    async revert(id, hashes) {
      change(id, () => payments.revert(id, hashes))
    },
    async reopen(network, hash) {
      const paid = payments.paidBy(network, hash)
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
