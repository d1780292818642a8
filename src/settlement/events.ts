import type { JobStatements } from '../../db/sqlite/jobs'
import type { Store } from '../../db/sqlite/payments'

type Listener = (id: string) => void

/** Changes of many things, told by id after the change is on the disk. */
export type Events = {
  /** Tells the listeners after the database transaction that it is called in. */
  emit(id: string): void
  on(listener: Listener): void
  /** Resolves to true when the id changes, to false after the time or `release`. */
  wait(id: string, ms: number): Promise<boolean>
  /** Ends every wait. */
  release(): void
}

/** Tells its listeners at once, in the caller's turn. */
export type Signal = { emit(): void; on(listener: () => void): void }

export function createSignal(): Signal {
  const listeners: (() => void)[] = []
  return {
    emit() {
      for (const listener of listeners) listener()
    },
    on: (listener) => void listeners.push(listener),
  }
}

/** `fault` gets what a listener throws. */
export function createEvents(fault: (error: unknown) => void): Events {
  const listeners: Listener[] = []
  const waiters = new Map<string, Set<(isChanged: boolean) => void>>()

  const wake = (id: string, isChanged: boolean) => {
    const waiting = waiters.get(id)
    waiters.delete(id)
    for (const end of waiting ?? []) end(isChanged)
  }

  const tell = (id: string) => {
    wake(id, true)
    for (const listener of listeners) {
      try {
        listener(id)
      } catch (error) {
        fault(error)
      }
    }
  }

  return {
    // A database transaction is synchronous: a microtask comes after its end.
    emit(id) {
      if (listeners.length > 0 || waiters.size > 0) queueMicrotask(() => tell(id))
    },
    on: (listener) => void listeners.push(listener),
    wait(id, ms) {
      return new Promise((resolve) => {
        const waiting = waiters.get(id) ?? new Set()
        waiters.set(id, waiting)
        const end = (isChanged: boolean) => {
          clearTimeout(timer)
          waiting.delete(end)
          if (waiting.size === 0 && waiters.get(id) === waiting) waiters.delete(id)
          resolve(isChanged)
        }
        const timer = setTimeout(() => end(false), ms)
        waiting.add(end)
      })
    },
    release() {
      for (const id of [...waiters.keys()]) wake(id, false)
    },
  }
}

/** The statements on payments, with an event for each change of a payment's state. */
export function emitPayments(store: Store, events: Events): Store {
  return {
    ...store,
    insertPayment(row) {
      if (row.state !== 'broadcast') events.emit(row.id)
      return store.insertPayment(row)
    },
    confirm(id, assignment, at) {
      const payment = store.confirm(id, assignment, at)
      if (payment) events.emit(id)
      return payment
    },
    confirmAndBegin(id, assignment, at) {
      const payment = store.confirmAndBegin(id, assignment, at)
      if (payment) events.emit(id)
      return payment
    },
    revert: (id, hashes) => emitIf(events, id, store.revert(id, hashes)),
    expire: (id, isUsed) => emitIf(events, id, store.expire(id, isUsed)),
    rebroadcast: (id, hash) => emitIf(events, id, store.rebroadcast(id, hash)),
  }
}

/** The statements on jobs, with an event for each change of a job's state or newest transaction. */
export function emitJobs(statements: JobStatements, events: Events): JobStatements {
  return {
    ...statements,
    renew(id, hash) {
      events.emit(id)
      statements.renew(id, hash)
    },
    end: (id, end, at) => emitIf(events, id, statements.end(id, end, at)),
    reopen(hash) {
      const id = statements.reopen(hash)
      if (id !== undefined) events.emit(id)
      return id
    },
  }
}

function emitIf(events: Events, id: string, isChanged: boolean): boolean {
  if (isChanged) events.emit(id)
  return isChanged
}
