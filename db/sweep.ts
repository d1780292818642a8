import type { Bounds, SweepReason, Swept, WebhookLedger } from './WebhookLedger'

/** The statements of a sweep. */
export type SweepBase = {
  /** Endpoints with waiting messages, by name. `expired`: how many of them have. */
  waiting(at: number): Awaitable<readonly Waiting[]>
  /** Endpoints with ended messages, by name, and the oldest end (unix ms). */
  ended(): Awaitable<readonly { endpoint: string; ended: number; oldest: number }[]>
  /** The end of the newest message but `offset`; undefined when there are fewer. */
  endAt(endpoint: string, offset: number): Awaitable<number | undefined>
  /** Gives up expired messages. Resolves with their number. */
  expire(endpoint: string, reason: SweepReason, at: number): Promise<number>
  /** Gives up the oldest messages. */
  drop(endpoint: string, count: number, at: number): Promise<number>
  /** Deletes messages that ended until `from`, at most as many as a commit may. */
  forget(endpoint: string, from: number): Promise<void>
}

type Awaitable<T> = T | Promise<T>
type Waiting = { endpoint: string; origin: string; waiting: number; expired: number }

/** Most ended messages that one commit deletes. */
export const deletedMax = 1_000

/** Keeps the outbox within its bounds. Reads first, so that nothing to do writes nothing. */
export function createSweep(base: SweepBase): WebhookLedger['sweep'] {
  return async (at, endpoints, bounds) => {
    const swept: Swept[] = []
    for (const { endpoint, origin, waiting, expired } of await base.waiting(at)) {
      const reason: SweepReason = endpoints.includes(endpoint) ? 'expired' : 'removed'
      if (expired > 0) {
        const count = await base.expire(endpoint, reason, at)
        if (count > 0) swept.push({ endpoint, origin, reason, count })
      }
      const more = waiting - expired - bounds.waitingMax
      if (more <= 0) continue
      const count = await base.drop(endpoint, more, at)
      if (count > 0) swept.push({ endpoint, origin, reason: 'dropped', count })
    }
    for (const { endpoint, from } of await tooOld(base, at, bounds)) {
      await base.forget(endpoint, from)
    }
    return swept
  }
}

/** Endpoints with ended messages that are too old or too many: those up to `from`. */
async function tooOld(base: SweepBase, at: number, { endedMax, endedMs }: Bounds) {
  const found: { endpoint: string; from: number }[] = []
  for (const { endpoint, ended, oldest } of await base.ended()) {
    const tooMany = ended > endedMax ? await base.endAt(endpoint, endedMax) : undefined
    const from = Math.max(tooMany ?? 0, at - endedMs)
    if (oldest <= from) found.push({ endpoint, from })
  }
  return found
}
