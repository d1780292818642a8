import { describe, expect, test } from 'bun:test'
import { validate } from 'mppx/discovery'
import { parseConfig } from '../../src/config/merchants'
import * as Discovery from '../../src/gateway/documents/discovery'
import { wellKnown } from '../../src/gateway/documents/documents'
import { payout } from '../harness/config'
import { config, merchant, param, route } from '../harness/merchants'
import { mppx } from '../harness/mppx'

const receiptAddress = '0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266'
const options = { receiptAddress } as const
const hash = param('hash', { in: 'tail', required: true, example: '0xabc' })
const merchants = [
  merchant('weather', {
    title: 'Weather',
    routes: [
      route('/forecast', {
        params: [param('latitude', { required: true, schema: { type: 'number' }, example: 52.5 })],
      }),
    ],
  }),
  merchant('chainscan', {
    tag: 'Chain data',
    routes: [
      route('/tx', {
        priceAtomic: 10_000n,
        params: [
          hash,
          param('part', {
            in: 'tail',
            schema: { type: 'string', enum: ['logs', 'token-transfers'] },
          }),
        ],
      }),
      route('/address', { tail: 'required', params: [hash] }),
    ],
  }),
  merchant('world-data', {
    routes: [
      route('/indicator', {
        tail: 'required',
        params: [
          param('iso', { in: 'tail', required: true }),
          param('indicator', { in: 'tail', required: true, schema: { const: 'indicator' } }),
          param('code', { in: 'tail', required: true }),
        ],
      }),
      route('/country', { params: [param('iso', { in: 'tail', required: true })] }),
      route('/any', { tail: 'required' }),
      route('/unit', {
        tail: 'required',
        params: [param('unit', { in: 'tail', required: true, schema: { enum: ['c', 'f'] } })],
      }),
      route('/files', {
        tail: 'required',
        params: [param('{cik}.json', { in: 'tail', required: true })],
      }),
    ],
  }),
  merchant('assistant', {
    networks: ['eip155:8453'],
    routes: [route('/chat', { methods: ['POST', 'GET'], priceAtomic: 1_050_000n })],
  }),
  merchant('closed', { outOfService: 'KEY', routes: [route('/x')] }),
  merchant('chain-stocks', { builtin: 'chain-stocks', routes: [route('/quote')] }),
  merchant('catjoke', { builtin: 'catjoke', routes: [route('/joke', { methods: ['GET'] })] }),
]
const configuration = config(merchants)
type Operation = Record<string, unknown> & {
  operationId: string
  parameters: { name: string; in: string; required: boolean }[]
}
type Document = Record<string, unknown> & { paths: Record<string, Record<string, Operation>> }

/** The document as clients receive it. */
function read(document: object): Document {
  return JSON.parse(JSON.stringify(document))
}

function one(slug: string): Document {
  const found = merchants.find((candidate) => candidate.slug === slug)
  if (found === undefined) throw new Error(`no ${slug}`)
  return read(Discovery.merchant(configuration, found, { receiptAddress }))
}

const aggregate = read(Discovery.aggregate(configuration, options))

describe('the aggregated document', () => {
  test('an operation has the members of specification 2.1', () => {
    expect<unknown>(aggregate.paths['/m/weather/forecast']?.get).toEqual({
      operationId: 'weather-forecast',
      summary: 'Summary of /forecast',
      description: 'Description of /forecast',
      tags: ['Data'],
      parameters: [
        {
          name: 'latitude',
          in: 'query',
          required: true,
          schema: { type: 'number' },
          example: 52.5,
        },
        // Specification 4.1: it stands for arbitrary query parameters.
        {
          name: 'params',
          in: 'query',
          required: false,
          description: 'Any other query parameters, forwarded verbatim.',
          style: 'form',
          explode: true,
          schema: { type: 'object', additionalProperties: { type: 'string' } },
        },
      ],
      responses: {
        200: {
          description: 'The answer of the upstream, forwarded verbatim.',
          content: {
            'application/json': { schema: { type: 'object', additionalProperties: true } },
          },
        },
        402: { description: 'Payment Required' },
      },
      'x-payment-info': {
        price: { mode: 'fixed', currency: 'USD', amount: '0.005000' },
        protocols: [
          {
            mpp: {
              method: 'evm',
              intent: 'charge',
              currency: '0x5fc5360D0400a0Fd4f2af552ADD042D716F1d168',
            },
          },
          { x402: {} },
        ],
        amount: '5000',
        currency: '0x5fc5360D0400a0Fd4f2af552ADD042D716F1d168',
        network: 'eip155:4663',
        recipient: '0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC',
        scheme: 'exact',
        intent: 'charge',
        method: 'evm',
        extra: {
          assetTransferMethod: 'permit2',
          spender: '0x402085c248EeA27D92E8b30b2C58ed07f9E20001',
        },
      },
    })
  })

  test('answers, required bodies and parameters are described as in the file', () => {
    const items = { type: 'object' }
    const told = read(
      Discovery.aggregate(
        config([
          merchant('m', {
            routes: [
              route('/list', { answer: { type: 'array', items } }),
              route('/chat', { methods: ['GET', 'POST'], bodyRequired: true }),
              route('/key', {
                fixedQuery: { key: 'x' },
                params: [param('at', { schema: { type: ['number', 'array'] } })],
              }),
            ],
          }),
        ]),
        options,
      ),
    )
    expect(told.paths['/m/m/list']?.get?.responses).toMatchObject({
      200: { content: { 'application/json': { schema: { type: 'array', items } } } },
    })
    expect(told.paths['/m/m/chat']?.post?.requestBody).toMatchObject({ required: true })
    expect(told.paths['/m/m/chat']?.get).not.toHaveProperty('requestBody')
    const [at, others] = told.paths['/m/m/key']?.get?.parameters ?? []
    expect(at).toMatchObject({ name: 'at', style: 'form', explode: false })
    expect(JSON.stringify(others)).toContain('except those that the service sets itself')
  })

  test('the shipped file declares which answers are lists, which a number, which need a body', async () => {
    const text = await Bun.file(`${import.meta.dir}/../../merchants.toml`).text()
    const env = { PAYOUT: payout, ASSISTANT_KEY: 'key' }
    const shipped = parseConfig(text, { file: 'merchants.toml', env }).config
    if (shipped === undefined) throw new Error('the shipped file has faults')
    const { paths } = read(Discovery.aggregate(shipped, options))
    const typeOf = (path: string) =>
      Object(paths[path]?.get?.responses)[200].content['application/json'].schema.type
    expect(typeOf('/m/defi/tvl/{protocol_slug}')).toBe('number')
    for (const path of ['defi/protocols', 'defi/chains', 'words/related', 'world-data/country'])
      expect([path, typeOf(`/m/${path}`)]).toEqual([path, 'array'])
    expect(typeOf('/m/weather/forecast')).toEqual(['object', 'array'])
    expect(typeOf('/m/fx/latest')).toBe('object')
    expect(paths['/m/assistant/chat']?.post?.requestBody).toMatchObject({ required: true })
    expect(paths['/m/chain-stocks/quote']?.post?.requestBody).toMatchObject({ required: false })
  })

  test('title, version, guidance, base and contact are in it', () => {
    expect(aggregate.openapi).toBe('3.1.0')
    expect(aggregate.info).toEqual({
      title: 'Turnpike',
      version: '1.0.0',
      description: 'Each path is an independent paid endpoint.',
      contact: { email: 'ops@example.com' },
      'x-guidance': 'Each path is an independent paid endpoint.',
    })
    expect(aggregate.servers).toEqual([{ url: 'http://localhost:4020' }])
    expect(aggregate['x-service-info']).toMatchObject({ categories: ['data', 'chain-data'] })
  })

  test('every form of a path is listed once, with an id of its own', () => {
    const ids = Object.entries(aggregate.paths).flatMap(([path, operations]) =>
      Object.entries(operations).map(
        ([method, { operationId }]) => `${method} ${path} ${operationId}`,
      ),
    )
    expect(ids).toEqual([
      'get /m/weather/forecast weather-forecast',
      'get /m/chainscan/tx chainscan-tx',
      'get /m/chainscan/tx/{hash} chainscan-tx-hash',
      'get /m/chainscan/tx/{hash}/logs chainscan-tx-logs',
      'get /m/chainscan/tx/{hash}/token-transfers chainscan-tx-token-transfers',
      'get /m/chainscan/address/{hash} chainscan-address',
      'get /m/world-data/indicator/{iso}/indicator/{code} world-data-indicator',
      'get /m/world-data/country world-data-country',
      'get /m/world-data/country/{iso} world-data-country-iso',
      'get /m/world-data/any/{tail} world-data-any',
      'get /m/world-data/unit/{unit} world-data-unit',
      'get /m/world-data/files/{cik}.json world-data-files',
      'post /m/assistant/chat assistant-chat',
      'get /m/assistant/chat assistant-chat-get',
      'get /m/chain-stocks/quote chain-stocks-quote',
      'get /m/catjoke/joke catjoke-joke',
    ])
  })

  test('every name in a path is a required path parameter, and no other is', () => {
    for (const [path, operations] of Object.entries(aggregate.paths))
      for (const { parameters } of Object.values(operations)) {
        const inPath = parameters.filter((parameter) => parameter.in === 'path')
        const names = [...path.matchAll(/\{([^}]+)\}/g)].map(([, name]) => name ?? '')
        expect(inPath.map(({ name }) => name)).toEqual(names)
        expect(inPath.every(({ required }) => required)).toBe(true)
      }
  })

  test('a merchant without the discovery network shows its own', () => {
    expect(aggregate.paths['/m/assistant/chat']?.post?.['x-payment-info']).toMatchObject({
      network: 'eip155:8453',
      amount: '1050000',
      price: { amount: '1.050000' },
      extra: { assetTransferMethod: 'eip3009', name: 'USD Coin', version: '2' },
    })
  })

  test('routes that cannot be sold are not listed', () => {
    expect(JSON.stringify(aggregate)).not.toMatch(/closed/)
    const known = wellKnown(configuration, { receiptAddress })
    expect(known.resources).toContain('http://localhost:4020/m/weather/forecast')
    expect(JSON.stringify(known)).not.toMatch(/closed/)
  })
})

describe('the document of one merchant', () => {
  test('an offer for every network, in the order of the file', () => {
    const document = one('weather')
    expect(document.servers).toEqual([{ url: 'http://localhost:4020/m/weather' }])
    expect(document.paths['/forecast']?.get?.['x-payment-info']).toMatchObject({
      price: { mode: 'fixed', currency: 'USD', amount: '0.005000' },
      offers: [
        { network: 'eip155:4663', amount: '5000', extra: { assetTransferMethod: 'permit2' } },
        {
          network: 'eip155:8453',
          amount: '5000',
          currency: '0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913',
          recipient: '0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC',
          extra: { assetTransferMethod: 'eip3009' },
        },
      ],
    })
  })
})

describe('stock validators', () => {
  const documents = [
    ['aggregate', aggregate] as const,
    ...merchants.map(({ slug }) => [slug, one(slug)] as const),
  ]
  test.each(documents)('mppx accepts %s', (_, document) => {
    expect(validate(document)).toEqual([])
  })

  test('`mppx discover validate` accepts a served document', async () => {
    const server = Bun.serve({
      port: 0,
      hostname: '127.0.0.1',
      fetch: () => Response.json(aggregate),
    })
    const cli = Bun.spawn(
      [process.execPath, mppx, 'discover', 'validate', `${server.url}openapi.json`],
      { stdout: 'pipe', stderr: 'pipe' },
    )
    const output = (await cli.stdout.text()) + (await cli.stderr.text())
    await server.stop(true)
    expect(output).toContain('Discovery document is valid')
    expect(await cli.exited).toBe(0)
  })
})
