import { describe, expect, test } from 'bun:test'
import { validate } from 'mppx/discovery'
import type { NetworkConfig } from '../../src/config/Config'
import type * as Catalogue from '../../src/gateway/documents/Catalogue'
import * as Discovery from '../../src/gateway/documents/discovery'
import { createDocuments } from '../../src/gateway/documents/documents'
import { createTools } from '../../src/gateway/mcp/Tool'
import { dayMs, hourMs } from '../../src/protocol/Time'
import { config, merchant, route } from '../harness/merchants'

/** What documents and MCP tools say of payment channels. */

const base = 'eip155:8453'
const channels = {
  ...{ withdrawDelayMs: dayMs, minDepositAtomic: 500_000n, claimEveryMs: hourMs / 4 },
  ...{ claimAboveAtomic: 1_000_000n, unclaimedMaxAtomic: 50_000_000n },
}
const authorizer = '0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266'
const shop = config([
  merchant('weather', {
    routes: [
      route('/forecast'),
      route('/history', { schemes: ['exact'] }),
      route('/bulk', { schemes: ['channel'], priceAtomic: 2_000_000n }),
    ],
  }),
])
const sold = {
  ...shop,
  networks: shop.networks.map((network) =>
    network.id === base ? { ...network, channels } : network,
  ),
}
/** As the settlement gives them: of a network with channels whose chain has the contracts. */
const channelOf: Catalogue.Schemes['channelOf'] = ({ network }) =>
  (network as NetworkConfig).channels && {
    ...{ receiverAuthorizer: authorizer, withdrawDelay: 86_400 },
    ...{ minDepositAtomic: 500_000n, method: 'eip3009' },
  }
const options = {
  receiptAddress: authorizer,
  isReady: () => true,
  updatedAt: 0,
  channelOf,
} as const

const sentence = (least: string) =>
  'By a channel (x402 scheme batch-settlement) the price is the most that a request costs: one ' +
  `deposit (from ${least} USDC on Base, withdrawal in 24 hours), then a signed voucher for each ` +
  'request, without a transaction. A signed refund request gives back what is left.'
const offer = {
  ...{ amount: '5000', network: base, scheme: 'batch-settlement' },
  currency: '0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913',
  recipient: '0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC',
  extra: {
    ...{ receiverAuthorizer: authorizer, withdrawDelay: 86_400, minDeposit: '500000' },
    ...{ name: 'USD Coin', version: '2', assetTransferMethod: 'eip3009' },
  },
}

type Info = { price: object; protocols: { x402?: object }[]; offers: object[] }
type Operation = { 'x-payment-info': Info }

describe('documents', () => {
  const [own] = sold.merchants
  if (own === undefined) throw new Error('no merchant')
  const infoOf = (document: Record<string, unknown>, path: string) =>
    (document.paths as Record<string, { get: Operation }>)[path]?.get['x-payment-info']

  test('OpenAPI has offers of channels behind the others, where network and route have them', () => {
    const document = Discovery.merchant(sold, own, options)
    expect(validate(document)).toEqual([])
    const forecast = infoOf(document, '/forecast')
    expect(forecast?.offers.map((each) => [Object(each).scheme, Object(each).network])).toEqual([
      ['exact', 'eip155:4663'],
      ['exact', base],
      ['batch-settlement', base],
    ])
    expect(forecast?.offers.at(-1)).toEqual(offer)
    expect(forecast?.price).toMatchObject({ description: sentence('0.50') })
    expect(forecast?.protocols.at(-1)).toEqual({ x402: { schemes: ['exact', 'batch-settlement'] } })
    const history = infoOf(document, '/history')
    expect(JSON.stringify(history)).not.toContain('batch-settlement')
    expect(history?.protocols.at(-1)).toEqual({ x402: {} })
  })

  test('a route without exact has neither such offers nor MPP, and the least deposit is its price', () => {
    const document = Discovery.merchant(sold, own, options)
    const bulk = infoOf(document, '/bulk')
    expect(bulk?.offers).toEqual([expect.objectContaining({ scheme: 'batch-settlement' })])
    expect(bulk?.protocols).toEqual([{ x402: { schemes: ['batch-settlement'] } }])
    expect(bulk?.price).toMatchObject({ description: sentence('2.00') })
    const flat = infoOf(Discovery.aggregate(sold, options), '/m/weather/bulk')
    expect(flat).not.toHaveProperty('intent')
  })

  test('the list of resources and llms.txt say the same, and nothing while the chain lacks the contracts', async () => {
    let isThere = true
    const documents = createDocuments(sold, {
      ...options,
      channelOf: (of) => (isThere ? channelOf(of) : undefined),
    })
    const read = async (of: 'resources' | 'llms') =>
      documents[of](new Request('http://localhost/document')).text()
    const { items } = JSON.parse(await read('resources')) as {
      items: { accepts: { scheme: string; extra: object }[] }[]
    }
    expect(items.map(({ accepts }) => accepts.at(-1)?.scheme)).toEqual([
      'batch-settlement',
      'exact',
      'batch-settlement',
    ])
    expect(items[0]?.accepts.at(-1)?.extra).toEqual(offer.extra)
    const llms = await read('llms')
    expect(llms).toContain(sentence('0.50'))
    expect(llms).toContain('turnpike pay --scheme channel URL')
    isThere = false
    expect(await read('llms')).not.toMatch(/batch-settlement|channel/)
    expect(await read('resources')).not.toContain('batch-settlement')
  })
})

test('a tool says that it takes channels, and what a request costs at most', () => {
  const { tools } = createTools(sold, () => true, { channelOf }).list(undefined)
  const [forecast, history] = tools
  expect(forecast?.description).toEndWith(
    `Costs 0.005000 USD per call, paid in USDG on Robinhood Chain or USDC on Base. ${sentence('0.50')}`,
  )
  expect(history?.description).toEndWith('paid in USDG on Robinhood Chain or USDC on Base.')
})
