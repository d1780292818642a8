import type { JobStatements } from '../../db/jobs'
import type { Bell } from './bell'
import type { Store } from './store'

/** The statements on payments, ringing when one changes a payment's state. */
export function tellPayments(store: Store, bell: Bell): Store {
  return {
    ...store,
    insertPayment(row) {
      if (row.state !== 'broadcast') bell.ring(row.id)
      return store.insertPayment(row)
    },
    confirm(id, assignment, at) {
      const payment = store.confirm(id, assignment, at)
      if (payment) bell.ring(id)
      return payment
    },
    confirmAndBegin(id, assignment, at) {
      const payment = store.confirmAndBegin(id, assignment, at)
      if (payment) bell.ring(id)
      return payment
    },
    revert: (id, hashes) => tell(bell, id, store.revert(id, hashes)),
    expire: (id, isUsed) => tell(bell, id, store.expire(id, isUsed)),
    rebroadcast: (id, hash) => tell(bell, id, store.rebroadcast(id, hash)),
  }
}

/** The statements on jobs, ringing when one changes a job's state or newest transaction. */
export function tellErrands(statements: JobStatements, bell: Bell): JobStatements {
  return {
    ...statements,
    renew(id, hash) {
      bell.ring(id)
      statements.renew(id, hash)
    },
    end: (id, end, at) => tell(bell, id, statements.end(id, end, at)),
    reopen(hash) {
      const id = statements.reopen(hash)
      if (id !== undefined) bell.ring(id)
      return id
    },
  }
}

function tell(bell: Bell, id: string, isChanged: boolean): boolean {
  if (isChanged) bell.ring(id)
  return isChanged
}
