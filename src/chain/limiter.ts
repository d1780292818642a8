/**
 * Who may ask a node now. Bytes that were signed and their receipts never wait; simulations of
 * payments leave them room; health checks and other reads come last. So neither a flood of
 * credentials nor a node that limits its rate keeps a payment that is on its way from being sent.
 */
export type Gate = {
  /** Resolves to false when no room was found in time, or the gate was closed. */
  enter(rank: Rank, timeoutMs: number): Promise<boolean> | true
  leave(rank: Rank): void
  /** A node limits the rate: what can wait does so for a second. */
  slowDown(): void
  close(): void
}

export type Rank = 'settlement' | 'payment' | 'background'

const roomOf = { payment: 64, background: 8 } as const
const slowMs = 1_000

type Entrant = { admit(isIn: boolean): void }

export function createGate(
  room: Readonly<Record<'payment' | 'background', number>> = roomOf,
): Gate {
  const inside = { payment: 0, background: 0 }
  const queues = { payment: new Set<Entrant>(), background: new Set<Entrant>() }
  let slow: ReturnType<typeof setTimeout> | undefined
  let isClosed = false

  const hasRoom = (rank: 'payment' | 'background') =>
    inside[rank] < room[rank] &&
    (rank === 'payment' || (slow === undefined && queues.payment.size === 0))

  const admit = () => {
    for (const rank of ['payment', 'background'] as const) {
      for (const entrant of queues[rank]) {
        if (!hasRoom(rank)) break
        queues[rank].delete(entrant)
        inside[rank]++
        entrant.admit(true)
      }
    }
  }

  return {
    enter(rank, timeoutMs) {
      if (rank === 'settlement') return true
      if (isClosed) return Promise.resolve(false)
      if (queues[rank].size === 0 && hasRoom(rank)) {
        inside[rank]++
        return true
      }
      return new Promise((resolve) => {
        const entrant: Entrant = {
          admit(isIn) {
            clearTimeout(timer)
            resolve(isIn)
          },
        }
        const timer = setTimeout(() => {
          queues[rank].delete(entrant)
          resolve(false)
          // Background waits for this queue to be empty.
          admit()
        }, timeoutMs)
        queues[rank].add(entrant)
      })
    },
    leave(rank) {
      if (rank === 'settlement') return
      inside[rank]--
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
        for (const entrant of queue) entrant.admit(false)
        queue.clear()
      }
    },
  }
}
