import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import fc from 'fast-check'
import { createTally } from '../../src/books/tally'
import type { Config } from '../../src/config/Config'
import { format, parseConfig } from '../../src/config/merchants'
import { account } from '../../src/demo/accounts'
import * as Items from '../../src/gateway/items'
import { salts } from '../../src/http/ids'
import { failureHeaders } from '../../src/paywall/answer/receipts'
import { type CredentialRefusal, createQuoter, type Quoter } from '../../src/paywall/offer/quote'
import * as Problem from '../../src/protocol/Problem'
import {
  type Accept,
  ask,
  challengesOf,
  payMppPermit2,
  type Required,
  wholeOf,
} from '../harness/buyer'
import { payout } from '../harness/config'
import { close, connect, request } from '../harness/raw'
import { runs } from '../harness/samples'
import { type Shop, sign, startShop } from '../harness/shop'

/** nginx as installed accepts a head of 4,096 bytes: status line, headers, and the empty line. */
const headMaxBytes = 3584

let shop: Shop
beforeAll(async () => {
  shop = await startShop({
    exchange: true,
    adjust: (config) => ({
      ...config,
      service: { ...config.service, quotePerMinute: 1e6, paidPerMinute: 1e6 },
    }),
  })
})
afterAll(() => shop?.stop())

/** The head of an answer as it was transmitted, its last empty line included. */
function headOf(url: string, text: string): Promise<string> {
  const { promise, resolve, reject } = Promise.withResolvers<string>()
  const socket = connect(url, text)
  let seen = ''
  socket.on('data', (chunk) => {
    seen += chunk.toString('latin1')
    const end = seen.indexOf('\r\n\r\n')
    if (end === -1) return
    resolve(seen.slice(0, end + 4))
    socket.destroy()
  })
  socket.on('close', () => reject(new Error(`no head: ${seen.slice(0, 200)}`)))
  return promise
}

function headersOf(head: string): Headers {
  const lines = head.split('\r\n').slice(1, -2)
  return new Headers(lines.map((line) => line.split(/: (.*)/s, 2) as [string, string]))
}

const requiredOf = (headers: Headers): Required =>
  JSON.parse(Buffer.from(headers.get('payment-required') ?? '', 'base64').toString())
const chainsOf = (headers: Headers) =>
  challengesOf(new Response(null, { headers })).map(
    ({ request: { methodDetails } }) => `eip155:${methodDetails.chainId}`,
  )
const networksOf = (accepts: readonly Accept[]) => [...new Set(accepts.map((each) => each.network))]

function body(method: string, headers: readonly string[]): [lines: string[], text: string] {
  if (method !== 'POST') return [[close, ...headers], '']
  return [[close, 'Content-Type: application/json', 'Content-Length: 2', ...headers], '{}']
}

/** Invalid credentials of an x402 client, each invalid in another way. */
function refused(accept: Accept | undefined): readonly string[] {
  const [signature, word] = [`0x${'11'.repeat(65)}`, `0x${'11'.repeat(32)}`]
  const [from, validBefore] = [account(1).address, '99999999999']
  const { payTo: to = from, amount: value = '1' } = accept ?? {}
  const times = { validAfter: '0', validBefore, nonce: word }
  const permit = {
    ...{ from, permitted: { token: accept?.asset, amount: value }, spender: accept?.extra.spender },
    ...{ nonce: '1', deadline: '1', witness: { to, validAfter: '0' } },
  }
  const payloads = [
    { signature, authorization: { from, to, value, ...times } },
    { signature, authorization: { from, to, value: '1', ...times } },
    { signature, authorization: { from, to: from, value, ...times, validBefore: '1' } },
    { signature, permit2Authorization: permit },
  ]
  return payloads.map((payload) =>
    btoa(JSON.stringify({ x402Version: 2, accepted: accept, payload })),
  )
}

describe('the head of a 402', () => {
  test('the head of a 402 stays below the limit on every shipped route, unpaid and refused', async () => {
    const routes = shop.config.merchants
      .filter(({ slug }) => slug !== 'closed')
      .flatMap(({ slug, routes, networks }) =>
        routes.flatMap((route) =>
          [...route.methods, ...(route.methods.includes('GET') ? ['HEAD'] : [])].map((method) => ({
            method,
            networks,
            path: `/m/${slug}${route.path}${route.tail === 'required' ? '/tail' : ''}`,
          })),
        ),
      )
    for (const { method, path, networks } of routes) {
      const send = (...headers: string[]) => {
        const [lines, text] = body(method, headers)
        return headOf(shop.url, request(path, lines, method) + text)
      }
      const place = `${method} ${path}`
      const head = await send()
      expect(head, place).toStartWith('HTTP/1.1 402 ')
      expect(head.length, place).toBeLessThanOrEqual(headMaxBytes)
      const headers = headersOf(head)
      const { accepts, resource } = requiredOf(headers)
      expect(resource.url).toBe(`http://localhost:4020${path}`)
      expect(networksOf(accepts).sort(), place).toEqual([...networks].sort())
      expect(chainsOf(headers).sort(), place).toEqual([...networks].sort())
      // Two networks have room for every transfer method.
      const exact = accepts.filter(({ scheme }) => scheme === 'exact')
      if (networks.length < 3 && exact.length === accepts.length)
        expect(accepts.length, place).toBe(networks.length === 2 ? 3 : 1)
      // Where a charge by use is offered, it is offered on each of them.
      else if (exact.length < accepts.length) {
        const upto = accepts.filter(({ scheme }) => scheme === 'upto')
        expect(networksOf(upto).sort(), place).toEqual([...networks].sort())
      }
      for (const value of refused(accepts.at(-1))) {
        const again = await send(`PAYMENT-SIGNATURE: ${value}`)
        expect(again, place).toStartWith('HTTP/1.1 402 ')
        expect(again.length, place).toBeLessThanOrEqual(headMaxBytes)
        expect(networksOf(requiredOf(headersOf(again)).accepts).length, place).toBe(networks.length)
      }
      const mpp = await send('Authorization: Payment e30')
      expect(mpp, place).toStartWith('HTTP/1.1 402 ')
      expect(mpp.length, place).toBeLessThanOrEqual(headMaxBytes)
      expect(chainsOf(headersOf(mpp)).length, place).toBe(networks.length)
    }
    expect(routes.length).toBeGreaterThan(60)
  })

  test('the head stays below the limit for the longest URL, which is replaced by the route', async () => {
    for (const [length, isTold] of [
      [10, true],
      [1000, false],
      [8000, false],
    ] as const) {
      for (const path of ['/m/shop/item', '/m/weather/forecast']) {
        const query = `?q=${'x'.repeat(length)}`
        const head = await headOf(shop.url, request(path + query, [close]))
        expect(head.length).toBeLessThanOrEqual(headMaxBytes)
        const { resource, accepts } = requiredOf(headersOf(head))
        expect(resource.url).toBe(`http://localhost:4020${path}${isTold ? query : ''}`)
        expect(accepts).toHaveLength(3)
        const whole = await ask(shop.url + path + query)
        expect(whole.whole.resource.url).toBe(`http://localhost:4020${path}${query}`)
      }
    }
  })

  test('the head of a 402 stays below the limit at the stock desk, unpaid and refused', async () => {
    const recipient = account(6).address
    for (const query of [
      'symbol=NVDA&usdg=1000',
      `symbol=NVDA&usdg=999.999999&recipient=${recipient}`,
    ]) {
      const path = `/api/stock/buy?${query}`
      const send = (...headers: string[]) =>
        headOf(shop.url, request(path, [close, ...headers], 'POST'))
      const head = await send()
      expect(head).toStartWith('HTTP/1.1 402 ')
      expect(head).toContain('RateLimit-Limit')
      expect(head.length).toBeLessThanOrEqual(headMaxBytes)
      const { accepts } = requiredOf(headersOf(head))
      expect(accepts).toHaveLength(2)
      for (const value of refused(accepts[0])) {
        const again = await send(`PAYMENT-SIGNATURE: ${value}`)
        expect(again).toStartWith('HTTP/1.1 402 ')
        expect(again.length).toBeLessThanOrEqual(headMaxBytes)
      }
    }
  })

  test('offers that do not fit the head are in the body and can be paid', async () => {
    const url = `${shop.url}/m/shop/item`
    const init = { method: 'POST', body: '{}' }
    const asked = await ask(url, init)
    expect(asked.challenges.map(({ request }) => request.methodDetails.credentialTypes)).toEqual(
      Array(3).fill(['authorization']),
    )
    const challenges = asked.body.challenges as Record<string, string>[]
    const header = challenges.map(
      (each) =>
        `Payment ${Object.entries(each)
          .map(([name, value]) => `${name}="${value}"`)
          .join(', ')}`,
    )
    const [, own] = challengesOf(
      new Response(null, { headers: { 'www-authenticate': header.join(', ') } }),
    )
    if (own === undefined) throw new Error('no challenge')
    expect(own.request.methodDetails.credentialTypes).toEqual(['permit2', 'authorization'])
    const authorization = await payMppPermit2(own, account(1).local())
    expect((await fetch(url, { ...init, headers: { authorization } })).status).toBe(200)
    const left = { scheme: 'x402-eip3009', network: 'eip155:4663', init } as const
    expect(asked.required.accepts.map(({ network }) => network)).toEqual([
      ...['eip155:4663', 'eip155:8453', 'eip155:84532'],
    ])
    const paid = await fetch(url, { ...init, headers: await sign(url, left) })
    expect(paid.status).toBe(200)
  })
})

describe('the head of a paid answer', () => {
  test('the head of a paid answer stays below the limit, also for the longest path', async () => {
    for (const length of [1, 300, 6000]) {
      const path = `/m/shop/item/${'x'.repeat(length)}`
      for (const scheme of ['mpp', 'x402-eip3009'] as const) {
        const paid = Object.entries(await sign(shop.url + path, { scheme }))
        const lines = paid.map(([name, value]) => `${name}: ${value}`)
        const head = await headOf(shop.url, request(path, [close, ...lines]))
        expect(head).toStartWith('HTTP/1.1 200 ')
        expect(head.length).toBeLessThanOrEqual(headMaxBytes)
        const headers = headersOf(head)
        expect(headers.has('payment-receipt') || headers.has('payment-response')).toBe(true)
      }
    }
  })
})

/** A file with three networks, both transfer methods where possible, and one long route. */
const files = fc.record({
  host: fc.stringMatching(/^[a-z]{1,24}\.[a-z]{2,12}\.(com|example)$/),
  slug: fc.stringMatching(/^[a-z]{1,30}$/),
  path: fc.stringMatching(/^(\/[a-z]{1,20}){1,4}$/),
  text: fc.string({ unit: 'grapheme', minLength: 1, maxLength: 200 }),
  price: fc.constantFrom('0.001', '0.005', '12.345678', '999'),
  transfers: fc.tuple(...Array(3).fill(fc.constantFrom('a', 'b', 'ab', 'ba'))),
  names: fc.tuple(...Array(3).fill(fc.stringMatching(/^[A-Z][A-Za-z ]{2,18}$/))),
})
type File = typeof files extends fc.Arbitrary<infer T> ? T : never

const assets = [
  ['eip155:8453', '0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913'],
  ['eip155:4663', '0x5fc5360D0400a0Fd4f2af552ADD042D716F1d168'],
  ['eip155:84532', '0x036CbD53842c5426634e7929541eC2318f3dCF7e'],
] as const

function configure({ host, slug, path, text, price, transfers, names }: File): Config {
  // U+FFFD stands for bytes that are not UTF-8, so a file with it is refused.
  const quoted = JSON.stringify(`x${text}`.replaceAll(/[\p{C}\p{Zl}\p{Zp}\ufffd]/gu, 'x'))
  const networks = assets.map(([id, address], index) => {
    const methods = [...String(transfers[index])].map((each) =>
      each === 'a' ? 'eip3009' : 'permit2',
    )
    return `
[networks."${id}"]
name = "${names[index]}"
rpc_urls = ["https://rpc.example.com"]
[networks."${id}".asset]
symbol = "USDC"
address = "${address}"
transfer = ${JSON.stringify(methods)}
eip712 = { name = "${names[index]}", version = "2" }
eip2612 = true`
  })
  const { config, faults } = parseConfig(
    `
[service]
payout = "${payout}"
listen = "127.0.0.1:4020"
base_url = "https://${host}"
${networks.join('\n')}
[[merchants]]
slug = "${slug}"
title = ${quoted}
description = ${quoted}
upstream = "https://one.example.com/base"
[[merchants.routes]]
path = "${path}"
methods = ["GET", "POST"]
price = "${price}"
again = "24h"
summary = ${quoted}
description = ${quoted}
[[merchants.routes.params]]
name = "needed"
required = true
example = ${quoted}
schema = { type = "string" }`,
    { file: 'merchants.toml', env: { RELAYER_KEYS: account(0).privateKey }, overrides: {} },
  )
  if (config === undefined) throw new Error(faults.map(format).join('\n'))
  return config
}

function quoterOf({ service, networks }: Config): Quoter {
  return createQuoter({
    realm: new URL(service.baseUrl).hostname,
    challengeSecrets: shop.secrets.challengeSecrets,
    receiptKey: shop.secrets.receiptKey,
    takesApprovals: true,
    gasSponsor: {
      url: `${service.baseUrl}/api/gas/sponsor`,
      networks: networks.map(({ id }) => id),
    },
    whyNot: () => undefined,
    channelOf: () => undefined,
    facilitators: () => [],
    tally: createTally(),
    now: Date.now,
    salt: salts(),
  })
}

const longest = Problem.of('verification-failed', 'It is too much.', {
  members: { reason: 'invalid_exact_evm_payload_authorization_value_mismatch' },
})

describe('any file with three networks', () => {
  let current: () => Response
  const server = Bun.serve({ port: 0, hostname: '127.0.0.1', fetch: () => current() })
  afterAll(() => server.stop(true))

  async function check(
    file: File,
    method: 'GET' | 'POST',
    refusal: CredentialRefusal | undefined,
    query: string,
  ) {
    const config = configure(file)
    const [merchant] = config.merchants
    const [route] = merchant?.routes ?? []
    if (merchant === undefined || route === undefined) throw new Error('no route')
    const item = Items.compileItems(config, () => undefined)(merchant, route)[method]
    if (item === undefined) throw new Error(`no ${method}`)
    const digest = method === 'POST' ? `sha-256=:${'A'.repeat(43)}=:` : undefined
    const url = item.resource.url + query
    const asked = { item, url, requestId: 'abcdefgh-zzzz', clientKind: 'other' } as const
    const answer = quoterOf(config)(asked, { digest, refusal })
    const text = await answer.clone().text()
    const readHead = async (response: Response) => {
      current = () => response
      const head = await headOf(server.url.href, request('/', [close]))
      expect(head.length).toBeLessThanOrEqual(headMaxBytes)
      return headersOf(head)
    }
    const headers = await readHead(answer)
    const required = requiredOf(headers)
    expect(required.extensions).not.toHaveProperty('sign-in-with-x')
    const own = await readHead(quoterOf(config)(asked, { digest, refusal, signIn: 'f'.repeat(64) }))
    const signedIn = requiredOf(own)
    const answered = JSON.parse(text) as Required & { challenges?: unknown[] }
    const told = wholeOf(answered)
    const ids = assets.map(([id]) => id)
    // Such a host name is unlikely, but must not stop all sales.
    if (file.host.length > 60) return
    expect(networksOf(required.accepts)).toEqual(ids)
    // The sign-in takes the place of challenges before that of a network.
    expect(networksOf(signedIn.accepts)).toEqual(ids)
    expect(chainsOf(own)[0]).toBe(chainsOf(headers)[0] ?? '')
    expect(signedIn.extensions.mppx?.info).toHaveProperty('salt')
    const info = signedIn.extensions['sign-in-with-x']?.info
    // A refused x402 payment needs much of the head.
    if (info !== undefined || refusal?.headers === undefined)
      expect(info).toMatchObject({
        domain: file.host,
        uri: expect.stringContaining(item.resource.url),
        nonce: expect.stringMatching(/^[0-9a-f]{48}$/),
      })
    // Python's clients read the header only, and pay by EIP-3009 without an approval.
    const methods = required.accepts.map(({ extra }) => extra.assetTransferMethod)
    const hasPlain = file.transfers.some((transfer) => `${transfer}`.includes('a'))
    expect(methods.includes('eip3009')).toBe(hasPlain)
    expect(told.accepts).toEqual(expect.arrayContaining(required.accepts))
    expect(told.accepts).toHaveLength(file.transfers.join('').length)
    expect(required.error).toBe(told.error)
    expect(required.extensions.mppx?.info).toMatchObject(told.extensions.mppx?.info ?? {})
    expect(required.resource.url).toStartWith(`https://${file.host}`)
    const chains = chainsOf(headers)
    // mppx pays only by EIP-3009, and only the first challenge.
    const payable: string[] = ids.filter((_, index) => `${file.transfers[index]}`.includes('a'))
    if (refusal === undefined) expect(chains).toEqual(expect.arrayContaining(payable))
    expect(chains.length).toBeGreaterThan(0)
    if (payable.length > 0) expect(payable).toContain(`${chains[0]}`)
    if (chains.length < 3) expect(answered.challenges).toHaveLength(3)
    // Version 1 has no other networks, and each entry must be one that its clients know.
    const named = ['eip155:8453', 'eip155:84532'].filter((id) =>
      told.accepts.some(
        ({ network, extra }) => network === id && extra.assetTransferMethod === 'eip3009',
      ),
    )
    expect(answered.x402Version).toBe(named.length === 0 ? 2 : 1)
    if (named.length > 0)
      expect(answered.accepts).toMatchObject(
        named.map((id) => ({
          network: id === 'eip155:8453' ? 'base' : 'base-sepolia',
          resource: asked.url,
        })),
      )
  }

  test('the head is short for any length of the host name', async () => {
    const host = `${'a'.repeat(60)}.${'b'.repeat(60)}.${'c'.repeat(60)}.example.com`
    const [file] = fc.sample(files, { numRuns: 1, seed: 1 })
    if (file === undefined) throw new Error('no file')
    const transfers = ['ba', 'ba', 'ba']
    await check({ ...file, host, transfers } as File, 'POST', byX402, '?q=1')
  })

  const transaction = `0x${'ab'.repeat(32)}`
  const problem = { ...longest, members: { ...longest.members, transaction } }
  const paid = { network: 'eip155:84532', payer: account(1).address }
  const byX402 = { problem: longest, headers: failureHeaders({ ...problem, status: 402 }, paid) }
  const kinds = [
    ['unpaid', undefined],
    ['refused by MPP', { problem: longest }],
    ['refused by x402', byX402],
  ] as const
  for (const [name, refusal] of kinds)
    test(`${name}, the head is short and names every network`, async () => {
      await fc.assert(
        fc.asyncProperty(
          files,
          fc.constantFrom('GET', 'POST'),
          fc.constantFrom('', '?q=1', `?q=${'x'.repeat(400)}`),
          (file, method, query) => check(file, method, refusal, query),
        ),
        runs(40),
      )
    })
})
