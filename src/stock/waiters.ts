import type { Order } from '../../db/Order'

/** Requests that wait for orders to change. */
export type Waiters = {
  /** An order has changed. */
  tell(id: string): void
  /** Resolves with the order as soon as it is as wanted, or as it is after the time. */
  wait(id: string, isWanted: (order: Order) => boolean, ms: number): Promise<Order>
}

/** `find` reads an order as it is now. */
export function createWaiters(find: (id: string) => Promise<Order | undefined>): Waiters {
  const waiters = new Map<string, Set<() => void>>()
  return {
    tell(id) {
      for (const wake of waiters.get(id) ?? []) wake()
    },
    wait: (id, isWanted, ms) =>
      new Promise((resolve, reject) => {
        const waiting = waiters.get(id) ?? new Set()
        waiters.set(id, waiting)
        const leave = () => {
          clearTimeout(timer)
          waiting.delete(check)
          if (waiting.size === 0 && waiters.get(id) === waiting) waiters.delete(id)
        }
        /** Reads the order; a later call may answer first. */
        const look = async (isLate: boolean) => {
          try {
            const order = await find(id)
            if (order === undefined) throw new Error(`no order ${id}`)
            if (!isLate && !isWanted(order)) return
            resolve(order)
          } catch (error) {
            reject(error)
          }
          leave()
        }
        const check = () => void look(false)
        const timer = setTimeout(() => void look(true), ms)
        // Registered before the first look: a change after it is told.
        waiting.add(check)
        check()
      }),
  }
}
