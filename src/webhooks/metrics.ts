import type { SweepReason } from '../../db/WebhookLedger'
import type { Meter } from '../settlement/state/metrics'

/** `retried`: an attempt that another one follows. All others end a message. */
export type Result = 'delivered' | 'retried' | 'gone' | SweepReason

export type Metrics = { ended(result: Result, by?: number): void }

/** `waiting`: messages by endpoint. */
export function createMetrics(
  meter: Meter,
  waiting: () => Promise<ReadonlyMap<string, number>>,
): Metrics {
  const results = meter.counter('webhooks_total', 'Attempts and ends of webhook messages.', [
    'result',
  ])
  const gauge = meter.gauge('webhooks_waiting', 'Webhook messages that are not delivered yet.', [
    'endpoint',
  ])
  const seen = new Set<string>()
  meter.onRender(async () => {
    const counts = await waiting()
    for (const endpoint of counts.keys()) seen.add(endpoint)
    for (const endpoint of seen) gauge.set(counts.get(endpoint) ?? 0, { endpoint })
  })
  return {
    ended: (result, by = 1) => {
      if (by > 0) results.inc({ result }, by)
    },
  }
}
