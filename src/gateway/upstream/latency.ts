import type { Registry } from '../../http/metrics'

/** How fast the upstreams of the merchants answer requests that were paid for. */
export type Latency = ReturnType<typeof createLatency>

/** A figure is made of this many of the newest answers. */
const keptMax = 200

const bucketsSeconds = [0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30]

export function createLatency(meter: Pick<Registry, 'histogram'>) {
  const seconds = meter.histogram(
    'upstream_seconds',
    'Time from the forward of a paid request to the head of its answer.',
    bucketsSeconds,
    ['merchant'],
  )
  /** By merchant. `next` is the index of the oldest time, which the next one replaces. */
  const kept = new Map<string, { times: number[]; next: number }>()
  return {
    observe(merchant: string, ms: number): void {
      seconds.observe(ms / 1000, { merchant })
      const own = kept.get(merchant) ?? { times: [], next: 0 }
      kept.set(merchant, own)
      own.times[own.next] = ms
      own.next = (own.next + 1) % keptMax
    },
    /** Times of a merchant's newest answers since the start; undefined without any. */
    of(merchant: string) {
      const sorted = kept.get(merchant)?.times.toSorted((a, b) => a - b)
      if (sorted === undefined) return undefined
      const at = (share: number) => sorted[Math.ceil(share * sorted.length) - 1] ?? 0
      return { medianMs: at(0.5), p95Ms: at(0.95), answers: sorted.length }
    },
  }
}
