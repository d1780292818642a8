import { describe, expect, test } from 'bun:test'
import { createLatency } from '../../src/gateway/upstream/latency'
import { createRegistry } from '../../src/http/metrics'
import { createHistory } from '../../src/stock/market'
import type * as Snapshot from '../../src/stock/Snapshot'
import { sparkline } from '../../src/web/public/Sparkline'

const quarterMs = 15 * 60_000

describe('the prices of the last day', () => {
  const read = (at: number, priceAtomic: bigint | undefined) =>
    [{ readAt: at, priceAtomic, token: { symbol: 'NVDA' } }] as unknown as Snapshot.Snapshot[]

  test('the newest price of each quarter of an hour is kept for a day', () => {
    let now = 0
    const history = createHistory(() => now)
    history.add(read(0, 1_000_000n))
    history.add(read(1000, 2_000_000n))
    history.add(read(quarterMs, undefined))
    history.add(read(2 * quarterMs, 3_000_000n))
    expect(history.of('NVDA')).toEqual([
      { at: 1000, priceAtomic: 2_000_000n },
      { at: 2 * quarterMs, priceAtomic: 3_000_000n },
    ])
    expect(history.of('AMZN')).toEqual([])
    now = 96 * quarterMs + 1001
    expect(history.of('NVDA').length).toBe(1)
    history.add(read(200 * quarterMs, 4_000_000n))
    now = 200 * quarterMs
    expect(history.of('NVDA').map(({ priceAtomic }) => priceAtomic)).toEqual([4_000_000n])
  })
})

describe('the line of a price', () => {
  const points = [100n, 120n, 90n, 130n].map((dollars, at) => {
    return { at: at * quarterMs, priceAtomic: dollars * 1_000_000n }
  })

  test('the line of a price goes from the oldest price to the newest, with its figures as text', () => {
    const { markup = '' } = sparkline('NVDA', points) ?? {}
    expect(markup).toContain('points="2.0,17.0 32.7,7.0 63.3,22.0 94.0,2.0"')
    const label = 'NVDA: $100.00 to $130.00 in the last 45 minutes'
    expect(markup).toContain(`role="img" aria-label="${label}"`)
    expect(markup).toContain(`<title>${label}</title>`)
    expect(markup).not.toMatch(/style=|href=|url\(/)
  })

  test('a price that did not change is a level line', () => {
    const level = points.map((point) => ({ ...point, priceAtomic: 1n }))
    expect(sparkline('NVDA', level)?.markup).toContain('2.0,12.0 32.7,12.0 63.3,12.0 94.0,12.0')
  })

  test('nothing is drawn of one or two prices', () => {
    for (const length of [0, 1, 2])
      expect(sparkline('NVDA', points.slice(0, length))).toBeUndefined()
  })

  test('attack: the name of a token is text', () => {
    expect(sparkline('"><script>', points)?.markup).not.toContain('<script>')
  })
})

describe('the times of upstreams', () => {
  test('the times of upstreams are those of the newest answers of each merchant, and in the metrics', async () => {
    const registry = createRegistry()
    const latency = createLatency(registry)
    expect(latency.of('weather')).toBeUndefined()
    for (let ms = 1; ms <= 100; ms++) latency.observe('weather', ms)
    latency.observe('fx', 7)
    expect(latency.of('weather')).toEqual({ medianMs: 50, p95Ms: 95, answers: 100 })
    for (let answers = 0; answers < 200; answers++) latency.observe('weather', 3000)
    expect(latency.of('weather')).toEqual({ medianMs: 3000, p95Ms: 3000, answers: 200 })
    const text = await registry.render()
    expect(text).toContain('turnpike_upstream_seconds_bucket{merchant="weather",le="0.05"} 50')
    expect(text).toContain('turnpike_upstream_seconds_count{merchant="fx"} 1')
  })
})
