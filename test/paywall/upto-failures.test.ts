import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import { type Address, encodeFunctionData, type Hex, parseAbi } from 'viem'
import { account } from '../../src/demo/accounts'
import { execute } from '../../src/demo/chains'
import { ask, payX402, randomNonce, settlementOf } from '../harness/buyer'
import { startTap } from '../harness/settlement'
import { payee, sign, untilEnded, untilFree } from '../harness/shop'
import type { Reply, Script } from '../harness/upstream'
import {
  answering,
  base,
  body,
  costOf,
  event,
  events,
  json,
  type ModelShop,
  nodeAway,
  readerOf,
  startModels,
  usage,
  type Wallet,
} from '../harness/upto-shop'
import { until } from '../harness/world'

/** Charges of the x402 scheme `upto` that are nothing, or that cannot be settled. */

let shop: ModelShop
let payer: Wallet
beforeAll(async () => {
  shop = await startModels()
})
afterAll(() => shop.stop())
beforeEach(async () => {
  shop.clear()
  payer = await shop.wallet()
})

const day = 24 * 60 * 60 * 1000
const posting = { method: 'POST', headers: json, body }
const robinhood = 'eip155:4663'
/** The same money by `exact`, which takes Permit2 on this chain only. */
const exact = (nonce: Hex, buyer: number) =>
  sign(shop.chat(), { scheme: 'x402-permit2', init: posting, nonce, buyer })
const upto = (nonce: Hex, buyer: number) => shop.sign({ network: robinhood, nonce, buyer })

const errorOf = (response: Response) => [response.status, settlementOf(response).errorReason]
const moneyRows = () => shop.rows(`SELECT * FROM payments WHERE payer = '${payer.address}'`)

describe('an answer that costs nothing', () => {
  const scripts: readonly (readonly [string, number, Script, string?])[] = [
    ['404', 404, answering('{}', 404)],
    ['400 with usage', 400, answering(usage(7, 20), 400)],
    ['429', 502, answering(usage(7, 20), 429)],
    ['500', 502, answering(usage(7, 20), 500)],
    ['a redirect', 502, answering('{}', 302, { location: '/other' })],
    ['an error in the body', 200, answering('{"error":{"message":"no"}}')],
    ['no answer', 502, (_: unknown, reply: Reply) => reply.cut()],
    [
      'a cut answer',
      502,
      (_, reply) => {
        reply.head(200, json)
        reply.chunk(usage(7, 20))
        reply.cut()
      },
    ],
    ['no answer in time', 504, () => {}, 'quick'],
    [
      'an answer that stops',
      504,
      (_, reply) => {
        reply.head(200, json)
        reply.chunk(usage(7, 20))
      },
      'quick',
    ],
    ['usage of zero without a base', 200, answering(usage(0, 0)), 'free'],
  ]
  for (const [name, status, script, slug = 'model'] of scripts)
    test(`an answer that costs nothing (${name}): its authorization is void and spent`, async () => {
      const before = await shop.tokensOf(payer.address)
      const credential = await shop.sign({ signer: payer, slug })
      shop.upstream.script = script
      const response = await shop.pay(credential, { slug })
      const text = await response.text()
      expect(response.status).toBe(status)
      const told = settlementOf(response)
      const passed = status === 200 || status === 404 || status === 400
      if (passed) expect(told).toMatchObject({ success: true, amount: '0', transaction: '' })
      else {
        expect(told).toMatchObject({ success: false, transaction: '' })
        expect(text).toContain('Nothing is charged')
      }
      expect(shop.authorization()).toMatchObject({ state: 'void', charge_atomic: '0' })
      shop.upstream.script = answering(usage(7, 20))
      expect(errorOf(await shop.pay(credential, { slug }))).toEqual([402, 'permit2_invalid_nonce'])
      expect(shop.upstream.requests).toHaveLength(1)
      expect(moneyRows()).toEqual([])
      expect(await shop.tokensOf(payer.address)).toBe(before)
      // The ceiling no longer reserves money.
      await shop.setBalance(payer.address, 12_000n)
      expect((await shop.buy({ signer: payer })).status).toBe(200)
    })

  test('a void authorization is spent after a restart, too, and exact does not take its nonce', async () => {
    const nonce = randomNonce()
    const credential = await upto(nonce, 1)
    shop.upstream.script = answering('{}', 404)
    expect((await shop.pay(credential)).status).toBe(404)
    const other = await exact(nonce, 1)
    expect(errorOf(await shop.pay(other))).toEqual([402, 'permit2_invalid_nonce'])
    await shop.restart()
    expect(errorOf(await shop.pay(credential))).toEqual([402, 'permit2_invalid_nonce'])
    expect(errorOf(await shop.pay(other))).toEqual([402, 'permit2_invalid_nonce'])
    expect(shop.upstream.requests).toHaveLength(1)
  })
})

describe('a nonce that exact has', () => {
  test('error: a nonce that exact has is not authorized, before and after a restart', async () => {
    const nonce = randomNonce()
    shop.upstream.script = answering(usage(7, 20))
    expect((await shop.pay(await exact(nonce, 2))).status).toBe(200)
    await untilEnded(shop)
    const credential = await upto(nonce, 2)
    expect(errorOf(await untilFree(() => shop.pay(credential)))).toEqual([
      402,
      'permit2_invalid_nonce',
    ])
    await shop.restart()
    expect(errorOf(await shop.pay(credential))).toEqual([402, 'permit2_invalid_nonce'])
    expect(shop.upstream.requests).toHaveLength(1)
    const count = shop.rows("SELECT count(*) n FROM authorizations WHERE payer LIKE '0x3c44%'")
    expect(count).toEqual([{ n: 0 }])
  })

  test('attack: of two requests by exact and upto with one nonce one is served', async () => {
    shop.upstream.script = answering(usage(7, 20))
    for (let round = 0; round < 3; round++) {
      const nonce = randomNonce()
      shop.upstream.requests.length = 0
      const credentials = [await exact(nonce, 2), await upto(nonce, 2)]
      const all = await Promise.all(credentials.map((credential) => shop.pay(credential)))
      expect(all.filter(({ status }) => status === 200)).toHaveLength(1)
      expect(shop.upstream.requests).toHaveLength(1)
    }
  })
})

/** What the payer does while the upstream works. */
describe('a charge that fails by no doing of its payer', () => {
  const abi = parseAbi([
    'function setPaused(bool value)',
    'function setBlocked(address account, bool value)',
  ])
  const set = async (data: Hex) => {
    await execute(shop.chain(), [{ from: account(9).address, to: shop.asset(), data }])
  }
  const pause = (value: boolean) =>
    set(encodeFunctionData({ abi, functionName: 'setPaused', args: [value] }))
  const block = (holder: Address, value: boolean) =>
    set(encodeFunctionData({ abi, functionName: 'setBlocked', args: [holder, value] }))
  for (const [name, change, isBanned] of [
    ['a paused token', pause, false],
    ['a blocked payee', (value: boolean) => block(payee, value), false],
    ['a blocked payer', (value: boolean) => block(payer.address, value), true],
  ] as const)
    test(`${name} withholds an answer, and ${isBanned ? 'ends' : 'keeps'} upto for its payer`, async () => {
      const nextOne = await shop.sign({ signer: payer })
      shop.upstream.script = async (_, reply) => {
        await change(true)
        reply.send(200, usage(7, 20), json)
      }
      try {
        expect((await shop.buy({ signer: payer })).status).toBe(402)
      } finally {
        await change(false)
      }
      expect(shop.authorization().state).toBe('failed')
      shop.upstream.script = answering(usage(7, 20))
      expect((await shop.pay(nextOne)).status).toBe(isBanned ? 402 : 200)
      expect(shop.events('charge-failed')).toHaveLength(1)
    })

  /**
   * Sells to a payer that has money since the newest block but one. While the answer is made, the node in use
   * starts to answer calls about the payer from before, as often as `count`.
   */
  async function sellByStale(count: number) {
    const chain = shop.chain()
    payer = await shop.wallet(0n, 10_000_000n)
    const old = await chain.rpc('eth_blockNumber', [])
    await chain.rpc('anvil_mine', ['0x1'])
    await shop.setBalance(payer.address, 10_000_000n)
    await chain.rpc('anvil_mine', ['0x1'])
    const tap = shop.taps[base]
    if (tap === undefined) throw new Error('no tap')
    const word = payer.address.slice(2).toLowerCase()
    let left = count
    const credential = await shop.sign({ signer: payer })
    shop.upstream.script = (_, reply) => {
      tap.intercept = async (call) => {
        if (call.method !== 'eth_call' || !JSON.stringify(call).includes(word)) return undefined
        if (left-- <= 0) return undefined
        const params = call.params.toSpliced(1, 1, old)
        const init = { method: 'POST', headers: json, body: JSON.stringify({ ...call, params }) }
        return new Response(await (await fetch(chain.url, init)).text())
      }
      reply.send(200, usage(7, 20), json)
    }
    return { credential, response: await shop.pay(credential), stale: () => count - left }
  }

  test('attack: a node that answers three times from before the payer had money bans nobody', async () => {
    const { response, stale } = await sellByStale(3)
    expect([response.status, stale() >= 3]).toEqual([200, true])
    expect(shop.events('charge-failed')).toEqual([])
  })

  test('attack: a node that stays behind another one bans nobody, and the charge is settled later', async () => {
    const second = startTap(shop.chain().url)
    const withTwo = shop.config.networks.map((each) =>
      each.id === base ? { ...each, rpcUrls: [...each.rpcUrls, second.url] } : each,
    )
    await shop.restart({ ...shop.config, networks: withTwo })
    try {
      const { credential, response } = await sellByStale(1000)
      expect(response.status).toBe(503)
      expect(shop.authorization().state).toBe('metered')
      expect(shop.events('charge-failed')).toEqual([])
      shop.clear()
      shop.upstream.script = answering(usage(7, 20))
      expect((await shop.pay(credential)).status).toBe(200)
      expect((await shop.buy({ signer: payer })).status).toBe(200)
    } finally {
      await shop.restart(shop.config)
      second.stop()
    }
  })
})

const betrayals: readonly (readonly [string, () => Promise<unknown>, () => Promise<unknown>])[] = [
  [
    'moves its balance',
    () => shop.setBalance(payer.address, 100n),
    () => shop.setBalance(payer.address, 10_000_000n),
  ],
  [
    'lowers its allowance',
    () => shop.setAllowance(payer.address, 100n),
    () => shop.setAllowance(payer.address, 10_000_000n),
  ],
]

describe('a payer that', () => {
  for (const [name, betray, repent] of betrayals)
    test(`attack: a payer that ${name} before a whole answer gets none, and no upto for a day`, async () => {
      const credential = await shop.sign({ signer: payer })
      const nextOne = await shop.sign({ signer: payer })
      shop.upstream.script = async (_, reply) => {
        await betray()
        reply.send(200, usage(7, 20), json)
      }
      const response = await shop.pay(credential)
      expect(response.status).toBe(402)
      expect(await response.text()).not.toContain('completion_tokens')
      expect(shop.authorization().state).toBe('failed')
      await repent()
      const held = await shop.tokensOf(payer.address)
      shop.upstream.script = answering(usage(7, 20))
      expect(errorOf(await shop.pay(credential))).toEqual([402, 'permit2_invalid_nonce'])
      expect(errorOf(await shop.pay(nextOne))).toEqual([402, 'unsupported_scheme'])
      await shop.restart()
      expect(errorOf(await shop.pay(credential))).toEqual([402, 'permit2_invalid_nonce'])
      expect(errorOf(await shop.pay(nextOne))).toEqual([402, 'unsupported_scheme'])
      expect(await shop.tokensOf(payer.address)).toBe(held)
      expect(moneyRows()).toEqual([])
      expect(shop.upstream.requests).toHaveLength(1)
    })

  test('a payer whose charge failed pays by exact, and by upto after a day', async () => {
    shop.upstream.script = async (_, reply) => {
      await shop.setBalance(payer.address, 100n)
      reply.send(200, usage(7, 20), json)
    }
    expect((await shop.buy({ signer: payer })).status).toBe(402)
    await shop.setBalance(payer.address, 10_000_000n)
    shop.upstream.script = answering(usage(7, 20))
    expect(errorOf(await shop.buy({ signer: payer }))).toEqual([402, 'unsupported_scheme'])
    const { required } = await ask(shop.chat(), posting)
    const terms = { network: base, method: 'eip3009' } as const
    const payment = await payX402(required, payer, terms)
    expect((await shop.pay({ 'payment-signature': payment })).status).toBe(200)
    const at = shop.now()
    shop.advance(day - 60_000)
    const later = () => BigInt(Math.floor(shop.now() / 1000) + 300)
    const early = await shop.buy({ signer: payer, deadline: later() })
    expect(errorOf(early)).toEqual([402, 'unsupported_scheme'])
    shop.advance(at + day + 60_000 - shop.now())
    const response = await shop.buy({ signer: payer, deadline: later() })
    // The chain keeps its clock, on which this is valid for longer.
    expect(response.status).toBe(200)
    shop.advance(-2 * day)
    shop.advance(at - shop.now())
  })

  test('attack: a payer that drains its wallet during a stream is banned, until it is charged when it has money again', async () => {
    const credential = await shop.sign({ signer: payer })
    const replied = shop.nextReply()
    const bought = shop.pay(credential)
    const upstream = await replied
    upstream.head(200, events)
    upstream.chunk(event(usage(7, 20)))
    const read = readerOf(await bought)
    await read()
    await shop.setBalance(payer.address, 100n)
    upstream.end()
    expect(await read()).toBe('')
    await until('its charge has failed', () => shop.events('charge-failed').length > 0)
    expect(shop.authorization()).toMatchObject({ state: 'metered', is_delivered: 1 })
    expect(errorOf(await shop.buy({ signer: payer }))).toEqual([402, 'unsupported_scheme'])
    await shop.restart()
    expect(shop.authorization().state).toBe('metered')
    await shop.setBalance(payer.address, 10_000_000n)
    // The next sweep settles it: a start is one.
    await shop.restart()
    await shop.settles()
    expect(await shop.tokensOf(payer.address)).toBe(10_000_000n - BigInt(costOf(7, 20)))
    expect(shop.payment()).toMatchObject({ delivery: 'delivered', attempts: 1 })
    expect(errorOf(await shop.pay(credential))).toEqual([402, 'permit2_invalid_nonce'])
    expect(shop.upstream.requests).toHaveLength(1)
    shop.upstream.script = answering(usage(7, 20))
    expect((await shop.buy({ signer: payer })).status).toBe(200)
  })

  test('a charge of a payer without money until the deadline is given up then', async () => {
    const replied = shop.nextReply()
    const bought = shop.buy({ signer: payer })
    const upstream = await replied
    upstream.head(200, events)
    upstream.chunk(event(usage(7, 20)))
    const read = readerOf(await bought)
    await read()
    await shop.setBalance(payer.address, 100n)
    upstream.end()
    await until('its charge has failed', () => shop.events('charge-failed').length > 0)
    const over = Number(shop.authorization().valid_before) + 1
    await shop.chain().rpc('evm_setNextBlockTimestamp', [over])
    await shop.chain().rpc('anvil_mine', ['0x1'])
    shop.advance(over * 1000 + 1000 - shop.now())
    await shop.restart()
    expect(shop.authorization()).toMatchObject({ state: 'failed', is_delivered: 1 })
    expect(shop.events('charge-lost')).toHaveLength(1)
    await shop.setBalance(payer.address, 10_000_000n)
    await shop.restart()
    expect(shop.authorization().state).toBe('failed')
    expect(moneyRows()).toEqual([])
  })
})

describe('a node that is away at the settlement', () => {
  const away = (_: unknown, reply: Reply) => {
    const tap = shop.taps[base]
    if (tap) tap.intercept = nodeAway
    reply.send(200, usage(7, 20), json)
  }

  test('a node that is away is not the payer`s fault: the same credential gets the answer later, once', async () => {
    const deadline = BigInt(Math.floor(shop.now() / 1000) + 300)
    const credential = await shop.sign({ signer: payer, deadline })
    shop.upstream.script = away
    const response = await shop.pay(credential)
    expect([response.status, response.headers.has('retry-after')]).toEqual([503, true])
    expect(await response.text()).not.toContain('completion_tokens')
    expect(shop.authorization()).toMatchObject({ state: 'metered', failed_at: null })
    const before = await shop.paid()
    const tap = shop.taps[base]
    if (tap) tap.intercept = undefined
    shop.upstream.script = answering(usage(8, 30))
    let again = await shop.pay(credential)
    await until('it is settled', async () => {
      if (again.status === 503 || again.status === 409) again = await shop.pay(credential)
      return again.status !== 503 && again.status !== 409
    })
    expect([again.status, await again.text()]).toEqual([200, usage(7, 20)])
    expect(settlementOf(again)).toMatchObject({ amount: String(costOf(7, 20)) })
    expect(await shop.paid()).toBe(before + BigInt(costOf(7, 20)))
    await untilEnded(shop)
    expect(errorOf(await untilFree(() => shop.pay(credential)))).toEqual([
      402,
      'permit2_invalid_nonce',
    ])
    expect((await shop.buy({ signer: payer, deadline })).status).toBe(200)
  })
})

describe('a stop while a stream runs', () => {
  const stopping = (stopSeconds: number) => ({
    ...shop.config,
    service: { ...shop.config.service, stopSeconds },
  })
  /** A stream whose buyer has its first chunk. */
  async function opened() {
    const replied = shop.nextReply()
    const deadline = BigInt(Math.floor(shop.now() / 1000) + 300)
    const bought = shop.buy({ signer: payer, deadline })
    const upstream = await replied
    upstream.head(200, events)
    upstream.chunk(event('{"n":1}'))
    const read = readerOf(await bought)
    await read()
    return { upstream, read }
  }

  test('a stop after its time limit cuts a stream, and nothing is charged', async () => {
    await shop.restart(stopping(0.1))
    const { upstream, read } = await opened()
    await shop.restart(shop.config)
    expect(await read()).toBe('broken')
    upstream.chunk(event(usage(7, 20)))
    upstream.end()
    await shop.becomes('void')
    expect(moneyRows()).toEqual([])
    expect(await shop.tokensOf(payer.address)).toBe(10_000_000n)
  })

  test('a stop waits for the end of a stream, which is settled at the next start at the latest', async () => {
    await shop.restart(stopping(30))
    const { upstream, read } = await opened()
    const restarted = shop.restart(shop.config)
    await until('it stops', async () => {
      const ready = await fetch(`${shop.url}/readyz`).catch(() => undefined)
      return ready?.status !== 200
    })
    upstream.chunk(event(usage(7, 20)))
    upstream.end()
    await until('it has ended', async () => (await read()) === '')
    await restarted
    await shop.settles()
    expect(await shop.tokensOf(payer.address)).toBe(10_000_000n - BigInt(costOf(7, 20)))
  })
})
