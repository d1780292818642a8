import { bodyOf, budgetSpent, deliveriesFailed, type SpentBudget } from '../../db/WebhookEvent'
import type { NewAlert, WebhookLedger } from '../../db/webhooks'
import { type Condition, conditionsOf, type Watched } from './operator-alerts'
import type { Place } from './places'

/** A condition is told when it lasts this long, ms, so that a short fault wakes no operator. */
const lastsMs = 60_000

type Phase = NewAlert['phase']

export type AlertsWatched = Watched & {
  /** Budgets of today that are spent. */
  spentBudgets(): Promise<readonly SpentBudget[]>
}

type Watch = {
  ledger: Pick<WebhookLedger, 'alert'>
  watched: AlertsWatched
  places: () => readonly Pick<Place, 'id' | 'origin' | 'about'>[]
  /** Unix ms. */
  now: () => number
  /** How long a condition lasts before it is told, ms. */
  lastsMs?: number | undefined
}

export type Failed = { merchant: string; route: string; upstreamStatus: number | undefined }

/**
 * Writes the alerts of conditions. The ledger knows what was told, so that neither a restart nor
 * another gateway tells it again. Here it is only kept which conditions are not met, and since when.
 */
export function createAlertWatch(options: Watch) {
  const { ledger, watched, places, now } = options
  const waitMs = options.lastsMs ?? lastsMs
  /** When each condition that is not met was first seen. */
  const failing = new Map<string, number>()
  /** Payments that are not told yet, by merchant. */
  const undelivered = new Map<string, Parameters<typeof deliveriesFailed>[1]>()
  let lookAt = 0
  let isFirst = true

  const tell = async ({ name, event }: Condition, phase: Phase): Promise<boolean> => {
    const at = now()
    const happened = event(at)
    const { type } = happened
    const alert = { type, subject: name, body: bodyOf(happened), phase, at }
    const takers = places().filter(
      ({ about }) => about.length === 0 || about.some((kind) => name.startsWith(`${kind} `)),
    )
    const written = await Promise.all(
      takers.map(({ id: endpoint, origin }) => ledger.alert({ endpoint, origin, ...alert })),
    )
    return written.includes(true)
  }

  const tellFailing = async (condition: Condition, phase: 'begins' | 'once') => {
    const since = failing.get(condition.name) ?? now()
    failing.set(condition.name, since)
    return now() >= since + waitMs && (await tell(condition, phase))
  }

  return {
    /** A confirmed payment was not delivered, because its upstream failed. */
    undelivered({ merchant, ...last }: Failed): void {
      if (places().length === 0) return
      const { payments, since } = undelivered.get(merchant) ?? { payments: 0, since: now() }
      undelivered.set(merchant, { payments: payments + 1, since, ...last })
    },
    async look(): Promise<void> {
      if (places().length === 0 || now() < lookAt) return
      lookAt = now() + waitMs / 2
      const states = [
        ...conditionsOf(watched, [...failing.keys()]),
        ...(await budgetsOf(watched, now())),
      ]
      for (const condition of states) {
        if (!condition.isMet) await tellFailing(condition, 'begins')
        // At the first look, it may have failed before the start.
        else if (isFirst || failing.has(condition.name)) {
          await tell(condition, 'ends')
          failing.delete(condition.name)
        }
      }
      for (const name of failing.keys())
        if (name.startsWith('budget ') && !states.some((each) => each.name === name))
          failing.delete(name)
      for (const [merchant, failed] of [...undelivered]) {
        const event = (at: number) => deliveriesFailed(merchant, failed, at)
        const name = `undelivered ${merchant}` as const
        if (!(await tellFailing({ name, isMet: false, event }, 'once'))) continue
        failing.delete(name)
        // Another payment may have failed while it was written.
        const payments = (undelivered.get(merchant)?.payments ?? 0) - failed.payments
        if (payments <= 0) undelivered.delete(merchant)
        else undelivered.set(merchant, { ...failed, payments, since: now() })
      }
      isFirst = false
    },
  }
}

/** The spent budgets of today. Tomorrow has other names. */
async function budgetsOf(watched: AlertsWatched, now: number): Promise<Condition[]> {
  const spent = await watched.spentBudgets()
  return spent.map((each) => {
    const { subject, occurrence } = budgetSpent(each, now)
    return {
      name: `budget ${subject} ${occurrence}`,
      isMet: false,
      event: (at) => budgetSpent(each, at),
    }
  })
}
