import { describe, expect, test } from 'bun:test'
import { Elysia, t } from 'elysia'
import { clientOf } from '../../src/http/client'
import { createHealth } from '../../src/http/health'
import { createRegistry, renderMetrics } from '../../src/http/metrics'
import { answersErrors, errors, toResponse } from '../../src/http/problem'
import { createRateLimit, headers } from '../../src/http/rate-limit'
import { createLog } from '../../src/log'
import * as Problem from '../../src/protocol/Problem'

const secret = 'postgres://hunter2'

function createApp() {
  const lines: string[] = []
  const log = createLog({ write: (line) => lines.push(line), pretty: false, now: () => 0 })
  const app = new Elysia({ handler: { standardHostname: false } })
    .use(errors({ baseUrl: 'http://gate', log, requestId: () => 'req-1' }))
    .get('/problem', () => {
      throw Problem.of('payment-in-progress', 'Wait.', { headers: { 'Retry-After': '1' } })
    })
    .get('/throws', () => {
      throw new Error(secret)
    })
    .get('/rejects', async () => Promise.reject(Object.assign(new Error(secret), { status: 418 })))
    .get('/string', () => {
      throw secret
    })
    .get('/responds', () => {
      throw Object.assign(new Error('x'), { toResponse: () => new Response(secret) })
    })
    .get('/lies', () => ({ a: secret }) as unknown as { a: number }, {
      response: t.Object({ a: t.Number() }),
    })
    .get('/ok', () => ({ ok: true }))
  const ask = (path: string, init?: RequestInit) =>
    app.handle(new Request(`http://localhost${path}`, init))
  return { ask, lines, app }
}

describe('problem', () => {
  test('error: an error that a handler throws, rejects with or returns is a problem without its text', async () => {
    const lines: string[] = []
    const log = createLog({ write: (line) => lines.push(line), pretty: false, now: () => 0 })
    const answered = answersErrors({ baseUrl: 'http://gate', log, requestId: () => 'req-1' })
    const request = new Request('http://localhost/')
    const error = Object.assign(new Error(secret), { code: 'NOT_FOUND' })
    const runs: (() => Response | Promise<Response>)[] = [
      () => {
        throw error
      },
      () => Promise.reject(error),
      () => error as unknown as Response,
      async () => error as unknown as Response,
    ]
    for (const run of runs) {
      const response = await answered(request, run)
      expect(response.status).toBe(500)
      expect(await response.text()).not.toContain(secret)
    }
    expect(lines).toHaveLength(runs.length)
    const denied = () => {
      throw Problem.of('payment-in-progress', 'Wait.')
    }
    expect((await answered(request, denied)).status).toBe(409)
    const fine = new Response('fine')
    expect(await answered(request, () => fine)).toBe(fine)
    expect(await answered(request, async () => fine)).toBe(fine)
  })

  test('a problem is problem+json, uncached, with its id and readable by any origin', async () => {
    const response = await createApp().ask('/problem')
    expect(response.status).toBe(409)
    expect(await response.json()).toEqual({
      type: 'http://gate/problems/payment-in-progress',
      title: 'Payment In Progress',
      status: 409,
      detail: 'Wait.',
      code: 'payment-in-progress',
    })
    expect(response.headers.get('Content-Type')).toBe('application/problem+json')
    expect(response.headers.get('Cache-Control')).toBe('no-store')
    expect(response.headers.get('X-Request-Id')).toBe('req-1')
    expect(response.headers.get('Retry-After')).toBe('1')
    expect(response.headers.get('Access-Control-Allow-Origin')).toBe('*')
    const exposed = response.headers.get('Access-Control-Expose-Headers') ?? ''
    for (const name of ['WWW-Authenticate', 'PAYMENT-REQUIRED', 'Payment-Receipt']) {
      expect(exposed).toContain(name)
    }
  })

  test('MPP problems keep the draft type, not-ready has Retry-After', async () => {
    const context = { baseUrl: 'http://gate', requestId: 'r' }
    const mpp = toResponse(Problem.of('payment-expired', 'Late.'), context)
    expect(await mpp.json()).toMatchObject({
      type: 'https://paymentauth.org/problems/payment-expired',
    })
    const busy = toResponse(Problem.of('not-ready', 'Soon.'), context)
    expect(busy.headers.get('Retry-After')).toBe('2')
  })

  for (const path of ['/throws', '/rejects', '/string', '/responds', '/lies']) {
    test(`error: ${path} is a 500 with an id; the text goes to the log only`, async () => {
      const { ask, lines } = createApp()
      const response = await ask(path)
      const text = await response.text()
      expect(response.status).toBe(500)
      expect(response.headers.get('Content-Type')).toBe('application/problem+json')
      expect(JSON.parse(text)).toMatchObject({ code: 'internal-error', requestId: 'req-1' })
      expect(text).not.toContain('hunter2')
      expect(lines.filter((line) => line.includes('"event":"request-failed"'))).toHaveLength(1)
      expect(lines[0]).toContain('"requestId":"req-1"')
    })
  }

  test('error: an unknown path is a problem, never Elysia text', async () => {
    const { ask, lines } = createApp()
    const cases = [
      [await ask('/nowhere'), 404, 'not-found'],
      [await ask('/ok', { method: 'DELETE' }), 404, 'not-found'],
    ] as const
    for (const [response, status, code] of cases) {
      expect(response.status).toBe(status)
      expect(await response.json()).toMatchObject({ code })
    }
    expect(lines).toEqual([])
  })

  test('other answers are unchanged, and a short Host does not change the route', async () => {
    const { app, ask } = createApp()
    expect(await (await ask('/ok')).json()).toEqual({ ok: true })
    const response = await app.handle(new Request('http://x/q/zz/ok'))
    expect(response.status).toBe(404)
  })
})

describe('rate-limit', () => {
  const now = 1_700_000_000_000

  test('a spent quota is refused with the wait, and refills with time', () => {
    const limit = createRateLimit()
    expect(limit.take('a', 3, now)).toEqual({ ok: true, limit: 3, remaining: 2, resetSeconds: 20 })
    expect(limit.take('a', 3, now)).toMatchObject({ ok: true, remaining: 1 })
    expect(limit.take('a', 3, now)).toMatchObject({ ok: true, remaining: 0, resetSeconds: 60 })
    const refused = limit.take('a', 3, now + 1)
    expect(refused).toEqual({ ok: false, limit: 3, remaining: 0, resetSeconds: 20 })
    expect(headers(refused)).toEqual({
      'RateLimit-Limit': '3',
      'RateLimit-Remaining': '0',
      'RateLimit-Reset': '20',
      'Retry-After': '20',
    })
    expect(limit.take('b', 3, now + 1).ok).toBe(true)
    expect(limit.take('a', 3, now + 20_000).ok).toBe(true)
    expect(limit.take('a', 3, now + 20_000).ok).toBe(false)
    expect(limit.take('a', 3, now + 90_000)).toMatchObject({ ok: true, remaining: 2 })
  })

  test('exactly the limit passes at once, whatever the limit', () => {
    for (const quota of [1, 7, 120, 600]) {
      const limit = createRateLimit()
      const passed = Array.from({ length: quota + 5 }, () => limit.take('a', quota, now).ok)
      expect(passed.filter(Boolean)).toHaveLength(quota)
    }
    expect(createRateLimit().take('a', 0, now)).toMatchObject({ ok: false, resetSeconds: 60 })
  })

  test('a flood of other keys neither resets a spent key nor refuses a new one', () => {
    const limit = createRateLimit({ seeds: [1, 2, 3] })
    for (let count = 0; count < 60; count++) limit.take('attacker', 60, now)
    for (let count = 0; count < 200_000; count++) limit.take(`flood-${count}`, 60, now)
    expect(limit.take('attacker', 60, now).ok).toBe(false)
    const fresh = Array.from({ length: 1000 }, (_, index) => limit.take(`new-${index}`, 60, now))
    expect(fresh.every((verdict) => verdict.ok)).toBe(true)
  })
})

describe('client', () => {
  const clientKey = (address: string | undefined, forwarded: string | null, trustProxy: number) =>
    clientOf({ headers: { get: () => forwarded } }, address, trustProxy)

  test('without trusted proxies the header is ignored', () => {
    expect(clientKey('203.0.113.9', '1.1.1.1', 0)).toBe('203.0.113.9')
    expect(clientKey(undefined, null, 0)).toBe('unknown')
  })

  test('the client is the entry at the number of proxies from the right', () => {
    const header = '6.6.6.6, 198.51.100.7 , 10.0.0.2'
    expect(clientKey('10.0.0.1', header, 1)).toBe('10.0.0.2')
    expect(clientKey('10.0.0.1', header, 2)).toBe('198.51.100.7')
    expect(clientKey('10.0.0.1', '198.51.100.7', 3)).toBe('198.51.100.7')
    expect(clientKey('10.0.0.1', '198.51.100.7:4711', 1)).toBe('198.51.100.7')
    expect(clientKey('10.0.0.1', '"[2001:db8:1:2:3::4]:80"', 1)).toBe('10.0.0.1')
    expect(clientKey('10.0.0.1', '[2001:db8:1:2:3::4]:80', 1)).toBe('2001:db8:1:2::/64')
  })

  test('an invalid entry ends the search at the last trustworthy address', () => {
    for (const garbage of ['', ',', 'unknown', '999.1.1.1', '_hidden', '1.2.3.4 5.6.7.8', ':::1']) {
      expect(clientKey('10.0.0.1', garbage, 1)).toBe('10.0.0.1')
      expect(clientKey('10.0.0.1', `${garbage}, 198.51.100.7`, 2)).toBe('198.51.100.7')
    }
    expect(clientKey('10.0.0.1', `${'1.1.1.1,'.repeat(5000)}2.2.2.2`, 1)).toBe('2.2.2.2')
  })

  test('IPv6 counts per /64, a mapped address as IPv4', () => {
    expect(clientKey('2001:db8:0:1:aaaa::1', null, 0)).toBe('2001:db8:0:1::/64')
    expect(clientKey('2001:0DB8:0:0001:ffff::2', null, 0)).toBe('2001:db8:0:1::/64')
    expect(clientKey('2001:db8:0:2::1', null, 0)).not.toBe('2001:db8:0:1::/64')
    expect(clientKey('::ffff:192.0.2.1', null, 0)).toBe('192.0.2.1')
    expect(clientKey('::ffff:c000:201', null, 0)).toBe('192.0.2.1')
    expect(clientKey('fe80::1%eth0', null, 0)).toBe('fe80:0:0:0::/64')
    expect(clientKey('::1', null, 0)).toBe('0:0:0:0::/64')
  })
})

describe('health', () => {
  const rpc = 'https://rpc.example.com/v2/sEcReT'
  const create = (sell: boolean, broken: boolean) => {
    const { healthz, readyz } = createHealth({
      canSell: () => sell,
      networks: () => [
        { network: 'eip155:8453', ready: true, clockAheadMs: { min: -250.4, max: 900 } },
        {
          network: 'eip155:4663',
          ready: !broken,
          reason: broken ? `${rpc} timed out` : undefined,
          clockAheadMs: { min: Number.NEGATIVE_INFINITY, max: 31_000 },
        },
      ],
      merchantsOutOfService: () =>
        broken ? [{ merchant: 'assistant', reason: 'ASSISTANT_KEY is not set' }] : [],
      spentBudgets: async () => (broken ? [{ network: 'eip155:4663', reason: 'spent' }] : []),
      openCircuits: () => (broken ? ['assistant'] : []),
      storageFaults: () => (broken ? [{ file: 'turnpike.sqlite', reason: 'SQLITE_FULL' }] : []),
      certificateFaults: () =>
        broken ? [{ domain: 'api.example.com', reason: 'no certificate yet' }] : [],
    })
    return new Elysia().get('/healthz', healthz).get('/readyz', readyz)
  }

  test('healthz is 200 when something can be sold', async () => {
    const at = async (sell: boolean) =>
      (await create(sell, true).handle(new Request('http://localhost/healthz'))).status
    expect(await at(true)).toBe(200)
    expect(await at(false)).toBe(503)
  })

  test('readyz names what is not ready, without paths or secrets of URLs', async () => {
    const request = new Request('http://localhost/readyz')
    expect((await create(true, false).handle(request)).status).toBe(200)
    const response = await create(true, true).handle(request)
    expect(response.status).toBe(503)
    expect(await response.json()).toEqual({
      status: 'not-ready',
      notReady: {
        networks: [{ network: 'eip155:4663', reason: 'https://rpc.example.com/... timed out' }],
        merchants: [{ merchant: 'assistant', reason: 'ASSISTANT_KEY is not set' }],
        sponsor: [{ network: 'eip155:4663', reason: 'spent' }],
        circuits: ['assistant'],
        storage: [{ file: 'turnpike.sqlite', reason: 'SQLITE_FULL' }],
        certificates: [{ domain: 'api.example.com', reason: 'no certificate yet' }],
      },
      networks: [
        { network: 'eip155:8453', clockAheadMs: [-250, 900] },
        { network: 'eip155:4663', clockAheadMs: [null, 31_000] },
      ],
    })
  })
})

describe('metrics', () => {
  test('counters, gauges and histograms in Prometheus text', async () => {
    const registry = createRegistry()
    const requests = registry.counter('requests_total', 'Requests.', ['status'])
    const balance = registry.gauge('balance_wei', 'Relayer balance.')
    const latency = registry.histogram('settle_seconds', 'Time.', [0.1, 1], ['network'])
    requests.inc({ status: '402' })
    requests.inc({ status: '402' }, 2)
    requests.inc({ status: 'a"b\n\\' })
    registry.onRender(() => balance.set(7))
    for (const value of [0.05, 0.1, 0.5, 9]) latency.observe(value, { network: 'eip155:1' })
    const response = await renderMetrics(registry)
    expect(response.headers.get('Content-Type')).toStartWith('text/plain; version=0.0.4')
    expect(await response.text()).toBe(`# HELP turnpike_requests_total Requests.
# TYPE turnpike_requests_total counter
turnpike_requests_total{status="402"} 3
turnpike_requests_total{status="a\\"b\\n\\\\"} 1
# HELP turnpike_balance_wei Relayer balance.
# TYPE turnpike_balance_wei gauge
turnpike_balance_wei 7
# HELP turnpike_settle_seconds Time.
# TYPE turnpike_settle_seconds histogram
turnpike_settle_seconds_bucket{network="eip155:1",le="0.1"} 2
turnpike_settle_seconds_bucket{network="eip155:1",le="1"} 3
turnpike_settle_seconds_bucket{network="eip155:1",le="+Inf"} 4
turnpike_settle_seconds_sum{network="eip155:1"} 9.65
turnpike_settle_seconds_count{network="eip155:1"} 4
`)
  })

  test('an endless label shares one series, and a name is registered once', async () => {
    const registry = createRegistry()
    const counter = registry.counter('x_total', 'X.', ['path'])
    for (let index = 0; index < 5000; index++) counter.inc({ path: String(index) })
    const text = await registry.render()
    expect(text.split('\n').length).toBeLessThan(1010)
    expect(text).toContain('turnpike_x_total{path="other"} 4000')
    expect(() => registry.gauge('x_total', 'X.')).toThrow('registered twice')
  })
})
