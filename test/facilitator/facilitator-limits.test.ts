import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import type { Config } from '../../src/config/Config'
import { account } from '../../src/demo/accounts'
import * as Permit from '../../src/protocol/Permit'
import * as Upto from '../../src/protocol/Upto'
import { RowsRefusedError } from '../../src/settlement/send/Outcome'
import { charging, type Made, makeBody, post } from '../harness/facilitation'
import { payee, type Shop, startShop, startShopChains } from '../harness/shop'
import { until } from '../harness/world'

/** Limits on the facilitator's clients, on their calls, and on the payees for which it spends gas. */

const base = 'eip155:8453'
/** All shops have the same chains, one shop after the other: their relayer is the same. */
const chains = await startShopChains()
let opened: Shop | undefined
afterAll(async () => {
  await opened?.stop()
  for (const chain of chains) await chain.stop()
})

async function open(
  changes: Partial<Config['facilitator']>,
  adjust: (config: Config) => Config = (config) => config,
): Promise<Shop> {
  await opened?.stop()
  opened = await startShop({
    chains,
    adjust: (config) => adjust({ ...config, facilitator: { ...config.facilitator, ...changes } }),
  })
  return opened
}

function make({ config }: Shop, made?: Made) {
  const network = config.networks.find(({ id }) => id === base)
  if (network === undefined) throw new Error('no network')
  return makeBody(network, made)
}

describe('limits per client', () => {
  let shop: Shop
  beforeAll(async () => {
    shop = await open({ verifyPerMinute: 3, settlePerMinute: 2 }, (config) => ({
      ...config,
      service: { ...config.service, trustProxy: 1 },
    }))
  })

  const from = (address: string) => ({ 'x-forwarded-for': address })
  /** Health checks make other calls at any time. */
  const simulations = () =>
    Object.values(shop.taps)
      .flatMap(({ calls }) => calls)
      .filter(({ method }) => method === 'eth_call').length

  test('error: above a limit the answer is 429 with Retry-After, and the two limits are separate', async () => {
    const body = await make(shop)
    await shop.still(async () => {
      for (const remaining of ['2', '1', '0']) {
        const { status, headers } = await post(`${shop.url}/verify`, body, from('192.0.2.1'))
        expect(status).toBe(200)
        expect(headers.get('ratelimit-limit')).toBe('3')
        expect(headers.get('ratelimit-remaining')).toBe(remaining)
      }
      const before = simulations()
      const refused = await post(`${shop.url}/verify`, body, from('192.0.2.1'))
      expect(simulations()).toBe(before)
      expect(refused.status).toBe(429)
      expect(refused.json).toMatchObject({ code: 'rate-limited' })
      expect(refused.json.isValid).toBeUndefined()
      expect(Number(refused.headers.get('retry-after'))).toBeGreaterThan(0)
      expect(refused.headers.get('ratelimit-remaining')).toBe('0')
    })
    expect((await post(`${shop.url}/verify`, body, from('192.0.2.2'))).status).toBe(200)
    expect((await post(`${shop.url}/settle`, body, from('192.0.2.1'))).status).toBe(200)
    const metrics = await (await fetch(`${shop.url}/metrics`)).text()
    const total = 'turnpike_facilitator_calls_total'
    expect(metrics).toContain(`${total}{operation="verify",answer="good"} 4`)
    expect(metrics).toContain(`${total}{operation="verify",answer="rate-limited"} 1`)
    expect(metrics).toContain(`${total}{operation="settle",answer="success"} 1`)
    const line = shop.logged.find((each) => each.includes('"facilitator-settle"')) ?? '{}'
    expect(JSON.parse(line)).toMatchObject({ answer: 'success', payment: expect.any(String) })
    // What is settled for other servers is no money of ours.
    expect(metrics).not.toMatch(/^turnpike_paid_usd_total\{/m)
  })

  test('attack: a payment that its payer signed for other terms costs no call to a node', async () => {
    const body = await make(shop, { requirements: { amount: '9999' } })
    await shop.still(async () => {
      const before = simulations()
      for (const operation of ['verify', 'settle']) {
        const { json } = await post(`${shop.url}/${operation}`, body, from('192.0.2.4'))
        expect(json.invalidReason ?? json.errorReason).toBe(
          'invalid_exact_evm_payload_authorization_value_mismatch',
        )
      }
      expect(simulations()).toBe(before)
    })
  })

  test('error: a call without a result has RateLimit headers, too', async () => {
    const from = { 'x-forwarded-for': '192.0.2.3' }
    const malformed = await post(`${shop.url}/verify`, '{}', from)
    expect(malformed.status).toBe(400)
    expect(malformed.headers.get('ratelimit-remaining')).toBe('2')
    const long = await post(`${shop.url}/verify`, ' '.repeat(256 * 1024 + 1), from)
    expect(long.status).toBe(413)
    expect(long.headers.get('ratelimit-remaining')).toBe('1')
    const packed = await post(`${shop.url}/verify`, '{}', { ...from, 'content-encoding': 'gzip' })
    expect(packed.status).toBe(415)
    expect(packed.headers.get('ratelimit-remaining')).toBe('0')
    expect(packed.headers.get('accept-encoding')).toBe('identity')
  })

  test('error: addresses of one /64 are one client', async () => {
    const statuses: number[] = []
    await shop.still(async () => {
      for (const tail of ['1', '2', '3:4']) {
        const url = `${shop.url}/settle`
        statuses.push((await post(url, '{}', from(`2001:db8:0:1::${tail}`))).status)
      }
    })
    expect(statuses).toEqual([400, 400, 429])
    const other = await post(`${shop.url}/settle`, '{}', from('2001:db8:0:2::1'))
    expect(other.status).toBe(400)
  })
})

describe('attack 43: unknown clients that want their payments settled', () => {
  test('error: a payee that is not ours is refused, without a call to a node', async () => {
    const shop = await open({})
    const calls = shop.calls()
    const rows = shop.counts()
    const stranger = account(8).address
    const body = await make(shop, { to: stranger, requirements: { payTo: stranger } })
    for (const operation of ['verify', 'settle']) {
      const { status, json } = await post(`${shop.url}/${operation}`, body)
      expect(status).toBe(200)
      expect(json.invalidReason ?? json.errorReason).toBe('payee_not_allowed')
    }
    expect([shop.calls(), shop.counts()]).toEqual([calls, rows])
  })

  test('error: our own accounts and contracts are never paid, nor a payer by itself', async () => {
    const shop = await open({ payTo: 'any', minAmountAtomic: 10n, uptoWithoutKeys: true })
    const { networks } = shop.config
    const refusedPayees = [
      account(0).address,
      ...networks.map(({ asset }) => asset.address),
      Permit.permit2Address,
      Permit.proxyAddress,
      Upto.proxyAddress,
      account(1).address,
    ]
    for (const to of refusedPayees) {
      const body = await make(shop, { to, requirements: { payTo: to } })
      const { json } = await post(`${shop.url}/settle`, body)
      expect([to, json.errorReason]).toEqual([to, 'payee_not_allowed'])
      const upto = await make(shop, { scheme: 'upto', to, requirements: { payTo: to } })
      for (const amount of [0, 5000]) {
        const { json } = await post(`${shop.url}/settle`, charging(upto, amount))
        expect([to, json.errorReason]).toEqual([to, 'payee_not_allowed'])
      }
    }
    const stranger = account(8).address
    const body = await make(shop, { to: stranger, requirements: { payTo: stranger } })
    expect((await post(`${shop.url}/settle`, body)).json).toMatchObject({ success: true })
    const little = await make(shop, { amountAtomic: 9n })
    const { json } = await post(`${shop.url}/settle`, little)
    expect(json).toMatchObject({ success: false, errorReason: 'amount_below_minimum' })
  })

  test('error: an asset that is not listed is refused, and its network is not offered', async () => {
    const assets = ['0x5fc5360D0400a0Fd4f2af552ADD042D716F1d168' as const]
    const shop = await open({ assets, uptoWithoutKeys: true })
    const { json } = await post(`${shop.url}/verify`, await make(shop))
    expect(json).toMatchObject({ isValid: false, invalidReason: 'asset_not_allowed' })
    const supported = (await (await fetch(`${shop.url}/supported`)).json()) as {
      kinds: { scheme: string; network: string }[]
    }
    const kinds = supported.kinds.map(({ scheme, network }) => `${scheme} ${network}`)
    const schemes = ['exact', 'upto', 'batch-settlement']
    expect(kinds).toEqual(schemes.map((scheme) => `${scheme} eip155:4663`))
  })

  test('error: a spent gas budget of the facilitator does not affect that of the gateway', async () => {
    const shop = await open({}, (config) => ({
      ...config,
      networks: config.networks.map((network) => ({
        ...network,
        gasPerDayWei: { ...network.gasPerDayWei, facilitator: 1n },
      })),
    }))
    expect((await post(`${shop.url}/settle`, await make(shop))).json.success).toBe(true)
    const { status, json, headers } = await post(`${shop.url}/settle`, await make(shop))
    expect(status).toBe(503)
    expect(json.success).toBeUndefined()
    expect(Number(headers.get('retry-after'))).toBeGreaterThan(0)
    expect(shop.app.settlement.isReady(base)).toBe(true)
    const supported = (await (await fetch(`${shop.url}/supported`)).json()) as {
      kinds: { network: string }[]
    }
    expect(supported.kinds.map(({ network }) => network)).not.toContain(base)
  })
})

describe('API keys', () => {
  const key = 'k3y-of-a-resource-server'
  const hash = (text: string): `0x${string}` =>
    `0x${new Bun.CryptoHasher('sha256').update(text).digest('hex')}`
  let shop: Shop
  beforeAll(async () => {
    shop = await open({ payTo: 'any', apiKeyHashes: [hash('another'), hash(key)] })
  })
  const bearer = { authorization: `Bearer ${key}` }

  test('error: without one of the keys nothing is verified or settled', async () => {
    const body = await make(shop)
    const wrong: Record<string, string>[] = [
      {},
      { authorization: `Bearer ${key}x` },
      { authorization: key },
      { 'x-api-key': hash(key) },
      { 'x-api-key': '' },
    ]
    const calls = shop.calls()
    for (const headers of wrong) {
      const answer = await post(`${shop.url}/settle`, body, headers)
      expect(answer.status).toBe(401)
      expect(answer.headers.get('www-authenticate')).toBe('Bearer')
      expect(JSON.stringify(answer.json)).not.toContain(key)
    }
    expect(shop.calls()).toBe(calls)
    expect((await post(`${shop.url}/verify`, body, bearer)).json).toMatchObject({ isValid: true })
    const plain = await post(`${shop.url}/verify`, body, { 'x-api-key': key })
    expect(plain.json).toMatchObject({ isValid: true })
    expect((await fetch(`${shop.url}/supported`)).status).toBe(200)
    expect(shop.logged.join('\n')).not.toContain(key)
  })

  test('a caller gets its answer again by its Idempotency-Key', async () => {
    const body = await make(shop)
    const before = await shop.balance(base, payee)
    const mine = { ...bearer, 'idempotency-key': 'order-1' }
    const first = await post(`${shop.url}/settle`, body, mine)
    const again = await post(`${shop.url}/settle`, body, mine)
    expect(first.json).toMatchObject({ success: true })
    expect(again.json).toEqual(first.json)
    expect(again.headers.get('idempotency-replayed')).toBe('true')
    for (const headers of [bearer, { ...bearer, 'idempotency-key': 'order-2' }]) {
      expect((await post(`${shop.url}/settle`, body, headers)).json.success).toBe(false)
    }
    const otherCaller = { authorization: 'Bearer another', 'idempotency-key': 'order-1' }
    expect((await post(`${shop.url}/settle`, body, otherCaller)).json.success).toBe(false)
    const other = await post(`${shop.url}/settle`, await make(shop), mine)
    expect(other.status).toBe(409)
    expect(other.json).toMatchObject({ success: false, errorReason: 'idempotency_conflict' })
    expect((await shop.balance(base, payee)) - before).toBe(5_000n)
  })

  test('error: a key that another gateway uses for other money meanwhile is refused', async () => {
    const mine = { ...bearer, 'idempotency-key': 'order-meanwhile' }
    const body = await make(shop)
    const { settlement } = shop.app
    const { settle } = settlement
    const refuse = () => Promise.reject(new RowsRefusedError('key-used'))
    Object.assign(settlement, { settle: refuse })
    const refused = await post(`${shop.url}/settle`, body, mine).finally(() =>
      Object.assign(settlement, { settle }),
    )
    expect(refused.status).toBe(409)
    expect(refused.json).toMatchObject({ success: false, errorReason: 'idempotency_conflict' })
    expect((await post(`${shop.url}/settle`, body, mine)).json).toMatchObject({ success: true })
  })

  test('an Idempotency-Key is free again when its settlement was refused', async () => {
    const mine = { ...bearer, 'idempotency-key': 'order-refused' }
    const poor = await make(shop, { amountAtomic: 10n ** 15n })
    expect((await post(`${shop.url}/settle`, poor, mine)).json.success).toBe(false)
    const { json } = await post(`${shop.url}/settle`, await make(shop), mine)
    expect(json).toMatchObject({ success: true })
  })

  test('error: of two concurrent authorizations under one Idempotency-Key one is refused', async () => {
    const mine = { ...bearer, 'idempotency-key': 'order-3' }
    const bodies = [await make(shop), await make(shop)]
    const before = await shop.balance(base, payee)
    const settle = () => Promise.all(bodies.map((body) => post(`${shop.url}/settle`, body, mine)))
    const first = await settle()
    expect(first.map(({ status }) => status).sort()).toEqual([200, 409])
    const again = await settle()
    expect(again.map(({ json }) => json)).toEqual(
      first.map(({ json }) => expect.objectContaining({ success: json.success })),
    )
    expect((await shop.balance(base, payee)) - before).toBe(5_000n)
  })

  test('attack: of three concurrent authorizations under one Idempotency-Key only one settles, also when its read is late', async () => {
    const { settlement } = shop.app
    const find = settlement.findByIdempotencyKey
    const { promise, resolve: release } = Promise.withResolvers<void>()
    const read = Promise.withResolvers<void>()
    settlement.findByIdempotencyKey = async (scope) => {
      const found = await find(scope)
      read.resolve()
      await promise
      return found
    }
    try {
      const mine = { ...bearer, 'idempotency-key': 'order-4' }
      const bodies = [await make(shop), await make(shop), await make(shop)]
      const before = await shop.balance(base, payee)
      const answers = bodies.map((body) => post(`${shop.url}/settle`, body, mine))
      await read.promise
      // The call that holds the key waits for its read. The others are refused without one.
      const conflicts: number[] = []
      for (const answer of answers) void answer.then(({ status }) => conflicts.push(status))
      await until('the others are answered', () => conflicts.length === 2)
      expect(conflicts).toEqual([409, 409])
      release()
      expect((await Promise.all(answers)).map(({ status }) => status).sort()).toEqual([
        200, 409, 409,
      ])
      expect((await shop.balance(base, payee)) - before).toBe(5_000n)
    } finally {
      settlement.findByIdempotencyKey = find
    }
  })

  test('error: an invalid Idempotency-Key is 400', async () => {
    const headers = { ...bearer, 'idempotency-key': 'a b' }
    const { status, json } = await post(`${shop.url}/settle`, await make(shop), headers)
    expect(status).toBe(400)
    expect(json).toMatchObject({ success: false, errorReason: 'invalid_payload' })
  })
})
