import type { Tally } from '../books/tally'
import type { Registry } from '../http/metrics'
import type { Delivered } from '../settlement/send/delivery'
import type { Settlement } from '../settlement/settlement'

/** Shows what was counted. Looking up a series costs more than counting, so it is done at a read. */
export function showRequests(registry: Registry, tally: Tally): void {
  const reader = tally.createReader()
  const sent = registry.counter('challenges_total', 'Answers 402 with a challenge.', ['merchant'])
  const about =
    'Answers 402 without a credential, requests with one, their refusals, payments, and answers by entitlements.'
  const steps = registry.counter('funnel_total', about, ['merchant', 'client', 'step'])
  const refusals = registry.counter(
    'refusals_total',
    'Requests with a credential that got a problem.',
    ['reason'],
  )
  registry.onRender(() => {
    for (const [merchant, times] of reader.sent()) sent.inc({ merchant }, times)
    for (const { merchant, client, step, detail, times } of reader.steps()) {
      steps.inc({ merchant, client, step }, times)
      if (step === 'refused') refusals.inc({ reason: detail }, times)
    }
  })
}

/** Counts the forwards of paid requests, and their results. */
export function withDeliveries(settlement: Settlement, registry: Registry): Settlement {
  const attempts = registry.counter('delivery_attempts_total', 'Paid requests that were forwarded.')
  const count = registry.counter(
    'deliveries_total',
    'Ends of forwarded requests; one that is cut after its first byte counts as delivered before.',
    ['outcome'],
  )
  return {
    ...settlement,
    async settle(request, waitMs) {
      const outcome = await settlement.settle(request, waitMs)
      if (outcome.kind === 'confirmed' && outcome.deliveryStarted) attempts.inc()
      return outcome
    },
    beginDelivery(id, counted) {
      attempts.inc()
      return settlement.beginDelivery(id, counted)
    },
    async endDelivery(id, given) {
      // A callback decides at the write, so the result is available after it.
      let result = typeof given === 'function' ? undefined : given
      const decide = () => {
        result = typeof given === 'function' ? given() : given
        return result
      }
      await settlement.endDelivery(id, result ?? decide)
      if (result !== undefined) count.inc({ outcome: outcomeOf(result) })
    },
  }
}

function outcomeOf(result: Delivered): string {
  if (!result.delivered) return 'undelivered'
  return result.truncated ? 'truncated' : 'delivered'
}
