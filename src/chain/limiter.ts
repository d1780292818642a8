/**
 * Limits concurrent calls to nodes by rank. Signed transactions and their receipts never wait.
 * Simulations of payments have a limit of their own. Health checks and other reads come last. So
 * neither a flood of credentials nor a node that limits its rate delays a payment that was sent.
 */
export type Limiter = {
  /** Resolves to false when there was no room within `timeoutMs`, or the limiter was closed. */
  acquire(rank: Rank, timeoutMs: number): Promise<boolean> | true
  release(rank: Rank): void
  /** Call it when a node limits the rate: background calls then wait for a second. */
  slowDown(): void
  close(): void
}

export type Rank = 'settlement' | 'payment' | 'background'

const roomOf = { payment: 64, background: 8 } as const
const slowMs = 1_000

type Waiting = { admit(isAdmitted: boolean): void }

export function createLimiter(
  room: Readonly<Record<'payment' | 'background', number>> = roomOf,
): Limiter {
  const active = { payment: 0, background: 0 }
  const queues = { payment: new Set<Waiting>(), background: new Set<Waiting>() }
  let slow: ReturnType<typeof setTimeout> | undefined
  let isClosed = false

  const hasRoom = (rank: 'payment' | 'background') =>
    active[rank] < room[rank] &&
    (rank === 'payment' || (slow === undefined && queues.payment.size === 0))

  const admit = () => {
    for (const rank of ['payment', 'background'] as const) {
      for (const waiting of queues[rank]) {
        if (!hasRoom(rank)) break
        queues[rank].delete(waiting)
        active[rank]++
        waiting.admit(true)
      }
    }
  }

  return {
    acquire(rank, timeoutMs) {
      if (rank === 'settlement') return true
      if (isClosed) return Promise.resolve(false)
      if (queues[rank].size === 0 && hasRoom(rank)) {
        active[rank]++
        return true
      }
      return new Promise((resolve) => {
        const waiting: Waiting = {
          admit(isAdmitted) {
            clearTimeout(timer)
            resolve(isAdmitted)
          },
        }
        const timer = setTimeout(() => {
          queues[rank].delete(waiting)
          resolve(false)
          // Background calls wait until this queue is empty.
          admit()
        }, timeoutMs)
        queues[rank].add(waiting)
      })
    },
    release(rank) {
      if (rank === 'settlement') return
      active[rank]--
      admit()
    },
    slowDown() {
      if (isClosed) return
      clearTimeout(slow)
      slow = setTimeout(() => {
        slow = undefined
        admit()
      }, slowMs)
    },
    close() {
      isClosed = true
      clearTimeout(slow)
      for (const queue of Object.values(queues)) {
        for (const waiting of queue) waiting.admit(false)
        queue.clear()
      }
    },
  }
}
