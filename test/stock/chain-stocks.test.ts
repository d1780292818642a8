import { afterAll, describe, expect, test } from 'bun:test'
import { account } from '../../src/demo/accounts'
import { balanceOf } from '../../src/demo/chains'
import { createExplorer, createIssuer } from '../../src/stock/public-sources'
import * as Example from '../../src/web/public/Example'
import { ask, payMpp, payX402 } from '../harness/buyer'
import { pause, setMultiplier } from '../harness/exchange'
import { misfitsOf } from '../harness/shape'
import { testWorld } from '../harness/world'

// The four routes of chain-stocks, bought in every form, on the real contracts of Uniswap.

let clock = Date.now()
const world = await testWorld({ exchange: true, now: () => clock })
afterAll(() => world.stop())
const { stock } = world.config
const chain = world.chains['eip155:4663']
const base = world.chains['eip155:8453']
const usdc = world.config.networks.find(({ id }) => id === 'eip155:8453')?.asset.address
if (!stock || !chain || !base || !usdc) throw new Error('the shipped file has no stocks')
const [nvda, spcx] = stock.tokens
if (!nvda || !spcx) throw new Error('no tokens')
const buyer = account(1).local()

type Body = Record<string, unknown>

/** Buys with USDC on Base, so that faults of the stocks' chain do not stop the payment. */
async function buy(path: string, init: RequestInit = {}, from = world) {
  const url = `${from.url}/m/chain-stocks/${path}`
  const { challenges } = await ask(url, init)
  const challenge = challenges.find(({ request }) => request.methodDetails.chainId === 8453)
  if (challenge === undefined) throw new Error('no challenge')
  const authorization = await payMpp(challenge, buyer)
  const headers = { ...init.headers, authorization }
  return { response: await fetch(url, { ...init, headers }), headers, url }
}

async function bought(path: string, init: RequestInit = {}, from = world): Promise<Body> {
  const { response } = await buy(path, init, from)
  expect([path, response.status]).toEqual([path, 200])
  expect(response.headers.get('payment-receipt')).not.toBeNull()
  expect(response.headers.get('content-type')).toBe('application/json')
  const body = (await response.json()) as Body
  expect(misfitsOf(exampleOf(path), body)).toEqual([])
  return body
}

/** What the page of the merchant shows as the answer of a route. */
function exampleOf(path: string): unknown {
  const { routes = [] } = world.config.merchants.find(({ slug }) => slug === 'chain-stocks') ?? {}
  const route = routes.find((each) => each.path === `/${path.split('?')[0]}`)
  return route && JSON.parse(Example.answerOf(route) ?? '"no example"')
}

const post = (body: unknown): RequestInit => ({
  method: 'POST',
  headers: { 'content-type': 'application/json' },
  body: JSON.stringify(body),
})

const aged = { updatedAt: expect.any(String), ageSeconds: expect.any(Number) }
const times = {
  blockNumber: expect.any(Number),
  ...aged,
  sources: { chain: aged, issuer: aged, explorer: aged },
}

describe('what is sold', () => {
  test('a quote, by symbol or address, with GET and POST', async () => {
    const forms: readonly (readonly [string, RequestInit?])[] = [
      ['quote?symbol=NVDA'],
      ['quote?symbol=nvda'],
      [`quote?address=${nvda.address}`],
      [`quote?symbol=NVDA&address=${nvda.address.toLowerCase()}`],
      ['quote?symbol=NVDA', { method: 'POST' }],
      ['quote', post({ symbol: 'NVDA' })],
      ['quote', post({ address: nvda.address })],
      ['quote', post({ symbol: 'NVDA', address: nvda.address })],
    ]
    for (const [path, init] of forms) {
      expect(await bought(path, init)).toEqual({
        symbol: 'NVDA',
        name: 'NVIDIA',
        address: nvda.address,
        network: 'eip155:4663',
        price: '186.493993',
        currency: 'USD',
        asset: 'USDG',
        pool: {
          address: nvda.pool,
          fee: 500,
          price: '186.400000',
          liquidity: expect.stringMatching(/^\d+$/),
        },
        feed: {
          address: nvda.feed,
          price: '186.400000',
          updatedAt: expect.any(String),
          stale: false,
          paused: false,
        },
        issuer: {
          bid: '186.3068',
          ask: '186.4932',
          currency: 'USD',
          dailyTradingVolume: expect.stringMatching(/^\d+$/),
          isTradingHalt: false,
          generatedAt: '2026-11-19T12:00:00Z',
        },
        marketCap: expect.stringMatching(/^\d+(\.\d+)?$/),
        volume24h: expect.stringMatching(/^\d+$/),
        holders: expect.any(Number),
        multiplier: '1.000000000000000000',
        halted: false,
        paused: false,
        status: 'open',
        ...times,
      })
    }
  })

  test('the contract of a token', async () => {
    for (const body of [
      await bought('token?symbol=SPCX'),
      await bought('token', post({ address: spcx.address })),
    ])
      expect(body).toEqual({
        symbol: 'SPCX',
        name: 'SpaceX',
        address: spcx.address,
        network: 'eip155:4663',
        decimals: 18,
        totalSupply: expect.stringMatching(/^\d+\.\d{18}$/),
        totalSupplyAtomic: expect.stringMatching(/^\d+$/),
        multiplier: '1.000000000000000000',
        halted: false,
        paused: false,
        holders: expect.any(Number),
        reputation: 'ok',
        explorer: `${world.upstreams.url}/token/${spcx.address}`,
        isin: expect.stringMatching(/^JE/),
        issuerStatus: 'ASSET_STATUS_ACTIVE',
        logoUrl: 'https://cdn.robinhood.com/spcx.png',
        factory: stock.factory,
        registry: stock.registry,
        ...times,
      })
  })

  test('the catalog of all tokens, with GET, POST, and an empty object', async () => {
    for (const init of [{}, { method: 'POST' }, post({})]) {
      const body = await bought('stocks', init)
      expect(body).toMatchObject({ network: 'eip155:4663', asset: 'USDG', count: 14, ...times })
      const stocks = body.stocks as Body[]
      expect(stocks.map(({ address }) => address)).toEqual(stock.tokens.map((it) => it.address))
      expect(Object.keys(stocks[0] ?? {})).toEqual([
        'symbol',
        'name',
        'address',
        'price',
        'marketCap',
        'volume24h',
        'holders',
        'status',
      ])
      expect(stocks.flatMap((entry) => Object.values(entry))).not.toContain(null)
    }
  })

  test('the report of all tokens, with any parameters', async () => {
    for (const [path, init] of [
      ['report?depth=full&x=1', {}],
      ['report', post({ any: { thing: [1] } })],
    ] as const) {
      const body = await bought(path, init)
      expect(body).toMatchObject({ count: 14, ...times })
      const stocks = body.stocks as Body[]
      const sum = stocks.reduce((total, { marketCap }) => total + Number(marketCap), 0)
      expect(body.totals).toEqual({
        marketCap: sum.toFixed(2),
        volume24h: expect.stringMatching(/^\d+\.\d\d$/),
      })
      expect(stocks[0]).toMatchObject({ symbol: 'NVDA', price: '186.493993', decimals: 18 })
    }
  })

  test('the answers show changes on the chain: a halt, a pause, a multiplier', async () => {
    await pause(chain, spcx, { token: true, oracle: true })
    await setMultiplier(chain, spcx, 2n * 10n ** 18n)
    // Answers are cached for a second.
    clock += 1_000
    const body = await bought('quote?symbol=SPCX')
    expect(body).toMatchObject({ halted: true, paused: true, status: 'halted' })
    expect(body).toMatchObject({ multiplier: '2.000000000000000000', price: '212.099999' })
    expect(body.feed).toMatchObject({ paused: true })
    await pause(chain, spcx, {})
    await setMultiplier(chain, spcx, 10n ** 18n)
  })

  test('x402 pays with the asset of the same chain', async () => {
    const url = `${world.url}/m/chain-stocks/quote?symbol=NVDA`
    const { required } = await ask(url)
    const terms = { network: 'eip155:4663', method: 'permit2' } as const
    const signature = await payX402(required, buyer, terms)
    const response = await fetch(url, { headers: { 'payment-signature': signature } })
    expect(response.status).toBe(200)
    expect(await response.json()).toMatchObject({ symbol: 'NVDA', status: 'open' })
  })
})

describe('before money moves', () => {
  const wrong: readonly (readonly [string, RequestInit, number, string])[] = [
    ['quote?symbol=HOOD', {}, 404, 'symbol'],
    ['token?symbol=NVDA.X', {}, 404, 'symbol'],
    [`quote?address=${account(1).address}`, {}, 404, 'address'],
    ['quote', post({ symbol: 'HOOD' }), 404, 'symbol'],
    [`quote?symbol=NVDA&address=${spcx.address}`, {}, 400, 'address'],
    ['quote?symbol=NVDA&address=0x12', {}, 400, 'address'],
    ['quote', {}, 400, 'symbol'],
    ['token?symbol=', {}, 400, 'symbol'],
    ['token', post({ symbol: 'NVDA', x: 1 }), 400, 'x'],
    ['token', post({ address: nvda.address, x: 1 }), 400, 'x'],
    ['token', post([]), 400, 'symbol'],
    ['stocks', post({ x: 1 }), 400, ''],
    ['report', post('text'), 400, ''],
  ]

  const namesOf = ({ invalidParams }: Body) =>
    (invalidParams as { name: string }[]).map(({ name }) => name)

  test('error: inputs that cannot be served are named in the 402, and nothing is charged', async () => {
    const before = await balanceOf(base, usdc, buyer.address)
    for (const [path, init, status, name] of wrong) {
      const asked = await ask(`${world.url}/m/chain-stocks/${path}`, init)
      expect([path, asked.response.status]).toEqual([path, 402])
      expect(namesOf(asked.body)).toContain(name)
      const { response } = await buy(path, init)
      const body = (await response.json()) as Body
      const code = status === 404 ? 'not-found' : 'invalid-parameter'
      expect([path, response.status, body.code]).toEqual([path, status, code])
      expect(namesOf(body)).toContain(name)
    }
    expect(await balanceOf(base, usdc, buyer.address)).toBe(before)
  })
})

describe('sources that fail', () => {
  test('without issuer and explorer their fields are null', async () => {
    const edit = (text: string) => text.replace(/^(issuer|explorer)_url = .*$/gm, '')
    const lone = await testWorld({ exchange: true, edit })
    try {
      const quote = await bought('quote?symbol=NVDA', {}, lone)
      expect(quote).toMatchObject({
        price: '186.493993',
        issuer: null,
        marketCap: null,
        volume24h: null,
        holders: null,
        sources: { chain: aged, issuer: null, explorer: null },
      })
      const nothing = { holders: null, reputation: null, explorer: null, isin: null }
      expect(await bought('token?symbol=NVDA', {}, lone)).toMatchObject(nothing)
      const { totals } = await bought('report', {}, lone)
      expect(totals).toEqual({ marketCap: null, volume24h: null })
      expect(lone.upstreams.requests).toEqual([])
    } finally {
      await lone.stop()
    }
  })

  test('error: a payment during an outage of the chain is redeemed later', async () => {
    let later = clock
    const late = await testWorld({ exchange: true, now: () => later })
    try {
      const other = late.chains['eip155:4663']
      const multicall = '0xcA11bde05977b3631167028862bE2a173976CA11'
      const code = await other?.rpc('eth_getCode', [multicall, 'latest'])
      await bought('quote?symbol=NVDA', {}, late)
      await other?.rpc('anvil_setCode', [multicall, '0x'])
      later += 61_000
      const { response, url } = await buy('quote?symbol=NVDA', {}, late)
      const failure = (await response.json()) as { code: string; redeem: { token: string } }
      expect([response.status, failure.code]).toEqual([502, 'upstream-unreachable'])
      await other?.rpc('anvil_setCode', [multicall, code])
      later += 1_000
      const headers = { 'payment-redeem': failure.redeem.token }
      const redeemed = await fetch(url, { headers })
      expect(redeemed.status).toBe(200)
      expect(await redeemed.json()).toMatchObject({ symbol: 'NVDA', ageSeconds: 0 })
    } finally {
      await late.stop()
    }
  })
})

test('error: tokens without contracts are not sold, once that is known', async () => {
  const bare = await testWorld()
  try {
    for (const path of ['quote?symbol=NVDA', 'token?symbol=NVDA', 'stocks', 'report', 'stocks'])
      expect([path, (await buy(path, {}, bare)).response.status]).toEqual([path, 502])
    const { response } = await ask(`${bare.url}/m/chain-stocks/stocks`)
    expect(response.status).toBe(503)
  } finally {
    await bare.stop()
  }
})

describe('the issuer and the explorer', () => {
  let reply: (path: string) => Response = () => new Response('nothing', { status: 500 })
  let asked = 0
  const server = Bun.serve({
    port: 0,
    hostname: '127.0.0.1',
    fetch(request) {
      asked++
      return reply(new URL(request.url).pathname)
    },
  })
  afterAll(() => server.stop(true))
  let time = 1_000_000
  const url = `http://127.0.0.1:${server.port}`
  const common = { url, userAgent: 'test', now: () => time, timeoutMs: 60_000 }
  const issuer = createIssuer({ ...common, chainId: 4663 })
  const explorer = createExplorer(common)
  const both = async () => [await issuer.quote(nvda), await explorer.token(nvda)]
  const row = (address: string, more: object) => ({
    deployments: [{ contractAddress: address, chainId: 4663 }],
    ...more,
  })

  test('error: an answer that is malformed, too long, for another contract, or a redirect is ignored', async () => {
    const replies: readonly ((path: string) => Response)[] = [
      () => new Response('', { status: 500 }),
      () => new Response('{"quotes":'),
      () => Response.json(null),
      () => Response.json({ quotes: 5, address_hash: 5 }),
      () => Response.json({ quotes: [null, row(spcx.address, { bid: '1' })], holders_count: '5' }),
      () => Response.redirect('http://127.0.0.1:1/', 302),
      () => new Response(`{"quotes":"${'x'.repeat(5_000_000)}"}`),
    ]
    for (reply of replies) {
      time += 60_000
      expect(await both()).toEqual([undefined, undefined])
    }
    // One that never ends.
    reply = () => new Response(new ReadableStream({ pull: () => new Promise(() => undefined) }))
    const hasty = { ...common, timeoutMs: 20 }
    expect(await createIssuer({ ...hasty, chainId: 4663 }).quote(nvda)).toBeUndefined()
    expect(await createExplorer(hasty).token(nvda)).toBeUndefined()
  })

  test('invalid members are null, the others are kept', async () => {
    const quote = {
      bid: 'NaN',
      ask: 5.25,
      currency: 7,
      dailyTradingVolume: '',
      isTradingHalt: 'no',
    }
    const counts = { holders_count: '-1', circulating_market_cap: '1e9', volume_24h: '12.5' }
    reply = (path) =>
      path.startsWith('/prices')
        ? Response.json({ quotes: [row(nvda.address.toLowerCase(), quote)] })
        : Response.json({ address_hash: nvda.address, ...counts })
    time += 60_000
    const nothing = { bid: null, currency: null, dailyTradingVolume: null, isTradingHalt: null }
    expect(await both()).toEqual([
      { ...nothing, ask: '5.25', generatedAt: null, at: time },
      { holders: null, marketCap: null, volume24h: '12.5', reputation: null, at: time },
    ])
  })

  test('an answer is cached, and used for ten minutes after a failure', async () => {
    const before = asked
    await both()
    expect(asked).toBe(before)
    reply = () => new Response('', { status: 503 })
    const at = time
    time += 300_000
    expect((await issuer.quote(nvda))?.at).toBe(at)
    expect((await explorer.token(nvda))?.at).toBe(at)
    expect(asked).toBe(before + 2)
    time += 301_000
    expect(await both()).toEqual([undefined, undefined])
  })

  test('a halt is read from the contract, without waiting for the issuer', async () => {
    reply = () => Response.json({ quotes: [row(nvda.address, { isTradingHalt: true })] })
    time += 60_000
    expect([await issuer.isHalted(nvda), await issuer.isHalted(spcx)]).toEqual([true, undefined])
    // Longer than this test may take.
    const slow = createIssuer({ ...common, chainId: 4663, timeoutMs: 600_000 })
    reply = () => new Response(new ReadableStream({ pull: () => new Promise(() => undefined) }))
    expect(await slow.isHalted(nvda)).toBeUndefined()
  })
})
