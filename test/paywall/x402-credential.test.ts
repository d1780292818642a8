import { Database } from 'bun:sqlite'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'bun:test'
import { join } from 'node:path'
import { decodeFunctionData, type Hex, numberToHex, parseAbi } from 'viem'
import { account } from '../../src/demo/accounts'
import { buyWithX402 } from '../../src/demo/buyers'
import { mine } from '../../src/demo/chains'
import { ask, askedOf, payV1, payX402, settlementOf } from '../harness/buyer'
import { setAutomine } from '../harness/chains'
import { type Body, makeBody, post } from '../harness/facilitation'
import { openConnection, type Shop, setSettleWait, sign, startShop } from '../harness/shop'
import { tamper } from '../harness/test-ledger'
import { until } from '../harness/world'

/**
 * The chain, and before it the mempool, publishes payer, nonce and signature of an x402 payment:
 * all fields of a credential. A reader of them must not get an answer that the buyer has not
 * fetched yet.
 */

let shop: Shop
beforeAll(async () => {
  shop = await startShop()
})
afterAll(() => shop?.stop())
afterEach(async () => {
  shop.upstream.script = undefined
  await setAutomine(chain(), true)
  await mine(chain())
})

const base = 'eip155:8453'
const item = () => `${shop.url}/m/shop/item`
const x402 = { scheme: 'x402-eip3009', network: base } as const

function chain() {
  const found = shop.chains[base]
  if (found === undefined) throw new Error('no chain')
  return found
}

const abi = parseAbi([
  'function transferWithAuthorization(address from, address to, uint256 value, uint256 validAfter, uint256 validBefore, bytes32 nonce, uint8 v, bytes32 r, bytes32 s)',
])

/** The payload that an observer can rebuild from the newest payment's calldata. */
async function rebuilt(): Promise<{ signature: Hex; authorization: Record<string, string> }> {
  const [row] = shop.rows('SELECT transaction_hash FROM payments ORDER BY rowid DESC LIMIT 1')
  const read = async () =>
    (await chain().rpc('eth_getTransactionByHash', [row?.transaction_hash])) as {
      input: Hex
    } | null
  await until('the transaction is public', async () => (await read()) !== null)
  const { args } = decodeFunctionData({ abi, data: (await read())?.input ?? '0x' })
  const [from, to, value, validAfter, validBefore, nonce, v, r, s] = args
  return {
    signature: `${r}${s.slice(2)}${numberToHex(v, { size: 1 }).slice(2)}`,
    authorization: {
      ...{ from, to, nonce, value: String(value) },
      ...{ validAfter: String(validAfter), validBefore: String(validBefore) },
    },
  }
}

/** Credentials of an attacker: bare, and with all members of a fresh 402 of the same route. */
async function stolen(url = item()): Promise<Record<string, string>[]> {
  const payload = await rebuilt()
  const { required } = await ask(url)
  const accepted = required.accepts.find(
    ({ network, extra }) => network === base && extra.assetTransferMethod === 'eip3009',
  )
  const { resource, extensions } = required
  const forms = [
    { x402Version: 2, payload },
    { x402Version: 2, payload, accepted },
    { x402Version: 2, payload, extensions, resource, accepted },
    { x402Version: 2, payload, resource, accepted, extensions },
  ]
  return forms.map((form) => ({ 'payment-signature': btoa(JSON.stringify(form)) }))
}

/** The same in version 1, whose clients add nothing: the first is what x402-fetch itself has sent. */
async function stolenV1(): Promise<Record<string, string>[]> {
  const { signature, authorization } = await rebuilt()
  const { from, to, value, validAfter, validBefore, nonce } = authorization
  const ordered = { from, to, value, validAfter, validBefore, nonce }
  const [version, terms] = [{ x402Version: 1 }, { scheme: 'exact', network: 'base' }]
  const forms = [
    { ...version, ...terms, payload: { signature, authorization: ordered } },
    { payload: { authorization, signature }, ...terms, ...version },
  ]
  return forms.map((form) => ({ 'x-payment': btoa(JSON.stringify(form)) }))
}

async function expectNothing(headers: readonly Record<string, string>[]): Promise<void> {
  const requests = shop.upstream.requests.length
  for (const each of headers) {
    const response = await fetch(item(), { headers: each })
    expect(response.status).toBe(409)
    expect(await response.json()).toMatchObject({ code: 'payment-mismatch' })
    expect(settlementOf(response)).toMatchObject({ success: false, network: base })
  }
  expect(shop.upstream.requests).toHaveLength(requests)
}

/** A buyer that pays and disconnects before the block, so that its answer waits. */
async function leave(headers: Record<string, string>): Promise<void> {
  await setAutomine(chain(), false)
  const { payments = 0 } = shop.counts()
  const connection = openConnection(item(), headers)
  await until('the payment is written', () => (shop.counts().payments ?? 0) > payments)
  await rebuilt()
  await connection.leave()
}

async function confirm(): Promise<void> {
  await setAutomine(chain(), true)
  await mine(chain())
  await until('it is confirmed', () => {
    const [row] = shop.rows('SELECT state FROM payments ORDER BY rowid DESC LIMIT 1')
    return row?.state === 'confirmed'
  })
}

async function expectAnswer(headers: Record<string, string>): Promise<void> {
  let response = await fetch(item(), { headers })
  await until('the transfer is decided', async () => {
    if (response.status === 503) response = await fetch(item(), { headers })
    return response.status !== 503
  })
  expect([response.status, await response.text()]).toEqual([200, '{"ok":true}'])
}

describe('an answer that waits for its buyer', () => {
  test('attack: a credential rebuilt from the chain does not fetch a waiting answer, also after a restart', async () => {
    const own = await sign(item(), x402)
    await leave({ ...own, 'idempotency-key': 'a-secret-of-the-buyer' })
    await confirm()
    await expectNothing([...(await stolen()), ...(await stolenV1())])
    await shop.restart()
    await expectNothing([...(await stolen()), ...(await stolenV1())])
    await expectAnswer(own)
  })

  test('the reserved key fetches a waiting answer, with any form of the credential', async () => {
    const own = await sign(item(), x402)
    const key = { 'idempotency-key': 'another-secret-of-the-buyer' }
    await leave({ ...own, ...key })
    await confirm()
    const [bare = {}] = await stolen()
    await expectNothing([{ ...bare, 'idempotency-key': 'a-guess' }])
    await expectAnswer({ ...bare, ...key })
  })

  test("the header's value identifies the buyer, not its name", async () => {
    const own = await sign(item(), x402)
    const value = own['payment-signature'] ?? ''
    await leave({ 'payment-signature': value, 'x-payment': value })
    await confirm()
    await expectAnswer({ 'x-payment': value })
  })

  test('a client that echoes nothing fetches its answer with the same bytes', async () => {
    const own = await sign(item(), { ...x402, bare: true })
    await leave(own)
    await confirm()
    const payload = await rebuilt()
    // The other order of members, which no client of ours has written.
    const form = { payload, x402Version: 2 }
    await expectNothing([{ 'payment-signature': btoa(JSON.stringify(form)) }])
    await expectAnswer(own)
  })

  test('the redeem token fetches the answer after a failed delivery', async () => {
    shop.upstream.script = (_, reply) => reply.send(503, '{}')
    const own = await sign(item(), x402)
    const failed = await fetch(item(), { headers: own })
    const { redeem } = (await failed.json()) as { redeem: { token: string } }
    shop.upstream.script = undefined
    await expectNothing(await stolen())
    await expectAnswer({ 'payment-redeem': redeem.token })
  })
})

describe('a payment that is pending', () => {
  test('attack: polling with a rebuilt credential does not take the place of the buyer', async () => {
    const own = await sign(item(), x402)
    await setAutomine(chain(), false)
    await setSettleWait(shop, 2)
    expect((await fetch(item(), { headers: own })).status).toBe(503)
    const forms = await stolen()
    const polls = [...forms, ...forms].map((headers) => fetch(item(), { headers }))
    // If one of them waited for the transfer instead of the buyer, this would be 409.
    expect((await fetch(item(), { headers: own })).status).toBe(503)
    for (const { status } of await Promise.all(polls)) expect(status).toBe(409)
    await setSettleWait(shop, 25)
    await confirm()
    await expectNothing(forms)
    await expectAnswer(own)
    expect((await fetch(item(), { headers: own })).status).toBe(402)
  })
})

describe('a payment of version 1', () => {
  const signV1 = async () => ({
    'x-payment': await payV1((await ask(item())).whole, account(1).local()),
  })
  const thefts = async () => [...(await stolenV1()), ...(await stolen())]
  type Pending = { code: string; detail: string; redeem?: { token: string } }

  test('attack: a reader of the chain does not fetch its answer, and the key of its buyer does', async () => {
    const key = { 'idempotency-key': 'a-secret-of-version-1' }
    await leave({ ...(await signV1()), ...key })
    await confirm()
    await expectNothing(await thefts())
    const [first = {}] = await stolenV1()
    await expectNothing([{ ...first, 'idempotency-key': 'a-guess' }])
    // Stock clients sign anew: the same key and payer buy nothing again.
    const before = shop.counts().payments
    await expectAnswer({ ...(await signV1()), ...key })
    expect(shop.counts().payments).toBe(before)
  })

  test('attack: without a key nothing that the chain publishes continues it, not even for its buyer', async () => {
    const own = await signV1()
    await leave(own)
    await confirm()
    await expectNothing([own, ...(await thefts())])
    await shop.restart()
    await expectNothing([own, ...(await thefts())])
  })

  test('a pending payment has a token for its buyer alone, by which it is continued', async () => {
    const own = await signV1()
    await setAutomine(chain(), false)
    await setSettleWait(shop, 2)
    const pending = await fetch(item(), { headers: own })
    const { code, redeem } = (await pending.json()) as Pending
    expect([pending.status, code]).toEqual([503, 'settlement-pending'])
    expect(JSON.parse(atob(pending.headers.get('x-payment-response') ?? ''))).toMatchObject({
      success: false,
      network: 'base',
      payer: account(1).address,
    })
    const polls = await Promise.all(
      [own, ...(await thefts())].map((headers) => fetch(item(), { headers })),
    )
    for (const response of polls)
      expect([response.status, await response.json()]).toEqual([
        409,
        expect.not.objectContaining({ redeem: expect.anything() }),
      ])
    const token = redeem?.token ?? ''
    const [id = '', mac = ''] = token.split('.')
    const forged = [`${id}.${'A'.repeat(43)}`, `pay_${'0'.repeat(32)}.${mac}`, mac, id]
    for (const value of forged) {
      const refused = await fetch(item(), { headers: { 'payment-redeem': value } })
      expect(await refused.json()).toMatchObject({ code: 'invalid-redeem-token' })
    }
    const elsewhere = await fetch(`${shop.url}/m/shop/other`, {
      headers: { 'payment-redeem': token },
    })
    const codeOf = async (response: Response) => ((await response.json()) as Pending).code
    expect([elsewhere.status, await codeOf(elsewhere)]).toEqual([409, 'payment-mismatch'])
    await setSettleWait(shop, 25)
    await confirm()
    await expectNothing(await thefts())
    await shop.restart()
    await expectAnswer({ 'payment-redeem': token })
    const again = await fetch(item(), { headers: { 'payment-redeem': token } })
    expect([again.status, await codeOf(again)]).toEqual([410, 'redeem-exhausted'])
    expect((await fetch(item(), { headers: own })).status).toBe(402)
  })

  test('the token of a payment that did not arrive gets a 402 with fresh offers', async () => {
    await setAutomine(chain(), false)
    const hasty = { ...shop.config.service, settleWaitSeconds: 1, stopSeconds: 0 }
    expect(await shop.app.reload({ ...shop.config, service: hasty })).toEqual([])
    const pending = await fetch(item(), { headers: await signV1() })
    const { redeem } = (await pending.json()) as Pending
    await shop.app.stop()
    tamper(shop.dataDir, "UPDATE payments SET state = 'expired' WHERE state = 'broadcast'")
    await shop.restart()
    const ended = await askedOf(
      await fetch(item(), { headers: { 'payment-redeem': redeem?.token ?? '' } }),
    )
    expect([ended.response.status, ended.body.code]).toEqual([402, 'verification-failed'])
    expect(ended.challenges).toHaveLength(3)
    expect(ended.body.accepts).toHaveLength(2)
  })

  test('a failed delivery has the redeem token, and the credential gets nothing', async () => {
    shop.upstream.script = (_, reply) => reply.send(503, '{}')
    const failed = await fetch(item(), { headers: await signV1() })
    const { redeem } = (await failed.json()) as { redeem: { token: string } }
    expect(failed.status).toBe(502)
    shop.upstream.script = undefined
    await expectNothing(await thefts())
    await expectAnswer({ 'payment-redeem': redeem.token })
  })
})

describe('over MCP', () => {
  type Meta = Record<string, unknown>
  type Result = {
    content: { text: string }[]
    structuredContent?: { code?: string }
    _meta?: Record<string, unknown>
  }

  async function call(_meta: Meta): Promise<Result> {
    const params = { name: 'shop-item', arguments: {}, _meta }
    const response = await fetch(`${shop.url}/mcp`, {
      method: 'POST',
      headers: {
        'content-type': 'application/json',
        accept: 'application/json, text/event-stream',
      },
      body: JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'tools/call', params }),
    })
    return ((await response.json()) as { result: Result }).result
  }

  const metaOf = (headers: Record<string, string>): Meta => ({
    'x402/payment': JSON.parse(atob(headers['payment-signature'] ?? '')),
  })

  async function expectNoResult(metas: readonly Meta[]): Promise<void> {
    const requests = shop.upstream.requests.length
    for (const each of metas) {
      const { structuredContent, _meta } = await call(each)
      expect(structuredContent).toMatchObject({ code: 'payment-mismatch' })
      expect(_meta?.['x402/payment-response']).toMatchObject({ success: false })
    }
    expect(shop.upstream.requests).toHaveLength(requests)
  }

  async function expectResult(meta: Meta): Promise<void> {
    let result = await call(meta)
    await until('the transfer is decided', async () => {
      const isPending = result.structuredContent?.code === 'settlement-pending'
      if (isPending) result = await call(meta)
      return !isPending
    })
    expect(result.content[0]?.text).toBe('{"ok":true}')
  }

  /** Pays, and gets a pending answer. */
  async function begin(meta: Meta): Promise<void> {
    await setAutomine(chain(), false)
    const { payments = 0 } = shop.counts()
    setSettleWait(shop, 2)
    expect((await call(meta)).structuredContent).toMatchObject({ code: 'settlement-pending' })
    setSettleWait(shop, 25)
    await until('the payment is written', () => (shop.counts().payments ?? 0) > payments)
  }

  test('attack: a credential rebuilt from the chain fetches nothing, before the block and after it', async () => {
    const own = metaOf(await sign(item(), x402))
    await begin(own)
    const forms = await stolen()
    const thefts = forms.map(metaOf)
    await expectNoResult([...thefts, { ...thefts[0], 'turnpike/idempotency-key': 'a-guess' }])
    await confirm()
    await expectNoResult(thefts)
    await expectNothing(forms)
    // The same value, written by another client.
    const members = Object.entries(own['x402/payment'] as object).reverse()
    await expectResult({ 'x402/payment': Object.fromEntries(members) })
  })

  test('attack: a credential rebuilt from the chain does not fetch an answer that was paid over HTTP', async () => {
    const own = await sign(item(), x402)
    await leave(own)
    await confirm()
    await expectNoResult((await stolen()).map(metaOf))
    await expectAnswer(own)
  })

  test('over MCP the reserved key fetches a waiting answer, with any form of the credential', async () => {
    const key = { 'turnpike/idempotency-key': 'a-secret-of-this-client' }
    await begin({ ...metaOf(await sign(item(), x402)), ...key })
    const [bare = {}] = (await stolen()).map(metaOf)
    await confirm()
    await expectNoResult([bare, { ...bare, 'turnpike/idempotency-key': 'a-guess' }])
    await expectResult({ ...bare, ...key })
  })
})

describe('a payment of a version that stored no bytes', () => {
  /** The row of a version that stored no bytes. */
  async function forget(): Promise<void> {
    await shop.app.stop()
    const db = new Database(join(shop.dataDir, 'turnpike.sqlite'))
    db.run('UPDATE payments SET credential_hash = NULL')
    db.close()
    await shop.restart()
  }

  test('attack: public data of the chain does not fetch its answer, only its key does', async () => {
    const own = await sign(item(), x402)
    const key = { 'idempotency-key': 'kept-since-before' }
    await leave({ ...own, ...key })
    await confirm()
    await forget()
    await expectNothing([...(await stolen()), own])
    await expectAnswer({ ...own, ...key })
  })
})

describe('the salt of a challenge', () => {
  const saltOf = (extensions: unknown) =>
    (extensions as { mppx: { info: { salt: string } } }).mppx.info.salt

  test('every 402 has another salt in its header, and none can be guessed', async () => {
    const asked = await Promise.all(Array.from({ length: 200 }, () => ask(item())))
    const salts = asked.map(({ required }) => saltOf(required.extensions))
    expect(new Set(salts).size).toBe(200)
    for (const salt of salts) expect(salt).toMatch(/^[A-Za-z0-9_-]{15}$/)
  })

  test('@x402/fetch echoes the salt, so that its header cannot be rebuilt', async () => {
    const options = { network: base, method: 'eip3009' } as const
    const bought = await buyWithX402(shop, item(), account(2), options)
    expect(bought.response.status).toBe(200)
    const [asked, paid] = bought.requests
    const sent = JSON.parse(atob(paid?.headers.get('payment-signature') ?? ''))
    const required = JSON.parse(atob(asked?.responseHeaders.get('payment-required') ?? ''))
    expect(saltOf(sent.extensions)).toBe(saltOf(required.extensions))
  })
})

describe('the facilitator', () => {
  const settle = (body: unknown) => post(`${shop.url}/settle`, body)

  async function pending(): Promise<Body> {
    const network = shop.config.networks.find(({ id }) => id === base)
    if (network === undefined) throw new Error('no network')
    const body = await makeBody(network, { requirements: { maxTimeoutSeconds: 2 } })
    await setAutomine(chain(), false)
    expect((await settle(body)).json).toMatchObject({ success: false, status: 'pending' })
    return body
  }

  test('attack: another payload of the same authorization does not take the one success', async () => {
    const body = await pending()
    const thefts = ['resource', 'extensions'].map((name) => {
      const { paymentPayload, ...rest } = structuredClone(body)
      const more = name === 'resource' ? { resource: undefined } : { extensions: {} }
      return { ...rest, paymentPayload: { ...paymentPayload, ...more } }
    })
    for (const theft of thefts) {
      expect((await settle(theft)).json).toMatchObject({
        success: false,
        errorReason: 'invalid_exact_evm_nonce_already_used',
      })
    }
    await confirm()
    for (const theft of thefts) expect((await settle(theft)).json.success).toBe(false)
    // The same value with another order of its members is the same payload.
    const { paymentRequirements, paymentPayload, x402Version } = body
    const { x402Version: version, ...members } = paymentPayload
    const again = {
      x402Version,
      paymentRequirements,
      paymentPayload: { ...members, x402Version: version },
    }
    expect((await settle(again)).json).toMatchObject({ success: true })
    expect((await settle(body)).json).toMatchObject({ success: false })
  })
})

describe('the facilitator in version 1', () => {
  const key = 'an-api-key'
  const apiKeyHashes: Hex[] = [`0x${new Bun.CryptoHasher('sha256').update(key).digest('hex')}`]

  async function pendingV1(headers: Record<string, string>): Promise<unknown> {
    const network = shop.config.networks.find(({ id }) => id === base)
    if (network === undefined) throw new Error('no network')
    const { paymentPayload, paymentRequirements } = await makeBody(network, {
      requirements: { maxTimeoutSeconds: 2 },
    })
    const { amount: maxAmountRequired, ...terms } = paymentRequirements
    const named = { scheme: 'exact', network: 'base' }
    const body = {
      x402Version: 1,
      paymentPayload: { x402Version: 1, ...named, payload: paymentPayload.payload },
      paymentRequirements: { ...terms, ...named, maxAmountRequired, resource: item() },
    }
    await setAutomine(chain(), false)
    const { json } = await post(`${shop.url}/settle`, body, headers)
    expect(json).toMatchObject({ success: false, status: 'pending', network: 'base' })
    return body
  }

  test('attack: a later call does not take the success, because any client can make it', async () => {
    const body = await pendingV1({})
    await confirm()
    for (const operation of ['verify', 'settle']) {
      const { json } = await post(`${shop.url}/${operation}`, body)
      expect(json.success ?? json.isValid).toBe(false)
    }
  })

  test('a caller continues its own call by its API key and its Idempotency-Key', async () => {
    const { facilitator } = shop.config
    expect(
      await shop.app.reload({ ...shop.config, facilitator: { ...facilitator, apiKeyHashes } }),
    ).toEqual([])
    const caller = { 'x-api-key': key }
    const own = { ...caller, 'idempotency-key': 'one-purchase' }
    const body = await pendingV1(own)
    await confirm()
    for (const headers of [caller, { ...caller, 'idempotency-key': 'another' }]) {
      const { json } = await post(`${shop.url}/settle`, body, headers)
      expect(json).toMatchObject({ success: false })
    }
    for (const replayed of [null, 'true']) {
      const { json, headers } = await post(`${shop.url}/settle`, body, own)
      expect(json).toMatchObject({ success: true, network: 'base' })
      expect(headers.get('idempotency-replayed')).toBe(replayed)
    }
    expect(await shop.app.reload(shop.config)).toEqual([])
  })
})

test('payX402 of another 402 differs although it signs the same', async () => {
  const first = await ask(item())
  const second = await ask(item())
  const terms = { network: base, method: 'eip3009' as const, nonce: `0x${'5a'.repeat(32)}` as Hex }
  const [a, b] = await Promise.all(
    [first, second].map(({ required }) =>
      payX402(required, account(2).local(), { ...terms, extensions: required.extensions }),
    ),
  )
  expect(a).not.toBe(b)
})
