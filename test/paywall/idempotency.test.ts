import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import { encodeFunctionData, type Hex, parseAbi } from 'viem'
import { account } from '../../src/demo/accounts'
import { execute, mine } from '../../src/demo/chains'
import { RowsRefusedError } from '../../src/settlement/send/Outcome'
import { receiptOf, settlementOf } from '../harness/buyer'
import { deploy, setAutomine } from '../harness/chains'
import { type Shop, sign, startShop, type Terms, untilEnded, untilFree } from '../harness/shop'
import type { Reply } from '../harness/upstream'
import * as Wallets from '../harness/wallets'
import { until } from '../harness/world'

let shop: Shop
beforeAll(async () => {
  // A payer's share has room for the answers that are being stored, sixteen of them.
  shop = await startShop({ answersMaxBytes: 32 * 1024 * 1024 })
})
afterAll(() => shop.stop())
let serial = 0
beforeEach(() => {
  serial++
  shop.upstream.requests.length = 0
  let count = 0
  // Every answer differs, so that a repetition shows.
  shop.upstream.script = (_, reply) => reply.send(200, `{"test":${serial},"answer":${++count}}`)
})

const item = () => `${shop.url}/m/shop/item`
const x402: Terms = { scheme: 'x402-eip3009' }
const permit2: Terms = { scheme: 'x402-permit2' }
const base = 'eip155:8453'
const key = (name = 'key') => `${name}-${serial}-${'x'.repeat(16)}`

async function pay(
  credential: Record<string, string>,
  idempotencyKey: string | undefined,
  url = item(),
  init: RequestInit = {},
): Promise<Response> {
  const keyed = idempotencyKey === undefined ? {} : { 'idempotency-key': idempotencyKey }
  return fetch(url, { ...init, headers: { ...credential, ...keyed } })
}

/** The same x402 payment in other bytes. */
function respelt(credential: Record<string, string>): Record<string, string> {
  const payload: unknown = JSON.parse(
    Buffer.from(credential['payment-signature'] ?? '', 'base64').toString(),
  )
  const text = JSON.stringify(payload, undefined, 1)
  return { 'payment-signature': Buffer.from(text).toString('base64') }
}

const isUsed = parseAbi(['function authorizationState(address, bytes32) view returns (bool)'])

/** Whether the token has recorded the nonce of an EIP-3009 credential. */
async function isSpent(credential: Record<string, string>): Promise<boolean> {
  const { authorization, 'payment-signature': payment } = credential
  const text = authorization?.slice('Payment '.length) ?? payment ?? ''
  const { payload } = JSON.parse(Buffer.from(text, 'base64').toString())
  const { from, nonce } = payload.authorization ?? payload
  const data = encodeFunctionData({
    abi: isUsed,
    functionName: 'authorizationState',
    args: [from, nonce],
  })
  const asset = shop.config.networks.find(({ id }) => id === base)?.asset.address
  const answer = (await shop.chains[base]?.rpc('eth_call', [{ to: asset, data }, 'latest'])) as Hex
  return BigInt(answer) === 1n
}

/** The next request of the upstream. */
function nextReply(): Promise<Reply> {
  return new Promise((resolve) => {
    shop.upstream.script = (_, reply) => resolve(reply)
  })
}

describe('a repeat with the same key', () => {
  for (const [name, terms] of [
    ['mpp', {}],
    ['x402', x402],
  ] as [string, Terms][]) {
    test(`a repeat with the same key gets the stored answer, marked, and is not settled, by ${name}`, async () => {
      const first = await sign(item(), terms)
      const second = await sign(item(), terms)
      const bought = await pay(first, key())
      expect(bought.status).toBe(200)
      expect(bought.headers.has('idempotency-replayed')).toBe(false)
      const answer = await bought.text()
      const counts = shop.counts()
      const { payer: _, ...receipt } = name === 'mpp' ? receiptOf(bought) : settlementOf(bought)

      for (const credential of [second, first, second]) {
        await untilEnded(shop)
        const repeat = await untilFree(() => pay(credential, key()))
        expect(repeat.status).toBe(200)
        expect(repeat.headers.get('idempotency-replayed')).toBe('true')
        expect(repeat.headers.get('content-type')).toBe(bought.headers.get('content-type'))
        expect(repeat.headers.get('cache-control')).toBe('private, no-store')
        expect(await repeat.text()).toBe(answer)
        const again = name === 'mpp' ? receiptOf(repeat) : settlementOf(repeat)
        // The receipt is that of the first payment.
        expect(again.reference).toBe(receipt.reference as string)
        expect(again.transaction).toBe(receipt.transaction as string)
      }
      expect(shop.counts()).toEqual(counts)
      expect(shop.upstream.requests).toHaveLength(1)
      expect(await isSpent(first)).toBe(true)
      expect(await isSpent(second)).toBe(false)
      // A credential that was not settled can still pay.
      const other = await pay(second, key('other'))
      expect(other.headers.has('idempotency-replayed')).toBe(false)
      expect(await other.text()).not.toBe(answer)
    })
  }

  test('a repeat may use the other protocol, and is answered in it', async () => {
    const answer = await (await pay(await sign(item()), key())).text()
    const repeat = await pay(await sign(item(), x402), key())
    expect(repeat.headers.get('idempotency-replayed')).toBe('true')
    expect(repeat.headers.has('payment-receipt')).toBe(false)
    expect(settlementOf(repeat)).toMatchObject({ success: true, payer: account(1).address })
    expect(await repeat.text()).toBe(answer)
  })

  test('payment-identifier is the same as the header', async () => {
    const id = key('identifier')
    const extensions = { 'payment-identifier': { info: { required: false, id } } }
    const answer = await (await pay(await sign(item(), { ...x402, extensions }), undefined)).text()
    for (const [terms, header] of [
      [{ ...x402, extensions }, undefined],
      [{ ...permit2, extensions }, undefined],
      [{ ...x402, extensions }, id],
      [x402, id],
    ] as [Terms, string | undefined][]) {
      const repeat = await pay(await sign(item(), terms), header)
      expect(repeat.headers.get('idempotency-replayed')).toBe('true')
      expect(await repeat.text()).toBe(answer)
    }
    const both = await pay(await sign(item(), { ...x402, extensions }), key('another'))
    expect(both.status).toBe(400)
    expect(await both.json()).toMatchObject({ code: 'bad-request', field: 'Idempotency-Key' })
  })

  test('a delivered 4xx and an event stream are repeated as well', async () => {
    shop.upstream.script = (_, reply) => reply.send(404, '{"missing":true}')
    expect((await pay(await sign(item()), key('404'))).status).toBe(404)
    const reply = nextReply()
    const streamed = sign(item()).then((credential) => pay(credential, key('stream')))
    const upstream = await reply
    upstream.head(200, { 'content-type': 'text/event-stream' })
    upstream.chunk('data: 1\n\n')
    const response = await streamed
    upstream.chunk('data: 2\n\n')
    upstream.end()
    expect(await response.text()).toBe('data: 1\n\ndata: 2\n\n')
    shop.upstream.script = undefined

    const missing = await pay(await sign(item()), key('404'))
    expect(missing.status).toBe(404)
    expect(missing.headers.get('idempotency-replayed')).toBe('true')
    expect(await missing.text()).toBe('{"missing":true}')
    const again = await pay(await sign(item()), key('stream'))
    expect(again.headers.get('content-type')).toBe('text/event-stream')
    expect(await again.text()).toBe('data: 1\n\ndata: 2\n\n')
    expect(shop.upstream.requests).toHaveLength(2)
  })

  test('HEAD has a stored answer of its own', async () => {
    const init = { method: 'HEAD' }
    expect((await pay(await sign(item(), { init }), key(), item(), init)).status).toBe(200)
    const repeat = await pay(await sign(item(), { init }), key(), item(), init)
    expect(repeat.status).toBe(200)
    expect(repeat.headers.get('idempotency-replayed')).toBe('true')
    expect((await pay(await sign(item()), key())).status).toBe(409)
  })

  test('a stored answer outlives a restart, and lasts 24 hours', async () => {
    const answer = await (await pay(await sign(item()), key())).text()
    await shop.restart()
    expect(await (await pay(await sign(item()), key())).text()).toBe(answer)
    const day = 24 * 60 * 60
    shop.advance((day - 60) * 1000)
    const terms = (seconds: number) => ({
      validBefore: BigInt(Math.floor(Date.now() / 1000) + seconds + 300),
    })
    expect(await (await pay(await sign(item(), terms(day - 60)), key())).text()).toBe(answer)
    shop.advance(120_000)
    const credential = await sign(item(), terms(day + 60))
    const late = await pay(credential, key())
    shop.advance(-(day + 60) * 1000)
    // Neither charged again nor answered differently.
    expect(late.status).toBe(409)
    expect(await late.json()).toMatchObject({ code: 'idempotency-conflict' })
    expect(await isSpent(credential)).toBe(false)
  })

  test('an answer above 1 MiB is not stored, and nothing is charged twice', async () => {
    const long = 'x'.repeat(1024 * 1024 + 1)
    shop.upstream.script = (_, reply) => reply.send(200, long, { 'content-type': 'text/plain' })
    expect(await (await pay(await sign(item()), key())).text()).toBe(long)
    await until(
      'it is delivered',
      () => shop.rows("SELECT id FROM payments WHERE delivery <> 'delivered'").length === 0,
    )
    const credential = await sign(item())
    const repeat = await pay(credential, key())
    expect(repeat.status).toBe(409)
    expect(await repeat.json()).toMatchObject({ code: 'idempotency-conflict' })
    expect(await isSpent(credential)).toBe(false)
  })

  test('a repeat after a failed upstream redeems, with any credential', async () => {
    shop.upstream.script = (_, reply) => reply.send(500)
    expect((await pay(await sign(item(), x402), key())).status).toBe(502)
    shop.upstream.script = undefined
    const counts = shop.counts()
    const credential = await sign(item(), x402)
    const answered = await pay(credential, key())
    expect(answered.status).toBe(200)
    expect(answered.headers.has('idempotency-replayed')).toBe(false)
    expect(shop.counts()).toEqual({ ...counts, answers: (counts.answers ?? 0) + 1 })
    expect(await isSpent(credential)).toBe(false)
  })

  test('a repeat with the same credential redeems, as the redeem token may be lost', async () => {
    for (const [name, terms] of [
      ['exact', x402],
      ['permit2', permit2],
    ] as const) {
      const [credential, own] = [await sign(item(), terms), key(name)]
      shop.upstream.script = (_, reply) => reply.send(500)
      expect((await pay(credential, own)).status).toBe(502)
      shop.upstream.script = undefined
      const counts = shop.counts()
      expect((await pay(credential, key('another'))).status).toBe(402)
      // The chain publishes the signature, and a key may be guessed: neither makes this credential.
      expect((await pay(respelt(credential), own)).status).toBe(402)
      expect((await pay(credential, own)).status).toBe(200)
      expect(shop.counts()).toEqual({ ...counts, answers: (counts.answers ?? 0) + 1 })
    }
  })
})

describe('the same key', () => {
  test('error: the same key for another request is 409, and nothing is charged', async () => {
    await pay(await sign(item()), key())
    const post = { method: 'POST', body: '{}' }
    for (const [url, init] of [
      [`${item()}?a=1`, {}],
      [`${item()}/tail`, {}],
      [item(), { method: 'HEAD' }],
    ] as [string, RequestInit][]) {
      const credential = await sign(url, { init })
      const response = await pay(credential, key(), url, init)
      expect(response.status).toBe(409)
      if (init.method === undefined)
        expect(await response.json()).toMatchObject({
          code: 'idempotency-conflict',
          field: 'Idempotency-Key',
        })
      expect(await isSpent(credential)).toBe(false)
    }
    const credential = await sign(item(), { init: post })
    expect((await pay(credential, key(), item(), post)).status).toBe(409)
    expect(shop.upstream.requests).toHaveLength(1)
  })

  test('error: the same key with the spent credential for another request is 409', async () => {
    const credential = await sign(item())
    await pay(credential, key())
    await untilEnded(shop)
    const response = await untilFree(() => pay(credential, key(), `${item()}?a=1`))
    expect(response.status).toBe(409)
    expect(await response.json()).toMatchObject({ code: 'idempotency-conflict' })
  })

  test('a key of another payer or on another route is a different key', async () => {
    const answer = await (await pay(await sign(item()), key())).text()
    const other = await pay(await sign(item(), { buyer: 2 }), key())
    expect(other.headers.has('idempotency-replayed')).toBe(false)
    expect(await other.text()).not.toBe(answer)
    const url = `${shop.url}/m/shop/other`
    const onOtherRoute = await pay(await sign(url), key(), url)
    expect(onOtherRoute.status).toBe(200)
    expect(onOtherRoute.headers.has('idempotency-replayed')).toBe(false)
    expect(shop.upstream.requests).toHaveLength(3)
  })

  test('error: the same key while the first request is in progress is 409, also with another credential', async () => {
    const [first, second] = await Promise.all([sign(item()), sign(item())])
    const reply = nextReply()
    const bought = pay(first, key())
    const upstream = await reply
    const repeat = await pay(second, key())
    expect(repeat.status).toBe(409)
    expect(repeat.headers.get('retry-after')).toBe('1')
    expect(await repeat.json()).toMatchObject({ code: 'payment-in-progress' })
    upstream.send(200, '{"n":1}')
    expect((await bought).status).toBe(200)
    const after = await pay(second, key())
    expect(after.headers.get('idempotency-replayed')).toBe('true')
    expect(await isSpent(second)).toBe(false)
  })

  test('error: a key that another gateway uses meanwhile is 409, and nothing is charged', async () => {
    const credential = await sign(item())
    const { settlement } = shop.app
    const { settle } = settlement
    // The ledger finds it out when it writes the payment.
    const refuse = () => Promise.reject(new RowsRefusedError('key-used'))
    Object.assign(settlement, { settle: refuse })
    const refused = await pay(credential, key()).finally(() =>
      Object.assign(settlement, { settle }),
    )
    expect(refused.status).toBe(409)
    expect(refused.headers.get('retry-after')).toBe('1')
    expect(await refused.json()).toMatchObject({ code: 'payment-in-progress' })
    expect(shop.upstream.requests).toHaveLength(0)
    expect((await pay(credential, key())).status).toBe(200)
  })

  test('error: the same key while the first request streams is 409', async () => {
    const [first, second] = await Promise.all([sign(item()), sign(item())])
    const reply = nextReply()
    const bought = pay(first, key())
    const upstream = await reply
    upstream.head(200, { 'content-type': 'text/event-stream' })
    upstream.chunk('data: 1\n\n')
    const response = await bought
    const repeat = await pay(second, key())
    expect(repeat.status).toBe(409)
    expect(await repeat.json()).toMatchObject({ code: 'payment-in-progress' })
    upstream.end()
    await response.text()
  })

  test('of ten concurrent credentials with one key one is settled', async () => {
    const credentials = await Promise.all(Array.from({ length: 10 }, () => sign(item())))
    const before = shop.counts().payments ?? 0
    const responses = await Promise.all(credentials.map((credential) => pay(credential, key())))
    const statuses = responses.map(({ status }) => status)
    expect(statuses.filter((status) => status === 200).length).toBeGreaterThanOrEqual(1)
    expect(statuses.filter((status) => status !== 200 && status !== 409)).toEqual([])
    expect(shop.counts().payments).toBe(before + 1)
    const spent = await Promise.all(credentials.map(isSpent))
    expect(spent.filter(Boolean)).toHaveLength(1)
  })

  test('a request with the same key waits for a pending one', async () => {
    const [first, second] = await Promise.all([sign(item()), sign(item())])
    const chain = shop.chains[base]
    if (chain === undefined) throw new Error('no chain')
    await setAutomine(chain, false)
    const before = shop.counts().payments ?? 0
    const visitor = pay(first, key())
    await until('it is written', () => shop.counts().payments === before + 1)
    expect((await pay(second, key())).status).toBe(409)
    await setAutomine(chain, true)
    await mine(chain)
    expect((await visitor).status).toBe(200)
    expect((await pay(second, key())).headers.get('idempotency-replayed')).toBe('true')
    expect(await isSpent(second)).toBe(false)
  })
})

describe('a key before a proven signature', () => {
  test('error: a forged signature does not reserve a key', async () => {
    const forged = await sign(item(), { buyer: 2, from: account(1).address })
    expect((await pay(forged, key())).status).toBe(402)
    const reply = nextReply()
    const bought = sign(item()).then((credential) => pay(credential, key()))
    const upstream = await reply
    // The answer does not show whether the key is in use.
    expect((await pay(forged, key())).status).toBe(402)
    upstream.send(200, '{"mine":true}')
    expect(await (await bought).json()).toEqual({ mine: true })
    const stolen = await pay(forged, key())
    expect(stolen.status).toBe(402)
    expect(await stolen.text()).not.toContain('mine')
  })

  test('a contract proves its signature on chain first', async () => {
    const chain = shop.chains[base]
    const asset = shop.config.networks.find(({ id }) => id === base)?.asset
    if (chain === undefined || asset === undefined) throw new Error('no chain')
    const wallet = await deploy(chain, Wallets.SmartWallet, [account(1).address])
    const abi = parseAbi(['function transfer(address, uint256) returns (bool)'])
    const data = encodeFunctionData({ abi, functionName: 'transfer', args: [wallet, 50_000n] })
    await execute(chain, [{ from: account(1).address, to: asset.address, data }])
    const forged = await sign(item(), { buyer: 2, from: wallet })
    expect((await pay(forged, key())).status).toBe(402)
    const bought = await pay(await sign(item(), { from: wallet }), key())
    expect(bought.status).toBe(200)
    const answer = await bought.text()
    expect((await pay(forged, key())).status).toBe(402)
    const repeat = await pay(await sign(item(), { from: wallet }), key())
    expect(repeat.headers.get('idempotency-replayed')).toBe('true')
    expect(await repeat.text()).toBe(answer)
  })

  test('error: an invalid key is 400', async () => {
    for (const wrong of ['x'.repeat(256), 'a b', '\u00e9']) {
      const credential = await sign(item())
      const response = await pay(credential, wrong)
      expect(response.status).toBe(400)
      expect(await response.json()).toMatchObject({ code: 'bad-request', field: 'Idempotency-Key' })
      expect(await isSpent(credential)).toBe(false)
    }
    const short = { 'payment-identifier': { info: { required: false, id: 'short' } } }
    const response = await pay(await sign(item(), { ...x402, extensions: short }), undefined)
    expect(response.status).toBe(400)
    expect(await response.json()).toMatchObject({ code: 'malformed-payment-signature' })
  })
})

describe('the store', () => {
  test("error: at the limit of its share, a payer's request with a key is 503 before a charge", async () => {
    const url = `${shop.url}/m/shop/other`
    shop.upstream.script = (_, reply) =>
      reply.send(200, 'x'.repeat(1_000_000), { 'content-type': 'text/plain' })
    let refused: Response | undefined
    let credential = await sign(url)
    for (let count = 0; count < 6 && refused === undefined; count++) {
      credential = await sign(url)
      const response = await pay(credential, key(`fill-${count}`), url)
      await response.clone().text()
      if (response.status !== 200) refused = response
    }
    expect(refused?.status).toBe(503)
    expect(refused?.headers.get('retry-after')).toBe('5')
    expect(await refused?.json()).toMatchObject({ code: 'not-ready' })
    expect(await isSpent(credential)).toBe(false)
    // Without a key no answer is stored.
    expect((await pay(credential, undefined, url)).status).toBe(200)
    // All payers share the store: one payer cannot fill it.
    expect((await pay(await sign(url, { buyer: 2 }), key('other'), url)).status).toBe(200)
    await shop.restart()
    const again = `${shop.url}/m/shop/other`
    expect((await pay(await sign(again), key('restarted'), again)).status).toBe(503)
    expect((await pay(await sign(again, { buyer: 3 }), key('third'), again)).status).toBe(200)
    // Answers older than a day are removed.
    shop.advance(25 * 60 * 60 * 1000)
    const validBefore = BigInt(Math.floor(Date.now() / 1000) + 25 * 60 * 60 + 300)
    const later = await pay(await sign(again, { validBefore }), key('later'), again)
    shop.advance(-25 * 60 * 60 * 1000)
    expect(later.status).toBe(200)
  })
})
