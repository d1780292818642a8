import { Database } from 'bun:sqlite'
import { afterAll, beforeAll, expect, test } from 'bun:test'
import { account } from '../../src/demo/accounts'
import * as Crypto from '../../src/protocol/Crypto'
import { inSeconds, settlementOf } from '../harness/buyer'
import { type Scheme, type Shop, setSettleWait, sign, startShop, type Terms } from '../harness/shop'
import { until } from '../harness/world'

let shop: Shop
beforeAll(async () => {
  shop = await startShop({ env: { RECEIVER_AUTHORIZER_KEY: '99'.repeat(32) } })
})
afterAll(() => shop.stop())

const item = () => `${shop.url}/m/shop/item`
const schemes: Scheme[] = ['mpp', 'mpp-permit2', 'x402-eip3009', 'x402-permit2']
const credentials: Record<string, string>[] = []
const answers: { status: number; requestId: string; text: string }[] = []

/** Sends a request and stores everything that is returned. */
async function send(url: string, init: RequestInit = {}): Promise<Response> {
  const response = await fetch(url, init)
  const text = await response.clone().text()
  const headers = [...response.headers].map(([name, value]) => `${name}: ${value}`).join('\n')
  const requestId = response.headers.get('x-request-id') ?? ''
  answers.push({ status: response.status, requestId, text: `${headers}\n\n${text}` })
  return response
}

async function pay(terms: Terms = {}, headers: Record<string, string> = {}): Promise<Response> {
  const credential = await sign(item(), terms)
  credentials.push(credential)
  return send(item(), { headers: { ...headers, ...credential } })
}

/** Every kind of success and of failure. */
async function everything(): Promise<string[]> {
  const tokens: string[] = []
  await send(item())
  await send(`${shop.url}/m/shop/nothing`)
  for (const scheme of schemes) {
    expect((await pay({ scheme })).status).toBe(200)
    expect((await pay({ scheme, from: account(2).address })).status).toBe(402)
    expect((await pay({ scheme, buyer: 6 })).status).toBe(402)
    expect((await pay({ scheme, validBefore: inSeconds(400) })).status).toBe(402)
    expect((await pay({ scheme }, { 'idempotency-key': `key-${scheme}` })).status).toBe(200)
    const network = scheme.endsWith('permit2') ? 'eip155:4663' : 'eip155:8453'
    const tap = shop.taps[network]
    if (tap === undefined) throw new Error(`no ${network}`)
    tap.intercept = () => new Response('down', { status: 500 })
    expect((await pay({ scheme })).status).toBe(503)
    tap.intercept = undefined
    for (const status of [500, 302, 403]) {
      shop.upstream.script = (request, reply) =>
        // The worst case of an upstream: it repeats the whole request.
        reply.send(status, JSON.stringify(request.headers))
      const failed = await pay({ scheme })
      expect(failed.status).toBe(502)
      const { redeem } = (await failed.json()) as { redeem: { token: string } }
      tokens.push(redeem.token)
      shop.upstream.script = (_, reply) => reply.cut()
      await send(item(), { headers: { 'payment-redeem': redeem.token } })
      shop.upstream.script = undefined
      await send(item(), { headers: { 'payment-redeem': redeem.token } })
    }
    shop.upstream.script = (request, reply) => reply.send(404, JSON.stringify(request.headers))
    expect((await pay({ scheme })).status).toBe(404)
    shop.upstream.script = (_, reply) => {
      reply.head(200, { 'content-type': 'text/event-stream' })
      reply.chunk('data: 1\n\n')
      reply.cut()
    }
    const broken = await sign(item(), { scheme })
    credentials.push(broken)
    await fetch(item(), { headers: broken }).then((response) => response.text().catch(() => ''))
    shop.upstream.script = undefined
  }
  const [mpp, x402] = [await sign(item()), await sign(item(), { scheme: 'x402-eip3009' })]
  credentials.push(mpp, x402)
  await send(item(), { headers: { ...mpp, ...x402 } })
  await send(item(), { headers: { authorization: `${mpp.authorization}x` } })
  await send(item(), { headers: { authorization: `Bearer ${mpp.authorization}` } })
  await send(item(), { headers: { 'payment-signature': `${x402['payment-signature']}=` } })
  await send(item(), { headers: { 'payment-redeem': tokens[0] ?? '', ...mpp } })
  await send(item(), { method: 'POST', headers: mpp })
  await send(`${shop.url}/m/shop/form`, { headers: mpp })
  await pendingOnce()
  return tokens
}

async function pendingOnce(): Promise<void> {
  const chain = shop.chains['eip155:8453']
  await chain?.rpc('evm_setAutomine', [false])
  const credential = await sign(item(), { scheme: 'x402-eip3009' })
  credentials.push(credential)
  await setSettleWait(shop, 2)
  expect((await send(item(), { headers: credential })).status).toBe(503)
  await setSettleWait(shop, 25)
  await chain?.rpc('evm_setAutomine', [true])
  await chain?.rpc('anvil_mine', ['0x1'])
  await until(
    'it is answered',
    async () => (await send(item(), { headers: credential })).status === 200,
  )
}

/** Waits for the concurrent writes of the service. */
function openBesideService(): Database {
  const database = new Database(`${shop.dataDir}/turnpike.sqlite`)
  database.run('PRAGMA busy_timeout = 5000')
  return database
}

test('an internal error is 500 with an id, and its text is in the log only', async () => {
  const database = openBesideService()
  database.run('ALTER TABLE payments RENAME TO gone')
  const credential = await sign(item(), { scheme: 'x402-eip3009' })
  const before = shop.upstream.requests.length
  const response = await send(item(), { headers: credential })
  database.run('ALTER TABLE gone RENAME TO payments')
  database.close()
  expect(response.status).toBe(500)
  const requestId = response.headers.get('x-request-id')
  const text = await response.text()
  expect(JSON.parse(text)).toMatchObject({
    type: 'http://localhost:4020/problems/internal-error',
    code: 'internal-error',
    requestId,
  })
  expect(text).not.toMatch(/payments|sqlite|table/i)
  expect(settlementOf(response)).toMatchObject({ success: false, errorReason: 'internal-error' })
  const line = shop.logged.find((entry) => entry.includes(String(requestId)))
  expect(JSON.parse(line ?? '{}')).toMatchObject({ level: 'error', event: 'request-failed' })
  expect(line).toContain('no such table')
  expect(shop.upstream.requests).toHaveLength(before)
  // Nothing was charged.
  expect((await send(item(), { headers: credential })).status).toBe(200)
})

test('an answer that cannot be stored is delivered', async () => {
  const database = openBesideService()
  database.run('ALTER TABLE answers RENAME TO gone')
  const response = await pay({}, { 'idempotency-key': 'unkept' })
  database.run('ALTER TABLE gone RENAME TO answers')
  database.close()
  expect(response.status).toBe(200)
  expect(await response.json()).toEqual({ ok: true })
  const requestId = String(response.headers.get('x-request-id'))
  const line = shop.logged.find((entry) => entry.includes(requestId) && entry.includes('not-kept'))
  expect(line).toBeString()
})

test('no credential, signature or secret is in any line or answer', async () => {
  const tokens = await everything()
  const signatures = credentials.map(signatureOf)
  expect(signatures.every((signature) => signature.length >= 130)).toBe(true)
  const { relayerKeys, deskKey, challengeSecrets, receiptKey, adminToken } = shop.secrets
  const { receiverAuthorizerKey = receiptKey } = shop.secrets
  const bytes = [...relayerKeys, deskKey, ...challengeSecrets, receiptKey, receiverAuthorizerKey]
  const secrets = [
    ...bytes.map((value) => Crypto.hex(value).slice(2)),
    ...bytes.map((value) => Buffer.from(value).toString('base64url')),
    ...bytes.map((value) => Buffer.from(value).toString('base64')),
    ...[0, 1, 2, 6].map((index) => account(index).privateKey.slice(2)),
    ...(adminToken === undefined ? [] : [adminToken]),
    'upstream-s3cret-key',
    'assistant-s3cret-key',
    ...signatures,
    ...credentials.flatMap((credential) => Object.values(credential).map(bare)),
  ]
  expect(secrets.length).toBeGreaterThan(100)
  const log = shop.logged.join('\n').toLowerCase()
  const sent = answers.map(({ text }) => text).join('\n')
  const shown = sent.toLowerCase()
  for (const secret of secrets) {
    expect(log.includes(secret.toLowerCase())).toBe(false)
    expect(shown.includes(secret.toLowerCase())).toBe(false)
    // Nor encoded once more, in one of our headers.
    expect(decoded(sent).includes(secret.toLowerCase())).toBe(false)
  }
  for (const token of tokens) expect(log.includes(token.toLowerCase())).toBe(false)
  expect(log).not.toMatch(/[0-9a-f]{128}/)
  expect(log).not.toMatch(/payment ey/)
})

test('every line is JSON with time, level and event; lines of requests have their id', async () => {
  const lines = shop.logged.map((line) => {
    expect(line).not.toContain('\n')
    return JSON.parse(line) as Record<string, unknown>
  })
  expect(lines.length).toBeGreaterThan(20)
  for (const { time, level, event } of lines) {
    expect(new Date(String(time)).toISOString()).toBe(String(time))
    expect(['info', 'warn', 'error']).toContain(String(level))
    expect(event).toMatch(/^[a-z]+(-[a-z]+)*$/)
  }
  const known = new Set(answers.map(({ requestId }) => requestId))
  for (const name of ['upstream-failed', 'payment-undelivered', 'payment-delivery']) {
    const own = lines.filter(({ event }) => event === name)
    expect(own.length, name).toBeGreaterThan(0)
    for (const { requestId } of own) expect(requestId).toMatch(/^[a-z0-9]+-[a-z0-9]+$/)
    expect(
      own.some(({ requestId }) => known.has(String(requestId))),
      name,
    ).toBe(true)
  }
  // Every answer has an id of its own.
  expect(known.has('')).toBe(false)
  expect(known.size).toBe(answers.length)
})

function bare(value: string): string {
  return value.replace(/^Payment /, '')
}

/** The buyer's signature within a credential, without 0x. */
function signatureOf(credential: Record<string, string>): string {
  const [value = ''] = Object.values(credential)
  const { payload } = JSON.parse(Buffer.from(bare(value), 'base64').toString())
  return String(payload.signature).slice(2)
}

const cache = new Map<string, string>()

/** All base64 of a text, decoded. */
function decoded(text: string): string {
  const known = cache.get(text)
  if (known !== undefined) return known
  const parts = text.match(/[\w+/-]{40,}={0,2}/g) ?? []
  const result = parts.map((part) => Buffer.from(part, 'base64').toString('latin1')).join('\n')
  cache.set(text, result.toLowerCase())
  return result.toLowerCase()
}
