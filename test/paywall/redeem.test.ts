import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import { settlementOf } from '../harness/buyer'
import { buy, openConnection, payee, type Shop, sign, startShop, type Terms } from '../harness/shop'
import { tamper } from '../harness/test-ledger'
import type { Reply, Script } from '../harness/upstream'
import { until } from '../harness/world'

let shop: Shop
beforeAll(async () => {
  // A stop does not wait, which is as close to a crash as one process can get.
  shop = await startShop({
    adjust: (config) => ({ ...config, service: { ...config.service, stopSeconds: 0 } }),
  })
})
afterAll(() => shop.stop())
beforeEach(async () => {
  shop.upstream.script = undefined
  // Closes the circuit that earlier failures may have opened.
  shop.advance(120_000)
  const { status } = await buy(item())
  shop.advance(-120_000)
  if (status !== 200) throw new Error(`the circuit is open: ${status}`)
  shop.upstream.requests.length = 0
})

const item = () => `${shop.url}/m/shop/item`
const x402: Terms = { scheme: 'x402-eip3009' }
const day = 24 * 60 * 60 * 1000

type Redeem = { token: string; until: string; attempts: number }
type Failure = { code: string; transaction: string; redeem: Redeem; upstreamStatus?: number }

async function failureOf(response: Response): Promise<Failure> {
  return (await response.json()) as Failure
}

function redeem(token: string, url = item(), init: RequestInit = {}): Promise<Response> {
  return fetch(url, { ...init, headers: { 'payment-redeem': token } })
}

/** The payment as another process reads it, once its delivery is recorded. */
async function recorded(transaction: unknown): Promise<Record<string, unknown>> {
  const read = () =>
    shop.rows(`SELECT * FROM payments WHERE transaction_hash = '${transaction}'`)[0] ?? {}
  await until('the delivery is recorded', () => read().delivery !== 'delivering')
  return read()
}

const failing = [300, 301, 302, 303, 304, 307, 308, 401, 402, 403, 407, 408, 425, 429]
const broken = [500, 501, 502, 503, 504, 520, 599]
const delivered = [200, 201, 202, 203, 204, 206, 400, 404, 405, 406, 409, 410, 415, 418, 422, 451]

describe('what counts as delivered', () => {
  for (const status of delivered)
    test(`${status} of the upstream is its answer, with a receipt`, async () => {
      shop.upstream.script = (_, reply) => reply.send(status, status === 204 ? '' : '{"s":1}')
      for (const terms of [{}, x402] as Terms[]) {
        const response = await buy(item(), terms)
        expect(response.status).toBe(status)
        expect(await response.text()).toBe(status === 204 ? '' : '{"s":1}')
        const isMpp = terms.scheme === undefined
        expect(response.headers.has('payment-receipt')).toBe(isMpp)
        expect(response.headers.has('payment-response')).toBe(!isMpp)
        if (!isMpp) expect(settlementOf(response)).toMatchObject({ success: true })
      }
      await until('both are delivered', () => {
        const rows = shop.rows('SELECT * FROM payments ORDER BY rowid DESC LIMIT 2')
        return rows.every((row) => row.delivery === 'delivered' && row.upstream_status === status)
      })
    })

  for (const status of [...failing, ...broken])
    test(`${status} of the upstream is a 502 that can be redeemed`, async () => {
      shop.upstream.script = (_, reply) =>
        reply.send(status, status === 304 ? '' : '{"secret":"answer"}', {
          location: 'https://other.example/',
        })
      const before = Date.now()
      const response = await buy(item())
      expect(response.status).toBe(502)
      for (const name of ['payment-receipt', 'payment-response', 'www-authenticate', 'location'])
        expect(response.headers.has(name)).toBe(false)
      const text = await response.text()
      expect(text).not.toContain('secret')
      const body = JSON.parse(text) as Failure
      expect(body).toMatchObject({
        type: 'http://localhost:4020/problems/upstream-failed',
        code: 'upstream-failed',
        upstreamStatus: status,
        network: 'eip155:8453',
        redeem: { attempts: 5 },
      })
      expect(body.transaction).toMatch(/^0x[0-9a-f]{64}$/)
      expect(body.redeem.token).toMatch(/^[A-Za-z0-9_-]{43}$/)
      expect(Date.parse(body.redeem.until)).toBeGreaterThanOrEqual(before + day)
      // One request: a redirect to another host is not followed, and a failure is not repeated
      // without the buyer.
      expect(shop.upstream.requests).toHaveLength(1)
      expect(await recorded(body.transaction)).toMatchObject({
        state: 'confirmed',
        delivery: 'none',
        attempts: 1,
        upstream_status: status,
      })
      shop.upstream.script = undefined
      expect((await redeem(body.redeem.token)).status).toBe(200)
    })

  const silent: [name: string, script: Script, status: number, code: string][] = [
    ['no head in time', () => {}, 504, 'upstream-timeout'],
    ['a cut instead of a head', (_, reply) => reply.cut(), 502, 'upstream-failed'],
    [
      'a cut after the head',
      (_, reply) => {
        reply.head(200, { 'content-type': 'text/event-stream' })
        setTimeout(reply.cut, 5)
      },
      502,
      'upstream-failed',
    ],
    [
      'a cut within the first MiB of what is no event stream',
      (_, reply) => {
        reply.head(200, { 'content-type': 'application/json' })
        reply.chunk('x'.repeat(100_000))
        setTimeout(reply.cut, 5)
      },
      502,
      'upstream-failed',
    ],
    [
      // The merchant has a secret. An answer that cannot be searched must be neither sent nor paid
      // for.
      'a small gzip that breaks off',
      (_, reply) => {
        const packed = Bun.gzipSync(new TextEncoder().encode('{"ok":true}'))
        reply.send(200, packed.slice(0, -3), { 'content-encoding': 'gzip' })
      },
      502,
      'upstream-failed',
    ],
    [
      'an encoding upon another',
      (_, reply) => {
        const packed = Bun.gzipSync(Bun.gzipSync(new TextEncoder().encode('{"ok":true}')))
        reply.send(200, packed, { 'content-encoding': 'gzip, gzip' })
      },
      502,
      'upstream-failed',
    ],
    [
      'a body that stops coming',
      (_, reply) => {
        reply.head(200, { 'content-type': 'application/json' })
        reply.chunk('{')
      },
      504,
      'upstream-timeout',
    ],
  ]
  for (const [name, script, status, code] of silent)
    test(`${name} is a ${status} that can be redeemed`, async () => {
      shop.upstream.script = script
      const url = status === 504 ? `${shop.url}/m/hasty/item` : item()
      const response = await buy(url)
      expect(response.status).toBe(status)
      const body = await failureOf(response)
      expect(body).toMatchObject({ code, redeem: { attempts: 5 } })
      expect(body.upstreamStatus).toBeUndefined()
      shop.upstream.script = undefined
      expect((await redeem(body.redeem.token, url)).status).toBe(200)
    })
})

describe('Payment-Redeem', () => {
  const fail: Script = (_, reply) => reply.send(503)

  test('Payment-Redeem returns the answer without a new payment, once', async () => {
    for (const terms of [{}, { scheme: 'mpp-permit2' }, x402] as Terms[]) {
      shop.upstream.script = fail
      const failed = await buy(item(), terms)
      if (terms === x402)
        expect(settlementOf(failed)).toMatchObject({
          success: false,
          errorReason: 'delivery_failed',
          transaction: expect.stringMatching(/^0x[0-9a-f]{64}$/),
        })
      const { redeem: given, transaction } = await failureOf(failed)
      shop.upstream.script = undefined
      const before = { counts: shop.counts(), paid: await shop.balance('eip155:8453', payee) }
      const answered = await redeem(given.token)
      expect(answered.status).toBe(200)
      expect(await answered.json()).toEqual({ ok: true })
      const isMpp = terms !== x402
      expect(answered.headers.has('payment-receipt')).toBe(isMpp)
      expect(answered.headers.has('payment-response')).toBe(!isMpp)
      expect({
        counts: shop.counts(),
        paid: await shop.balance('eip155:8453', payee),
      }).toEqual(before)
      expect(await recorded(transaction)).toMatchObject({ delivery: 'delivered', attempts: 2 })
      const again = await redeem(given.token)
      expect(again.status).toBe(410)
      expect(await again.json()).toMatchObject({ code: 'redeem-exhausted' })
    }
  })

  test('with the key of its payment a token returns the stored answer again', async () => {
    for (const terms of [{}, x402] as Terms[]) {
      const key = { 'idempotency-key': crypto.randomUUID() }
      shop.upstream.script = fail
      const credential = await sign(item(), terms)
      const failed = await fetch(item(), { headers: { ...credential, ...key } })
      const { redeem: given, transaction } = await failureOf(failed)
      shop.upstream.script = undefined
      const headers = { ...key, 'payment-redeem': given.token }
      expect((await fetch(item(), { headers })).status).toBe(200)
      expect(await recorded(transaction)).toMatchObject({ delivery: 'delivered', attempts: 2 })
      const again = await fetch(item(), { headers })
      expect([again.status, again.headers.get('idempotency-replayed')]).toEqual([200, 'true'])
      expect(await again.json()).toEqual({ ok: true })
      const other = { ...headers, 'idempotency-key': crypto.randomUUID() }
      expect((await fetch(item(), { headers: other })).status).toBe(410)
      expect(await recorded(transaction)).toMatchObject({ attempts: 2 })
    }
  })

  test('the upstream sees the same Idempotency-Key at every attempt', async () => {
    shop.upstream.script = fail
    const { redeem: given } = await failureOf(await buy(item()))
    await redeem(given.token)
    shop.upstream.script = undefined
    await redeem(given.token)
    const keys = shop.upstream.requests.map(({ headers }) => headers['idempotency-key'])
    expect(keys).toEqual([keys[0], keys[0], keys[0]])
    expect(keys[0]).toStartWith('pay_')
  })

  test('a payment can be redeemed five times, counted down', async () => {
    shop.upstream.script = fail
    let { redeem: given } = await failureOf(await buy(item()))
    const { token, until: end } = given
    for (const left of [4, 3, 2, 1, 0]) {
      // Failed redemptions do not open the circuit for the next.
      const response = await redeem(token)
      expect(response.status).toBe(502)
      given = (await failureOf(response)).redeem
      expect(given).toEqual({ token, until: end, attempts: left })
    }
    shop.upstream.script = undefined
    const response = await redeem(token)
    expect(response.status).toBe(410)
    expect(await response.json()).toMatchObject({ code: 'redeem-exhausted' })
    expect(shop.upstream.requests).toHaveLength(6)
  })

  test('a payment can be redeemed once more after a crash in the last attempt, with a limit', async () => {
    shop.upstream.script = fail
    const { redeem: given, transaction } = await failureOf(await buy(item()))
    shop.upstream.script = undefined
    const leave = (attempts: number) => {
      tamper(
        shop.dataDir,
        "UPDATE payments SET delivery = 'delivering', attempts = ? WHERE transaction_hash = ?",
        [String(attempts), String(transaction)],
      )
    }
    leave(12)
    expect((await redeem(given.token)).status).toBe(410)
    leave(6)
    expect((await redeem(given.token)).status).toBe(200)
    expect(await recorded(transaction)).toMatchObject({ delivery: 'delivered', attempts: 7 })
  })

  test('a payment can be redeemed for 24 hours, not longer', async () => {
    shop.upstream.script = fail
    const early = await failureOf(await buy(item()))
    const late = await failureOf(await buy(item()))
    shop.upstream.script = undefined
    shop.advance(day - 60_000)
    expect((await redeem(early.redeem.token)).status).toBe(200)
    shop.advance(120_000)
    const response = await redeem(late.redeem.token)
    expect(response.status).toBe(410)
    expect(await response.json()).toMatchObject({ code: 'redeem-exhausted' })
    shop.advance(-day - 60_000)
  })

  test('each attempt is on the disk before the request is forwarded', async () => {
    const seen: unknown[] = []
    shop.upstream.script = (_, reply) => {
      const [row] = shop.rows('SELECT * FROM payments ORDER BY rowid DESC LIMIT 1')
      seen.push([row?.state, row?.delivery, row?.attempts])
      reply.send(503)
    }
    const { redeem: given } = await failureOf(await buy(item()))
    await redeem(given.token)
    expect(seen).toEqual([
      ['confirmed', 'delivering', 1],
      ['confirmed', 'delivering', 2],
    ])
  })

  test('a payment can be redeemed after a restart', async () => {
    shop.upstream.script = fail
    const { redeem: given } = await failureOf(await buy(item()))
    await shop.restart()
    shop.upstream.script = undefined
    expect((await redeem(given.token)).status).toBe(200)
  })

  test('error: a token of another request is 409', async () => {
    shop.upstream.script = fail
    const { redeem: given } = await failureOf(await buy(item()))
    shop.upstream.script = undefined
    shop.upstream.requests.length = 0
    for (const [url, init] of [
      [`${item()}?a=1`, {}],
      [`${item()}/tail`, {}],
      [`${shop.url}/m/shop/other`, {}],
      [item(), { method: 'POST' }],
      [item(), { method: 'HEAD' }],
    ] as [string, RequestInit][]) {
      const response = await redeem(given.token, url, init)
      expect(response.status).toBe(409)
      if (init.method !== 'HEAD')
        expect(await response.json()).toMatchObject({ code: 'payment-mismatch' })
    }
    expect(shop.upstream.requests).toHaveLength(0)
    expect((await redeem(given.token)).status).toBe(200)
  })

  test('error: an unknown token is 400', async () => {
    for (const token of ['x', 'A'.repeat(43), 'A'.repeat(4096), '']) {
      const response = await redeem(token)
      expect(response.status).toBe(400)
      expect(await response.json()).toMatchObject({ code: 'invalid-redeem-token' })
    }
  })

  test('error: two redemptions at once forward once', async () => {
    shop.upstream.script = fail
    const { redeem: given } = await failureOf(await buy(item()))
    shop.upstream.requests.length = 0
    shop.upstream.script = (_, reply) => setTimeout(() => reply.send(200), 20)
    const statuses = (await Promise.all([redeem(given.token), redeem(given.token)])).map(
      ({ status }) => status,
    )
    expect(statuses.sort()).toEqual([200, 409])
    expect(shop.upstream.requests).toHaveLength(1)
  })
})

describe('without the token', () => {
  test('an MPP credential redeems', async () => {
    for (const terms of [{}, { scheme: 'mpp-permit2' }] as Terms[]) {
      const credential = await sign(item(), terms)
      shop.upstream.script = (_, reply) => reply.send(500)
      expect((await fetch(item(), { headers: credential })).status).toBe(502)
      shop.upstream.script = undefined
      const counts = shop.counts()
      shop.advance(400_000)
      const answered = await fetch(item(), { headers: credential })
      shop.advance(-400_000)
      expect(answered.status).toBe(200)
      expect(answered.headers.has('payment-receipt')).toBe(true)
      expect(shop.counts()).toEqual(counts)
    }
  })

  test('error: an x402 credential does not redeem after the buyer got the token', async () => {
    for (const terms of [x402, { scheme: 'x402-permit2' }] as Terms[]) {
      const credential = await sign(item(), terms)
      shop.upstream.script = (_, reply) => reply.send(500)
      const { redeem: given } = await failureOf(await fetch(item(), { headers: credential }))
      shop.upstream.script = undefined
      shop.upstream.requests.length = 0
      const again = await fetch(item(), { headers: credential })
      expect(again.status).toBe(402)
      expect(await again.json()).toMatchObject({ code: 'invalid-challenge' })
      expect(settlementOf(again)).toMatchObject({ success: false })
      expect(shop.upstream.requests).toHaveLength(0)
      expect((await redeem(given.token)).status).toBe(200)
    }
  })

  test('an x402 credential redeems when its request never got an answer', async () => {
    const credential = await sign(item(), x402)
    const replied = new Promise<Reply>((resolve) => {
      shop.upstream.script = (_, reply) => resolve(reply)
    })
    const connection = openConnection(item(), credential)
    const reply = await replied
    await connection.leave()
    reply.send(500)
    shop.upstream.script = undefined
    await until('the failure is recorded', async () => {
      const [row] = shop.rows('SELECT delivery FROM payments ORDER BY rowid DESC LIMIT 1')
      return row?.delivery === 'none'
    })
    expect((await fetch(item(), { headers: credential })).status).toBe(200)
  })

  test('any credential redeems after a crash in the middle of the delivery', async () => {
    for (const terms of [{}, x402] as Terms[]) {
      const credential = await sign(item(), terms)
      let isAsked = false
      shop.upstream.script = () => {
        isAsked = true
      }
      const lost = fetch(item(), { headers: credential }).catch(() => undefined)
      await until('the upstream is asked', () => isAsked)
      await shop.restart()
      await lost
      shop.upstream.script = undefined
      const [row] = shop.rows('SELECT * FROM payments ORDER BY rowid DESC LIMIT 1')
      expect(row).toMatchObject({ state: 'confirmed', attempts: 1 })
      const counts = shop.counts()
      expect((await fetch(item(), { headers: credential })).status).toBe(200)
      expect(shop.counts()).toEqual(counts)
    }
  })
})
