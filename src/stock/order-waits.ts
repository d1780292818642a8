import type { Order } from '../../db/Order'

/** Requests that wait for orders to change. */
export type OrderWaits = {
  /** Notifies that an order has changed. */
  notify(id: string): void
  /** Resolves with the order as soon as `isWanted` accepts it, or after the time (ms). */
  wait(id: string, isWanted: (order: Order) => boolean, ms: number): Promise<Order>
}

/**
 * `find` reads the current order. `lookMs`: how often it is read without a notification, where another
 * process may change it.
 */
export function createOrderWaits(
  find: (id: string) => Promise<Order | undefined>,
  lookMs?: number,
): OrderWaits {
  const waits = new Map<string, Set<() => void>>()
  return {
    notify(id) {
      for (const wake of waits.get(id) ?? []) wake()
    },
    wait: (id, isWanted, ms) =>
      new Promise((resolve, reject) => {
        const waiting = waits.get(id) ?? new Set()
        waits.set(id, waiting)
        const leave = () => {
          clearTimeout(timer)
          clearInterval(looking)
          waiting.delete(check)
          if (waiting.size === 0 && waits.get(id) === waiting) waits.delete(id)
        }
        /** Reads the order; a later call may answer first. */
        const read = async (isLate: boolean) => {
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
        const check = () => void read(false)
        const timer = setTimeout(() => void read(true), ms)
        const looking = lookMs && setInterval(check, lookMs)
        // Registered before the first read, so that a later change is not missed.
        waiting.add(check)
        check()
      }),
  }
}
