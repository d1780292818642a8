import { describe, expect, test } from 'bun:test'
import { validate } from 'mppx/discovery'
import * as Discovery from '../../src/gateway/documents/discovery'
import { createDocuments } from '../../src/gateway/documents/documents'
import { createMcp } from '../../src/gateway/mcp/endpoint'
import { createBudget } from '../../src/http/body'
import { createRateLimit } from '../../src/http/rate-limit'
import { silent } from '../../src/log'
import * as Entitlements from '../../src/paywall/entitlement/Entitlements'
import { dayMs, hourMs, inWords, toIso } from '../../src/protocol/Time'
import { config, merchant, route } from '../harness/merchants'

/** What documents and MCP tools say of trials, passes and answers again. */

const forecast = route('/forecast', {
  again: { forMs: dayMs, max: 5 },
  trial: {
    ...{ requests: 3, per: 'wallet', totalPerDay: 500 },
    ...{ minBalanceAtomic: undefined, minBalanceAgeBlocks: undefined },
  },
  pass: { priceAtomic: 1_000_000n, periodMs: dayMs, requests: 500 },
})
const pass = route('/forecast/pass', {
  ...{ priceAtomic: 1_000_000n, summary: 'Pass: 500 requests', passOf: '/forecast' },
  tail: 'none',
})
const base = config([
  merchant('weather', {
    networks: ['eip155:8453'],
    routes: [forecast, route('/history'), pass],
  }),
])
const options = {
  receiptAddress: '0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266',
  isReady: () => true,
  facilitators: () => [],
  updatedAt: 0,
} as const

const given = {
  signIn: 'SIGN-IN-WITH-X',
  again: { period: 'PT24H', requests: 5 },
  trial: {
    ...{ requests: 3, per: 'wallet', requestsPerDay: 500 },
    minBalances: [
      {
        network: 'eip155:8453',
        currency: '0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913',
        ...{ amount: '100000', blocks: 50 },
      },
    ],
  },
  pass: {
    url: 'http://localhost:4020/m/weather/forecast/pass',
    price: { mode: 'fixed', currency: 'USD', amount: '1.000000' },
    ...{ period: 'PT24H', requests: 500 },
  },
}
const opens = {
  opens: 'http://localhost:4020/m/weather/forecast',
  ...{ period: 'PT24H', requests: 500 },
}
const lines = [
  'trial: 3 free requests for a wallet with 0.10 USDC, held for 50 blocks (500 a day for all wallets)',
  'pass: 1.00 USDC for 500 requests in 24 hours',
  'again: the same answer for 24 hours, up to 5 times',
]

describe('documents', () => {
  test('both forms of OpenAPI name the entitlements of a route, its header and those of the answer', () => {
    const [own] = base.merchants
    if (own === undefined) throw new Error('no merchant')
    const forms = [
      [Discovery.aggregate(base, options), '/m/weather'],
      [Discovery.merchant(base, own, options), ''],
    ] as const
    for (const [document, prefix] of forms) {
      expect(validate(document)).toEqual([])
      const paths = document.paths as Record<string, { get: Operation }>
      const { get: sold } = paths[`${prefix}/forecast`] ?? {}
      expect(sold).toMatchObject({
        'x-entitlements': given,
        responses: { 200: { headers: { 'Payment-Entitlement': {}, 'Payment-Redeem': {} } } },
      })
      expect(sold?.parameters).toContainEqual(
        expect.objectContaining({ name: 'SIGN-IN-WITH-X', in: 'header', required: false }),
      )
      expect(paths[`${prefix}/forecast/pass`]?.get).toMatchObject({ 'x-pass': opens })
      // A route without them says nothing more than before.
      expect(JSON.stringify(paths[`${prefix}/history`])).not.toMatch(/sign-in|entitlement|redeem/i)
    }
  })

  test('the list of resources and llms.txt say the same', async () => {
    const documents = createDocuments(base, options)
    const read = (of: 'resources' | 'llms') =>
      documents[of](new Request('http://localhost/document')).text()
    const { items } = JSON.parse(await read('resources')) as { items: { metadata: object }[] }
    expect(items.map(({ metadata }) => metadata)).toEqual([
      expect.objectContaining({ entitlements: given }),
      expect.not.objectContaining({ entitlements: expect.anything() }),
      expect.objectContaining({ pass: opens }),
    ])
    const llms = await read('llms')
    for (const line of lines) expect(llms).toContain(line)
    expect(llms).toContain('createSIWxClientHook')
    const plain = createDocuments(config([merchant('a', { routes: [route('/b')] })]), options)
    expect(await plain.llms(new Request('http://localhost/')).text()).not.toContain(
      'SIGN-IN-WITH-X',
    )
  })
})

type Operation = { parameters: object[]; responses: object }

describe('MCP', () => {
  const answer = (body: object) =>
    Response.json(body, { status: 402, headers: { 'content-type': 'application/problem+json' } })
  const required = { x402Version: 2, error: '', resource: {}, accepts: [], extensions: {} }
  const mcp = createMcp({
    config: base,
    gateway: { handle: async () => answer({ status: 402, code: 'payment-required', ...required }) },
    isReady: () => true,
    budget: createBudget(1_000_000),
    rateLimit: createRateLimit(),
    now: () => 0,
    log: silent,
  })
  async function ask(method: string, params: object = {}): Promise<Result> {
    const request = new Request('http://localhost/mcp', {
      method: 'POST',
      headers: {
        ...{ host: 'localhost', 'content-type': 'application/json' },
        accept: 'application/json, text/event-stream',
      },
      body: JSON.stringify({ jsonrpc: '2.0', id: 1, method, params }),
    })
    const { result } = (await (await mcp.handle(request, () => undefined)).json()) as {
      result: Result
    }
    return result
  }
  type Result = {
    tools: { name: string; description: string; _meta: object }[]
    content: { text: string }[]
    structuredContent: object
  }

  test('a tool says what a wallet has over HTTP, and a pass is a tool that says what it opens', async () => {
    const { tools } = await ask('tools/list')
    const [sold, history, bought] = tools
    expect(sold?.description).toContain(
      `Over HTTP, with the header SIGN-IN-WITH-X, a wallet may have it without a payment. ${lines.join('; ')}.`,
    )
    expect(sold?._meta).toMatchObject({ 'turnpike/x-entitlements': given })
    expect(history?.description).not.toContain('SIGN-IN')
    expect(bought?.name).toBe('weather-forecast-pass')
    expect(bought?.description).toContain(
      'Costs 1.000000 USD for 500 requests in 24 hours, paid in USDC on Base.',
    )
    expect(bought?._meta).toMatchObject({ 'turnpike/x-pass': opens })
  })

  test('an unpaid call has its offers first, then what a client over HTTP could do', async () => {
    const { content, structuredContent } = await ask('tools/call', { name: 'weather-forecast' })
    expect(JSON.parse(content[0]?.text ?? '')).toEqual(structuredContent)
    expect(content[1]?.text).toStartWith('Over HTTP, with the header SIGN-IN-WITH-X')
    const plain = await ask('tools/call', { name: 'weather-history' })
    expect(plain.content).toHaveLength(1)
  })
})

test('durations are written in their largest whole unit', () => {
  const of = [90 * 60_000, hourMs, dayMs, 2 * dayMs, 25 * hourMs]
  expect(of.map(inWords)).toEqual(['90 minutes', '1 hour', '24 hours', '2 days', '25 hours'])
  expect(of.map(toIso)).toEqual(['PT90M', 'PT1H', 'PT24H', 'P2D', 'PT25H'])
})

test('a trial names each coin with what it needs, by default what the sponsor of the network demands', () => {
  const [first, second] = base.networks
  const { trial } = forecast
  if (first === undefined || second === undefined || trial === undefined) throw new Error('none')
  const sponsor = {
    ...{ minBalanceAtomic: 2_000_000n, minBalanceAgeBlocks: 1, grantsPerDay: 1 },
    ...{ maxGrantWei: 1n, ethPriceUsd: 4000 },
  }
  const textOf = (fields: object, sponsored = first) =>
    Entitlements.linesOf({ ...pass, trial: { ...trial, ...fields } }, [sponsored, second])[0]?.[1]
  const many = ' (500 a day for all wallets)'
  expect(textOf({}, { ...first, sponsor })).toBe(
    `3 free requests for a wallet with 2.00 USDG or 0.10 USDC, held for 50 blocks${many}`,
  )
  expect(textOf({ requests: 1, minBalanceAtomic: 500_000n, minBalanceAgeBlocks: 0 })).toBe(
    `1 free request for a wallet with 0.50 USDG or 0.50 USDC${many}`,
  )
})
