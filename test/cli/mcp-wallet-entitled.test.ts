import { afterAll, afterEach, beforeEach, expect, test } from 'bun:test'
import { parseSIWxHeader, verifySIWxSignature } from '@x402/extensions/sign-in-with-x'
import { account } from '../../src/demo/accounts'
import { encodeJson } from '../../src/protocol/Header'
import { type Fake, offer, offers, paid, startFake, tool } from '../harness/fake-gateway'
import { removeStates, startWallet } from '../harness/mcp-wallet'

/** `turnpike mcp` at a gateway where a wallet may have calls without a payment. */

let fake: Fake
/** What the gateway says to a sign-in; undefined: the wallet has nothing. */
let entitlement: string | undefined
/** Requests over HTTP: method, path with query, body, and the wallet that signed in. */
let seen: string[]
let now: number

const uses = { _meta: { 'turnpike/x-entitlements': { signIn: 'SIGN-IN-WITH-X' } } }
const tools = [
  tool('data', uses),
  tool('data-pass', { title: 'Data: Pass: 500 requests in 24 h' }),
  tool('plain'),
]

beforeEach(() => {
  seen = []
  now = Date.now()
  entitlement = undefined
  fake = startFake(({ method, params }, paying) => {
    if (method === 'tools/list') return { tools }
    if (paying) return paid('the paid answer')
    const { q = 'x', body } = (params.arguments ?? {}) as Record<string, unknown>
    const origin = body === 'elsewhere' ? fake.url.replace('127.0.0.1', 'localhost') : fake.url
    return offers([offer('5000')], {}, { url: `${origin}/m/${params.name}?q=${q}` })
  })
  fake.http = async (request) => {
    const url = new URL(request.url)
    const signIn = request.headers.get('sign-in-with-x')
    const payload = signIn === null ? undefined : parseSIWxHeader(signIn)
    const by = payload && (await verifySIWxSignature(payload))
    const signer = by?.isValid ? by.payer : by && 'nobody'
    const parts = [request.method, url.pathname + url.search, await request.text(), signer]
    seen.push(parts.filter(Boolean).join(' '))
    if (payload !== undefined && entitlement !== undefined)
      return Response.json(
        { answer: 'covered' },
        { headers: { 'payment-entitlement': entitlement } },
      )
    const info = {
      ...{ domain: url.host, uri: url.href, version: '1', nonce: crypto.randomUUID().slice(0, 8) },
      issuedAt: new Date().toISOString(),
    }
    const supportedChains = [{ chainId: 'eip155:8453', type: 'eip191' }]
    const required = { accepts: [], extensions: { 'sign-in-with-x': { info, supportedChains } } }
    const headers = { 'payment-required': encodeJson(required) }
    const problem = payload === undefined ? {} : { code: 'not-entitled', reason: 'no_entitlement' }
    return Response.json(problem, { status: 402, headers })
  }
})
afterEach(() => fake.stop())
afterAll(removeStates)

async function wallet() {
  const started = startWallet({ url: fake.url, now: () => now, patienceMs: 0 })
  await started.list()
  return started
}

const buyer = account(1).address

test('a pass is used before a payment, by the same request over HTTP, and the answer says so', async () => {
  const { call } = await wallet()
  entitlement = 'kind=pass, remaining=497, until="2026-11-29T20:00:00Z"'
  const got = await call('data', { q: 'a' })
  expect(got).toMatchObject({ isError: false })
  expect(got.text).toBe(
    '{"answer":"covered"}\n[turnpike] Nothing was paid: a pass, 497 left, until 2026-11-29T20:00:00Z.',
  )
  await call('data', { body: { z: 1, a: [2] } })
  expect(seen).toEqual([
    'GET /m/data?q=a',
    `GET /m/data?q=a ${buyer}`,
    'POST /m/data?q=x {"z":1,"a":[2]}',
    `POST /m/data?q=x {"z":1,"a":[2]} ${buyer}`,
  ])
  expect(fake.payments()).toEqual([])
  expect((await call('turnpike_budget')).text).toContain(
    'data gave at the last call: a pass, 497 left',
  )
})

test('without an entitlement the call is paid for, and offers the pass that is listed', async () => {
  const { call } = await wallet()
  const got = await call('data', { q: 'a' })
  expect(got.text).toContain('the paid answer')
  expect(got.text).toEndWith(
    'For many calls the tool data-pass sells "Data: Pass: 500 requests in 24 h": buy it only if the user wants it.',
  )
  // Other calls of the tool are paid at once; what was paid for may be fetched again.
  await call('data', { q: 'b' })
  expect(seen).toHaveLength(2)
  entitlement = 'kind=again, remaining=4, until="2026-11-29T20:00:00Z"'
  expect((await call('data', { q: 'a' })).text).toContain('Nothing was paid: paid before, 4 left')
  expect(fake.payments()).toHaveLength(2)
})

test('after a pass was bought, and after ten minutes, the wallet looks again', async () => {
  const { call } = await wallet()
  await call('data', { q: '1' })
  const bought = await call('data-pass')
  expect(bought.text).not.toContain('For many calls')
  expect(seen).toHaveLength(2)
  await call('data', { q: '2' })
  expect(seen).toHaveLength(4)
  await call('data', { q: '3' })
  expect(seen).toHaveLength(4)
  now += 600_000
  await call('data', { q: '4' })
  expect(seen).toHaveLength(6)
  expect(fake.payments()).toHaveLength(5)
})

test('a tool without entitlements is paid for without another request', async () => {
  const { call } = await wallet()
  expect((await call('plain')).text).not.toContain('For many calls')
  expect([seen, fake.payments().length]).toEqual([[], 1])
})

test('error: a use that failed is not paid for, and the next call tries again', async () => {
  const { call } = await wallet()
  const { http } = fake
  const problem = { code: 'upstream-failed', detail: 'Sign in again.' }
  fake.http = (request) =>
    request.headers.has('sign-in-with-x') ? Response.json(problem, { status: 502 }) : http(request)
  const got = await call('data')
  expect(got).toMatchObject({ isError: true })
  expect(got.text).toBe(
    'The gateway says "upstream-failed: Sign in again.". Nothing was paid. Call again to try once more.',
  )
  fake.http = http
  entitlement = 'kind=trial, remaining=2'
  expect((await call('data')).text).toContain('Nothing was paid: a trial, 2 left.')
  expect(fake.payments()).toEqual([])
})

test('attack: a wallet signs in at its gateway only, and a broken connection moves no money', async () => {
  const { call } = await wallet()
  expect((await call('data', { body: 'elsewhere' })).text).toContain('the paid answer')
  expect(seen).toEqual([])
  const { http } = fake
  const forged = { domain: 'bank.example.com', uri: 'https://bank.example.com/' }
  now += 600_000
  fake.http = async (request) => {
    const response = await http(request)
    const required = JSON.parse(atob(response.headers.get('payment-required') ?? ''))
    Object.assign(required.extensions['sign-in-with-x'].info, forged)
    response.headers.set('payment-required', encodeJson(required))
    return response
  }
  await call('data', { q: 'forged' })
  expect(seen).toEqual(['GET /m/data?q=forged'])
  now += 600_000
  fake.http = (request) => {
    if (!request.headers.has('sign-in-with-x')) return http(request)
    // The connection ends, and with it the knowledge of what was counted.
    void fake.stop()
    return new Promise(() => undefined)
  }
  const before = fake.payments().length
  const got = await call('data', { q: 'cut' })
  expect(got.text).toStartWith(`${fake.url} cannot be reached. Nothing was paid.`)
  expect(fake.payments()).toHaveLength(before)
})
