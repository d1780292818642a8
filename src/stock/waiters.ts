import type { Order } from '../../db/Order'

/** Requests that wait for orders to change. */
export type Waiters = {
  /** An order has changed. */
  tell(id: string): void
  /** Resolves with the order as soon as it is as wanted, or as it is after the time. */
  wait(id: string, isWanted: (order: Order) => boolean, ms: number): Promise<Order>
}

/** `find` reads an order as it is now. */
export function createWaiters(find: (id: string) => Order | undefined): Waiters {
  const waiters = new Map<string, Set<() => void>>()
  return {
    tell(id) {
      for (const wake of waiters.get(id) ?? []) wake()
    },
    wait: (id, isWanted, ms) =>
      new Promise((resolve, reject) => {
        const waiting = waiters.get(id) ?? new Set()
        waiters.set(id, waiting)
        const end = (order: Order | undefined) => {
          clearTimeout(timer)
          waiting.delete(check)
          if (waiting.size === 0 && waiters.get(id) === waiting) waiters.delete(id)
          if (order === undefined) reject(new Error(`no order ${id}`))
          else resolve(order)
        }
        const check = () => {
          const order = find(id)
          if (order === undefined || isWanted(order)) end(order)
        }
        const late = () => {
          try {
            end(find(id))
          } catch (error) {
            // The database is closed: the process stops.
            reject(error)
          }
        }
        const timer = setTimeout(late, ms)
        waiting.add(check)
        check()
      }),
  }
}
