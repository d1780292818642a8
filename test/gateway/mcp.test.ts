import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js'
import { type CallToolResult, McpError } from '@modelcontextprotocol/sdk/types.js'
import { assets, charge } from 'mppx/evm/client'
import { McpClient } from 'mppx/mcp/client'
import { account } from '../../src/demo/accounts'
import { balanceOf } from '../../src/demo/chains'
import * as Payment from '../../src/gateway/mcp/Payment'
import type * as Json from '../../src/protocol/Json'
import type { Id } from '../../src/protocol/Network'
import { isFault } from '../../src/protocol/Problem'
import * as Receipt from '../../src/protocol/Receipt'
import { payX402, type Required } from '../harness/buyer'
import { type TestWorld, testWorld } from '../harness/world'

let world: TestWorld
const open: Client[] = []
beforeAll(async () => {
  world = await testWorld()
})
afterAll(async () => {
  for (const client of open) await client.close()
  await world?.stop()
})

/** The declaration of a client of draft-payment-transport-mcp-00. */
const mpp = { experimental: { payment: { methods: { evm: { intents: ['charge'] } } } } }

/** A client of the SDK that pays for nothing, and declares nothing by default. */
async function connect(capabilities: Record<string, unknown> = {}): Promise<Client> {
  const client = new Client({ name: 'test', version: '1' }, { capabilities })
  const transport = new StreamableHTTPClientTransport(new URL(`${world.url}/mcp`))
  // The SDK declares its optional members without undefined.
  await client.connect(transport as Parameters<Client['connect']>[0])
  open.push(client)
  return client
}

/** The same client, paying with mppx on one network. */
async function connectMppx(network: Id, { index = 1, capabilities = {} } = {}) {
  const client = await connect(capabilities)
  const method = charge({
    account: account(index).local(),
    maxAtomicAmount: '2000000',
    currencies: world.config.networks.map(({ id, asset }) =>
      assets.define({
        address: asset.address,
        decimals: asset.decimals,
        network: id,
        transfer: { type: 'eip3009', ...asset.eip712 },
      }),
    ),
  })
  const chainId = Number(network.slice('eip155:'.length))
  return McpClient.wrap(client, {
    methods: [method],
    orderChallenges: (candidates) =>
      candidates.filter(({ challenge }) => {
        const { methodDetails } = challenge.request as { methodDetails?: { chainId?: number } }
        return methodDetails?.chainId === chainId
      }),
  })
}

const forecast = { latitude: 52.52, longitude: 13.41, current: 'temperature_2m' }

/** The error of an unpaid or refused call. */
async function refusal(client: Client, params: Parameters<Client['callTool']>[0]) {
  const error = await client.callTool(params).then(
    () => undefined,
    (reason: unknown) => reason,
  )
  if (!(error instanceof McpError)) throw new Error(`no error but ${error}`)
  return { code: error.code, data: error.data as Refused }
}

type Refused = {
  httpStatus: number
  challenges: Record<string, unknown>[]
  problem: Record<string, unknown>
  x402: Required
  failure: Record<string, unknown>
  detail: string
}

const textOf = (result: unknown, index = 0): string => {
  const { content } = result as CallToolResult
  const entry = content[index]
  return entry?.type === 'text' ? entry.text : ''
}

async function paid(network: Id): Promise<bigint> {
  const chain = world.chains[network]
  const asset = world.config.networks.find(({ id }) => id === network)?.asset
  if (chain === undefined || asset === undefined) throw new Error(`no ${network}`)
  return balanceOf(chain, asset.address, world.config.service.payout)
}

describe('the tools', () => {
  test('there is one tool for every route, with names and inputs that clients accept', async () => {
    const client = await connect()
    const { tools } = await client.listTools()
    const { paths } = (await (await fetch(`${world.url}/openapi.json`)).json()) as {
      paths: Record<string, Record<string, { operationId: string }>>
    }
    const ids = new Set(
      Object.values(paths).flatMap((path) => Object.values(path).map((o) => o.operationId)),
    )
    const routes = world.config.merchants.flatMap(({ routes }) => routes)
    expect(tools.length).toBeGreaterThan(35)
    expect(tools.length).toBeLessThanOrEqual(routes.length)
    for (const { name, inputSchema, description, annotations } of tools) {
      expect(ids.has(name), name).toBe(true)
      expect(name).toMatch(/^[A-Za-z0-9_-]{1,64}$/)
      expect(description).toMatch(
        name === 'assistant-chat'
          ? /Up to 0\.050000 USD per request: .* Paid in /
          : /Costs \d+\.\d{6} USD per call, paid in /,
      )
      expect(annotations).toMatchObject({ readOnlyHint: false, openWorldHint: true })
      const { properties = {}, required = [] } = inputSchema
      for (const key of Object.keys(properties)) expect(key).toMatch(/^[A-Za-z0-9_-]{1,64}$/)
      for (const key of required) expect(Object.keys(properties)).toContain(key)
    }
    const list = tools.find(({ name }) => name === 'words-related')
    expect(list?.description).toContain('Answers with a JSON array.')
    const chat = tools.find(({ name }) => name === 'assistant-chat')
    expect(chat?.inputSchema.required).toEqual(['body'])
    const tool = tools.find(({ name }) => name === 'weather-forecast')
    expect(tool?.inputSchema).toMatchObject({
      type: 'object',
      properties: { latitude: { type: ['number', 'array'], minimum: -90 } },
      required: ['latitude', 'longitude'],
      additionalProperties: false,
    })
  })

  test('the server has a title and instructions for payments', async () => {
    const client = await connect()
    expect(client.getServerVersion()).toMatchObject({ name: 'turnpike', title: 'Turnpike' })
    expect(client.getServerCapabilities()?.experimental).toEqual({
      payment: { methods: { evm: { intents: ['charge'] } } },
    })
    expect(client.getInstructions()).toContain('org.paymentauth/credential')
  })
})

describe('an unpaid call', () => {
  test('an unpaid call of a client that speaks MPP is error -32042, with the x402 offers too', async () => {
    const { code, data } = await refusal(await connect(mpp), {
      name: 'weather-forecast',
      arguments: forecast,
    })
    expect(code).toBe(-32042)
    expect(data.httpStatus).toBe(402)
    expect(data.challenges.map(({ method, intent }) => [method, intent])).toEqual([
      ['evm', 'charge'],
      ['evm', 'charge'],
    ])
    expect(data.challenges[0]).toMatchObject({
      realm: 'localhost',
      request: { amount: '5000', methodDetails: { chainId: 8453 } },
      expires: expect.any(String),
      description: 'Weather forecast for a place',
    })
    expect(data.problem).toMatchObject({ status: 402, code: 'payment-required' })
    expect(data.x402).toMatchObject({ x402Version: 2, error: 'Payment required' })
    expect(data.x402.resource.url).toBe(
      'http://localhost/m/weather/forecast?latitude=52.52&longitude=13.41&current=temperature_2m',
    )
  })

  test('an unpaid call of any other client is the tool result of the x402 transport', async () => {
    const client = await connect()
    const result = await client.callTool({ name: 'weather-forecast', arguments: forecast })
    expect(result.isError).toBe(true)
    expect(result.structuredContent).toMatchObject({
      x402Version: 2,
      error: 'Payment required',
      accepts: expect.any(Array),
    })
    expect(result.content).toHaveLength(1)
    expect(JSON.parse(textOf(result))).toEqual(result.structuredContent)
    const data = result._meta?.['org.paymentauth/payment-required'] as Refused
    expect(data.httpStatus).toBe(402)
    expect(data.challenges).toHaveLength(2)
  })

  test('inputs that cannot be served are named before a payment', async () => {
    const client = await connect(mpp)
    const { data } = await refusal(client, {
      name: 'weather-forecast',
      arguments: { latitude: 100 },
    })
    const faults = data.problem.invalidParams as { name: string }[]
    expect(faults.map(({ name }) => name)).toEqual(['latitude', 'longitude'])
  })

  test('error: invalid arguments are a result that the model can read', async () => {
    const client = await connect()
    const call = (name: string, args: Record<string, unknown>) =>
      client.callTool({ name, arguments: args })
    for (const [name, args, said] of [
      ['weather-forecast', { latitud: 1 }, '"latitud"'],
      ['wiki-summary', {}, 'title is missing'],
      ['wiki-summary', { title: '..' }, 'title cannot be part of a path'],
      ['wiki-summary', { title: '\ud800' }, 'not valid Unicode'],
      ['weather-forecast', { latitude: {} }, 'must be a string'],
      ['fx-currencies', { params: 'x' }, 'params must be an object'],
    ] as const) {
      const result = await call(name, args)
      expect(result.isError, name).toBe(true)
      expect(textOf(result)).toContain(said)
    }
    const climbing = await call('wiki-summary', { title: '%2e%2e/x' })
    expect(climbing.structuredContent).toMatchObject({ status: 400, code: 'invalid-path' })
    expect(await refusal(client, { name: 'no-such-tool' })).toMatchObject({ code: -32602 })
  })
})

describe('mppx', () => {
  for (const [network, capabilities] of [
    ['eip155:8453', {}],
    ['eip155:4663', {}],
    ['eip155:8453', mpp],
  ] as const)
    test(`the MCP client of mppx buys on ${network}, with a signed receipt, ${capabilities === mpp ? '' : 'un'}declared`, async () => {
      const client = await connectMppx(network, { capabilities })
      const before = await paid(network)
      const result = await client.callTool({ name: 'weather-forecast', arguments: forecast })
      expect(result.isError).toBeFalsy()
      expect(JSON.parse(textOf(result)).current.temperature_2m).toBeNumber()
      expect((await paid(network)) - before).toBe(5000n)
      expect(result.receipt).toMatchObject({ status: 'success', method: 'evm' })
      expect(result.receipt?.challengeId).toBeString()
      const signed = Receipt.parse(JSON.stringify(result.receipt))
      if (isFault(signed)) throw new Error(signed.detail)
      expect(Receipt.verify(signed)).toBe(world.app.receiptAddress)
    })

  test('mppx buys with a body, a tail and a bracketed name', async () => {
    const client = await connectMppx('eip155:8453', { index: 2 })
    const messages = [{ role: 'user', content: 'What does a turnpike do?' }]
    const chat = await client.callTool({
      name: 'assistant-chat',
      arguments: { body: { model: 'assistant-fast', messages } },
    })
    expect(JSON.parse(textOf(chat)).choices[0].message.role).toBe('assistant')
    const asked = () => world.upstreams.requests.at(-1)?.target
    await client.callTool({ name: 'wiki-summary', arguments: { title: 'AC/DC' } })
    expect(asked()).toBe('/api/rest_v1/page/summary/AC%2FDC')
    const page = { page_size: 2, sort: '-record_date' }
    const debt = await client.callTool({ name: 'us-treasury-debt', arguments: page })
    expect(decodeURIComponent(asked() ?? '')).toContain('page[size]=2')
    expect(JSON.parse(textOf(debt)).data).toBeArray()
  })
})

describe('x402', () => {
  const x402 = { network: 'eip155:4663', method: 'permit2' } as const
  const pay = async (required: Required, buyer = 1) =>
    JSON.parse(atob(await payX402(required, account(buyer).local(), x402)))

  test('each offer has a salt to echo, and the order of members does not matter', async () => {
    const client = await connect()
    const call = { name: 'fx-latest', arguments: { base: 'USD' } }
    const ask = async () => (await client.callTool(call)).structuredContent as Required
    const asked = [await ask(), await ask()] as const
    const salts = asked.map(({ extensions }) => extensions.mppx?.info.salt)
    for (const salt of salts) expect(salt).toMatch(/^[\w-]{15}$/)
    expect(salts[0]).not.toBe(salts[1])
    const payment = await pay(asked[0])
    const reversed = Object.fromEntries(Object.entries(payment).reverse())
    const headersOf = (value: unknown) =>
      Payment.fromMeta({ [Payment.x402PaymentKey]: value as Json.Json }).headers
    expect(headersOf(reversed)).toEqual(headersOf(payment))
    expect(headersOf({ ...payment, extensions: {} })).not.toEqual(headersOf(payment))
  })

  test('a payment in _meta buys once; the settlement is in _meta of the result', async () => {
    const client = await connect()
    const call = { name: 'fx-latest', arguments: { base: 'USD' } }
    const offer = (await client.callTool(call)).structuredContent as Required
    const before = await paid('eip155:4663')
    const _meta = { 'x402/payment': await pay(offer) }
    const result = await client.callTool({ ...call, _meta })
    expect(JSON.parse(textOf(result)).base).toBe('USD')
    expect(result._meta?.['x402/payment-response']).toMatchObject({
      success: true,
      network: 'eip155:4663',
      payer: account(1).address,
    })
    expect(result._meta).not.toHaveProperty('org.paymentauth/receipt')
    // The same payment again is refused in the form of its transport, with a fresh offer.
    const again = await client.callTool({ ...call, _meta })
    expect(again.isError).toBe(true)
    expect(again.structuredContent).toMatchObject({
      x402Version: 2,
      error: 'permit2_invalid_nonce',
      accepts: offer.accepts,
    })
    expect(again._meta?.['x402/payment-response']).toMatchObject({ success: false })
    expect((await paid('eip155:4663')) - before).toBe(5000n)
  })

  test('error: a spent payment pays neither for another tool nor for other arguments', async () => {
    const client = await connect()
    const first = await client.callTool({ name: 'fx-latest', arguments: { base: 'USD' } })
    const payment = await pay(first.structuredContent as Required)
    const _meta = { 'x402/payment': payment }
    const bought = await client.callTool({
      name: 'fx-latest',
      arguments: { base: 'USD' },
      _meta,
    })
    expect(bought.isError).toBeFalsy()
    for (const [name, args] of [
      ['fx-latest', { base: 'EUR' }],
      ['fx-currencies', {}],
    ] as const) {
      const refused = await client.callTool({ name, arguments: args, _meta })
      expect(refused.isError).toBe(true)
      expect(refused.structuredContent).toMatchObject({ error: 'permit2_invalid_nonce' })
    }
  })

  test('error: an invalid payment is a problem, with a failed settlement', async () => {
    const client = await connect()
    const call = { name: 'fx-latest', _meta: { 'x402/payment': { x402Version: 2 } } }
    const refused = await client.callTool(call)
    expect(refused.isError).toBe(true)
    expect(refused.structuredContent).toMatchObject({ code: 'malformed-payment-signature' })
    expect(refused._meta?.['x402/payment-response']).toMatchObject({ success: false })
    const text = { name: 'fx-latest', _meta: { 'x402/payment': 'text' } }
    expect((await refusal(client, text)).code).toBe(-32602)
  })

  test('an idempotency key in _meta gets the same answer again, for one payment', async () => {
    const client = await connect()
    const call = { name: 'words-related', arguments: { ml: 'road' } }
    const offer = (await client.callTool(call)).structuredContent as Required
    const _meta = { 'x402/payment': await pay(offer, 2), 'turnpike/idempotency-key': 'mcp-key-1' }
    const before = await paid('eip155:4663')
    const first = await client.callTool({ ...call, _meta })
    const again = await client.callTool({ ...call, _meta })
    expect(first.isError).toBeFalsy()
    expect(textOf(again)).toBe(textOf(first))
    expect(again._meta?.['turnpike/idempotency-replayed']).toBe(true)
    expect((await paid('eip155:4663')) - before).toBe(5000n)
  })
})

describe('a credential that is wrong', () => {
  test("a refusal has the form of the credential's protocol, whatever the client declared", async () => {
    const call = { name: 'fx-latest', arguments: {} }
    const declared = await connect(mpp)
    const { data } = await refusal(declared, call)
    const accepted = data.x402.accepts[0]
    const payment = { x402Version: 2, accepted, payload: { authorization, signature } }
    const refused = await declared.callTool({ ...call, _meta: { 'x402/payment': payment } })
    expect(refused.isError).toBe(true)
    const [challenge] = data.challenges
    const credential = { challenge: { ...challenge, id: 'forged' }, payload: authorization }
    const other = await refusal(await connect(), {
      ...call,
      _meta: { 'org.paymentauth/credential': credential },
    })
    expect(other.code).toBe(-32043)
  })

  test('error: a malformed credential is -32602, a refused one -32043 with fresh challenges', async () => {
    const client = await connect(mpp)
    const call = { name: 'fx-latest', arguments: {} }
    const { data } = await refusal(client, call)
    const [challenge] = data.challenges
    const meta = (credential: unknown) => ({ _meta: { 'org.paymentauth/credential': credential } })
    for (const credential of ['text', {}, { challenge, payload: {} }, { challenge: 1 }])
      expect(await refusal(client, { ...call, ...meta(credential) })).toMatchObject({
        code: -32602,
        data: { detail: expect.any(String) },
      })
    const forged = { challenge: { ...challenge, id: 'forged' }, payload: authorization }
    const refused = await refusal(client, { ...call, ...meta(forged) })
    expect(refused.code).toBe(-32043)
    expect(refused.data.challenges).toHaveLength(2)
    expect(refused.data.failure.reason).toBeString()
    // A challenge that was issued for another tool.
    const other = await refusal(client, { name: 'fx-currencies' })
    const mismatched = { challenge: other.data.challenges[0], payload: authorization }
    expect((await refusal(client, { ...call, ...meta(mismatched) })).code).toBe(-32043)
    const both = { ...meta({ challenge, payload: authorization })._meta, 'x402/payment': {} }
    const result = await client.callTool({ ...call, _meta: both })
    expect(result.structuredContent).toMatchObject({ code: 'multiple-credentials' })
  })

  const signature = `0x${'22'.repeat(65)}`
  const authorization = {
    type: 'authorization',
    from: account(1).address,
    to: account(7).address,
    value: '5000',
    validAfter: '0',
    validBefore: '99999999999',
    nonce: `0x${'11'.repeat(32)}`,
    signature,
  }
})
