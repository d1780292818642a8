import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import { validate } from 'mppx/discovery'
import { account } from '../../src/demo/accounts'
import { createDocuments, type Serve } from '../../src/gateway/documents/documents'
import * as Upto from '../../src/protocol/Upto'
import { ask } from '../harness/buyer'
import { units } from '../harness/meter'
import { type Shop, startShop } from '../harness/shop'
import { uptoOffer } from '../harness/upto'

/** What documents say of routes that may be paid by the x402 scheme `upto`. */

const merchantOf = (slug: string, price: string, more = '') => `
[[merchants]]
slug = "${slug}"
title = "Sells ${slug}"
upstream = "https://shop.example.com"
networks = ["eip155:4663", "eip155:8453"]
${more}
[[merchants.routes]]
path = "/chat"
methods = ["POST"]
price = "${price}"
summary = "Chat"
upstream_path = "/v1/chat/completions"
[merchants.routes.meter]
preset = "openai"
base = "0.0005"
${units}
`
let shop: Shop
beforeAll(async () => {
  shop = await startShop({
    edit: (text) =>
      text +
      merchantOf('model', '0.05', 'timeout_ms = 255000') +
      merchantOf('slow', '0.05', 'timeout_ms = 255001') +
      merchantOf('dear', '1.01'),
  })
})
afterAll(() => shop?.stop())

/** The same on the page, for people. */
const pageSentence = 'is charged for what the answer used, and never more'
const sentence = 'By the x402 scheme upto an answer is charged by what it used'
const networks = ['eip155:4663', 'eip155:8453']

type Info = {
  price: { description: string; min: string; max: string; units: object }
  protocols: { x402?: { schemes?: string[] } }[]
  offers: { scheme: string; network: string; amount: string; extra: object }[]
}
type Operation = { 'x-payment-info': Info; responses: { 200: { headers?: object } } }
type Document = { paths: Record<string, { post?: Operation; get?: Operation }> }

const json = async <T>(path: string) => (await (await fetch(shop.url + path)).json()) as T
const operationOf = async (slug: string) => {
  const { paths } = await json<Document>(`/m/${slug}/openapi.json`)
  const operation = paths['/chat']?.post
  if (operation === undefined) throw new Error(`no ${slug}`)
  return operation
}
const schemesOf = ({ protocols }: Info) =>
  protocols.flatMap(({ x402 }) => (x402 === undefined ? [] : [x402.schemes]))

describe('a route that is offered by upto', () => {
  test('x-payment-info has the scheme upto beside exact, base and units', async () => {
    const { 'x-payment-info': info, responses } = await operationOf('model')
    expect(info.price).toMatchObject({
      min: '0.000500',
      max: '0.050000',
      units: { input: { price: '1', per: 1_000_000 }, output: { price: '10', per: 1_000_000 } },
    })
    expect(info.price.description).toStartWith('Up to 0.050000 USD per request: base 0.000500 USD')
    expect(info.price.description).toContain(sentence)
    expect(schemesOf(info)).toEqual([['exact', 'upto']])
    expect(info.offers.map(({ scheme, network }) => [scheme, network])).toEqual([
      ...networks.map((network) => ['exact', network]),
      ...networks.map((network) => ['upto', network]),
    ])
    for (const { scheme, amount, extra } of info.offers) {
      expect(amount).toBe('50000')
      if (scheme === 'upto')
        expect(extra).toEqual({ assetTransferMethod: 'permit2', spender: Upto.proxyAddress })
    }
    expect(Object.keys(responses[200].headers ?? {})).toEqual(['Payment-Id', 'Payment-Token'])
  })

  test('the document of all merchants names the scheme upto, and stays valid', async () => {
    const document = await json<Document>('/openapi.json')
    const info = document.paths['/m/model/chat']?.post?.['x-payment-info']
    expect(info && schemesOf(info)).toEqual([['exact', 'upto']])
    expect(validate(document)).toEqual([])
    expect(validate(await json('/m/model/openapi.json'))).toEqual([])
  })

  test('llms.txt, the page and the MCP tool say how a route is charged by use', async () => {
    const llms = await (await fetch(`${shop.url}/llms.txt`)).text()
    expect(llms).toMatch(/\/m\/model\/chat - up to \$0\.05 - Chat\. Up to 0\.050000 USD/)
    expect(llms.split('\n').find((line) => line.includes('/m/model/chat'))).toContain(sentence)
    expect(llms).toContain('GET /api/payments/{Payment-Id}')
    const page = await (await fetch(`${shop.url}/merchants/model`)).text()
    expect(page).toContain(pageSentence)
    const described = (await toolsOf()).get('model-chat')
    expect(described).toContain('Up to 0.050000 USD per request')
    expect(described).toContain(sentence)
    expect(described).toContain('"scheme":"upto"')
  })

  test('the list of resources has offers that a client can sign', async () => {
    const { items } = await json<{ items: { resource: string; accepts: unknown[] }[] }>(
      '/discovery/resources?limit=100',
    )
    const listed = items.find(({ resource }) => resource.endsWith('/m/model/chat'))
    // The body has every offer, also those for which the head has no room.
    const { whole } = await ask(`${shop.url}/m/model/chat`, { method: 'POST' })
    for (const network of networks) {
      const offer = uptoOffer(whole, network)
      expect(offer?.extra.facilitatorAddress).toBe(account(0).address)
      expect(listed?.accepts).toContainEqual(offer)
    }
  })
})

async function toolsOf(): Promise<Map<string, string>> {
  const response = await fetch(`${shop.url}/mcp`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', accept: 'application/json, text/event-stream' },
    body: JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'tools/list', params: {} }),
  })
  const { result } = (await response.json()) as {
    result: { tools: { name: string }[]; nextCursor?: string }
  }
  expect(result.nextCursor).toBeUndefined()
  return new Map(result.tools.map((tool) => [tool.name, JSON.stringify(tool)]))
}

describe('a route that is not offered by upto', () => {
  for (const [slug, why] of [
    ['slow', 'its timeout_ms is above 255 s'],
    ['dear', 'its price is above unsettled_max'],
  ] as const)
    test(`no document names the scheme upto where ${why}`, async () => {
      const { accepts } = (await ask(`${shop.url}/m/${slug}/chat`, { method: 'POST' })).whole
      expect(accepts.map(({ scheme }) => scheme)).not.toContain('upto')
      const { 'x-payment-info': info, responses } = await operationOf(slug)
      expect(info.price.description).toStartWith('Up to ')
      expect(JSON.stringify(info)).not.toContain('upto')
      expect(responses[200].headers).toBeUndefined()
      const llms = await (await fetch(`${shop.url}/llms.txt`)).text()
      const line = llms.split('\n').find((each) => each.includes(`/m/${slug}/chat`))
      expect(line).toContain('up to $')
      expect(line).not.toContain('upto')
      expect((await toolsOf()).get(`${slug}-chat`)).not.toContain('upto')
      const page = await (await fetch(`${shop.url}/merchants/${slug}`)).text()
      expect(page).toContain(`/m/${slug}/chat`)
      expect(page).not.toContain(pageSentence)
      const { items } = await json<{ items: { resource: string }[] }>(
        '/discovery/resources?limit=100',
      )
      const listed = items.find(({ resource }) => resource.endsWith(`/m/${slug}/chat`))
      expect(JSON.stringify(listed)).not.toContain('upto')
    })

  test('a document is made again when a network loses the scheme', async () => {
    const settling = new Set<string>(networks)
    const documents = createDocuments(shop.config, {
      receiptAddress: account(0).address,
      isReady: () => true,
      facilitators: (network) => (settling.has(network) ? [account(0).address] : []),
      updatedAt: 0,
    })
    const schemes = async () => {
      const serve = documents.find('/m/model/openapi.json') as Serve
      const response = serve(new Request('http://localhost/m/model/openapi.json'))
      const { paths } = (await response.json()) as Document
      const offers = paths['/chat']?.post?.['x-payment-info'].offers ?? []
      return offers.filter(({ scheme }) => scheme === 'upto').map(({ network }) => network)
    }
    expect(await schemes()).toEqual(networks)
    settling.delete('eip155:4663')
    expect(await schemes()).toEqual(['eip155:8453'])
    settling.clear()
    expect(await schemes()).toEqual([])
  })
})

test('pages of other origins may read the headers of a stream, and send its token', async () => {
  const asked = { method: 'OPTIONS', headers: { origin: 'https://other.example' } }
  const { headers } = await fetch(`${shop.url}/m/model/chat`, asked)
  for (const name of ['Payment-Id', 'Payment-Token', 'PAYMENT-RESPONSE'])
    expect(headers.get('access-control-expose-headers')).toContain(name)
  expect(headers.get('access-control-allow-headers')).toContain('Payment-Token')
})
