import { afterAll, afterEach, beforeAll, describe, expect, test } from 'bun:test'
import { ExactEvmScheme } from '@x402/evm/exact/client'
import { createSIWxClientHook, type SIWxPayload } from '@x402/extensions/sign-in-with-x'
import { wrapFetchWithPayment, x402Client, x402HTTPClient } from '@x402/fetch'
import {
  type Address,
  concat,
  encodeAbiParameters,
  encodeDeployData,
  encodeFunctionData,
  getContractAddress,
  type Hex,
  parseAbiParameters,
} from 'viem'
import { account } from '../../src/demo/accounts'
import { buyWithMppx } from '../../src/demo/buyers'
import { execute } from '../../src/demo/chains'
import { ask, askedOf, type Required } from '../harness/buyer'
import { deploy } from '../harness/chains'
import { buy, type Shop, startShop } from '../harness/shop'
import { signChallenge, signedIn, signInHeader, walletOf } from '../harness/sign-in'
import { GreedyWallet, SmartWallet } from '../harness/wallets'

const member = `
[[merchants]]
slug = "member"
upstream = "https://shop.example.com"
networks = ["eip155:8453", "eip155:4663"]
[[merchants.routes]]
path = "/item"
methods = ["GET", "POST"]
price = "0.005"
again = "24h"
[[merchants.routes]]
path = "/other"
price = "0.005"
again = "24h"
`

let shop: Shop
beforeAll(async () => {
  shop = await startShop({
    edit: (text) => text + member,
    adjust: (config) => ({
      ...config,
      service: { ...config.service, trustProxy: 1, paidPerMinute: 60, unpaidBodyMaxBytes: 1000 },
    }),
  })
})
afterAll(() => shop.stop())

/** Each test comes from an address of its own, because refusals are limited by address. */
let tests = 0
const from = () => ({ 'x-forwarded-for': `192.0.2.${tests}` })
afterEach(() => {
  tests++
  for (const tap of Object.values(shop.taps)) tap.intercept = undefined
})

const item = () => `${shop.url}/m/member/item`
const base = 'eip155:8453'
const robinhood = 'eip155:4663'

const post = (body: string): RequestInit => ({
  method: 'POST',
  headers: { 'content-type': 'application/json' },
  body,
})

const extensionOf = ({ extensions }: Required) => extensions['sign-in-with-x']?.info

/** What the service answers to a sign-in. */
async function answerTo(payload: object, url = item(), init: RequestInit = {}) {
  const headers = { ...init.headers, ...from(), ...signInHeader(payload) }
  const asked = await askedOf(await fetch(url, { ...init, headers }))
  const { response, body } = asked
  return { ...asked, is: [response.status, body.code, body.reason] }
}

const nothing = [402, 'not-entitled', 'no_entitlement']
const refused = (reason: string) => [402, 'sign-in-refused', `invalid_siwx_${reason}`]

describe('the offer of a sign-in', () => {
  test('each 402 of a route with an entitlement has a challenge of its own, and others have none', async () => {
    const url = `${item()}?a=1&b=%20x`
    const infos = [await ask(url), await ask(url)].map(({ required }) => extensionOf(required))
    const [one, two] = infos
    expect(one).toMatchObject({
      domain: 'localhost:4020',
      uri: 'http://localhost:4020/m/member/item?a=1&b=%20x',
      version: '1',
    })
    expect(one?.nonce).not.toBe(two?.nonce)
    const asked = await ask(`${shop.url}/m/shop/item`)
    expect(asked.required.extensions).not.toHaveProperty('sign-in-with-x')
    // What a body is not, nobody can sign for; and the body of an answer is shared.
    const long = await ask(item(), post(`"${'x'.repeat(2000)}"`))
    expect(long.required.extensions).not.toHaveProperty('sign-in-with-x')
    expect((await ask(item())).whole.extensions).not.toHaveProperty('sign-in-with-x')
  })

  test('a long URL, and one that no message may have, give the challenge the URL of the route', async () => {
    const route = 'http://localhost:4020/m/member/item'
    for (const query of [`?q=${'x'.repeat(900)}`, '?filter[a]=1|2']) {
      const { required, response } = await ask(item() + query)
      expect(extensionOf(required)?.uri).toBe(route)
      const bytes = [...response.headers].reduce((sum, [a, b]) => sum + a.length + b.length + 4, 0)
      expect(bytes).toBeLessThan(3584)
      const payload = await signChallenge(required)
      expect((await answerTo(payload, item() + query)).is).toEqual(nothing)
      expect((await answerTo(payload)).is).toEqual(refused('nonce'))
    }
  })

  test('pages of other origins may send a sign-in, and read what it used', async () => {
    const response = await fetch(item(), { method: 'OPTIONS' })
    expect(response.headers.get('access-control-allow-headers')).toContain('Sign-In-With-X')
    const exposed = response.headers.get('access-control-expose-headers')
    expect(exposed).toContain('Payment-Entitlement')
    expect(exposed).toContain('Payment-Redeem')
  })

  test('a call of MCP has no challenge', async () => {
    const call = {
      ...{ jsonrpc: '2.0', id: 1, method: 'tools/call' },
      params: { name: 'member-get-item', arguments: {} },
    }
    const accept = 'application/json, text/event-stream'
    const list = await fetch(`${shop.url}/mcp`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', accept },
      body: JSON.stringify({ ...call, method: 'tools/list', params: {} }),
    })
    const [, name = ''] = /"name":"([^"]*member[^"]*item[^"]*)"/.exec(await list.text()) ?? []
    const response = await fetch(`${shop.url}/mcp`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', accept },
      body: JSON.stringify({ ...call, params: { name, arguments: {} } }),
    })
    const text = await response.text()
    expect(text).toContain('offer-receipt')
    expect(text).not.toContain('sign-in-with-x')
  })
})

describe('stock clients', () => {
  /** The requests of a client, whose URLs name the service as buyers see it. */
  const sent: { headers: Headers; status: number }[] = []
  const fetchPublic = async (input: string | URL | Request, init?: RequestInit) => {
    const request =
      input instanceof Request ? new Request(input, init) : new Request(`${input}`, init)
    const { pathname, search } = new URL(request.url)
    const inner = new Request(shop.url + pathname + search, request)
    for (const [name, value] of Object.entries(from())) inner.headers.set(name, value)
    const response = await fetch(inner)
    sent.push({ headers: request.headers, status: response.status })
    return new Response(response.body, response)
  }

  test('the hook of the reference signs in, gets a 402, and pays', async () => {
    sent.length = 0
    const signer = account(1).local()
    const asset = shop.config.networks.find(({ id }) => id === base)?.asset.address ?? '0x'
    const client = new x402Client().register(base, new ExactEvmScheme(signer)).setSpendControls({
      allowedAssets: [{ network: base, asset, maxAmountPerPayment: '2000000' }],
    })
    const http = new x402HTTPClient(client).onPaymentRequired(createSIWxClientHook(signer))
    const fetchPaid = wrapFetchWithPayment(
      Object.assign(fetchPublic, { preconnect: () => {} }),
      http,
    )
    const before = shop.upstream.requests.length
    const response = await fetchPaid('http://localhost:4020/m/member/item?stock=1')
    expect([response.status, await response.text()]).toEqual([200, '{"ok":true}'])
    const kinds = ['sign-in-with-x', 'payment-signature']
    expect(
      sent.map(({ headers, status }) => [status, kinds.filter((each) => headers.has(each))]),
    ).toEqual([
      [402, []],
      [402, ['sign-in-with-x']],
      [200, ['payment-signature']],
    ])
    const [arrived, ...others] = shop.upstream.requests.slice(before)
    expect(others).toEqual([])
    expect(Object.keys(arrived?.headers ?? {})).not.toContain('sign-in-with-x')
  })

  test('mppx takes the 402, and a payment beside a sign-in is what counts', async () => {
    const { response } = await buyWithMppx(shop, item(), account(2), { network: base })
    expect(response.status).toBe(200)
    const junk = { 'sign-in-with-x': 'junk' }
    for (const scheme of ['mpp', 'x402-eip3009'] as const)
      expect((await buy(item(), { scheme, buyer: 3 }, { ...from(), ...junk })).status).toBe(200)
    const headers = { ...from(), ...junk, 'payment-redeem': 'A'.repeat(43) }
    expect(await (await fetch(item(), { headers })).json()).toMatchObject({
      code: 'invalid-redeem-token',
    })
    // Where nothing is offered, the header means nothing.
    const plain = await ask(`${shop.url}/m/shop/item`, { headers: { ...from(), ...junk } })
    expect(plain.body.code).toBe('payment-required')
  })
})

describe('a sign-in', () => {
  test('a valid one of a wallet without an entitlement gets fresh offers and a fresh challenge', async () => {
    const before = [shop.counts(), shop.upstream.requests.length]
    for (const [url, init] of [[`${item()}?a=1`], [item(), post('{"a":1}')]] as const) {
      const payload = await signedIn(url, { init, signer: account(5).local() })
      const { is, required, response, body } = await answerTo(payload, url, init)
      expect(is).toEqual(nothing)
      expect(required.error).toBe('no_entitlement')
      expect(response.headers.get('www-authenticate')).toStartWith('Payment id=')
      expect(body.accepts ?? (body.x402 as Required).accepts).not.toEqual([])
      expect(extensionOf(required)?.nonce).not.toBe(payload.nonce)
      const again = await signChallenge(required, { signer: account(5).local() })
      expect((await answerTo(again, url, init)).is).toEqual(nothing)
    }
    expect([shop.counts(), shop.upstream.requests.length]).toEqual(before)
    expect(shop.logged.join('')).not.toContain((await signedIn(item())).signature.slice(0, 8))
  })

  const cases: readonly (readonly [
    name: string,
    reason: string,
    change: (payload: SIWxPayload) => object | Promise<object>,
    to?: { url?: () => string; init?: RequestInit },
  ])[] = [
    ['another domain', 'domain_mismatch', (own) => ({ ...own, domain: 'evil.example.com' })],
    ['another URL', 'uri_mismatch', (own) => ({ ...own, uri: `${own.uri}?b=1` })],
    ['another version', 'unsupported_chain', (own) => ({ ...own, version: '2' })],
    ['a chain without an offer', 'chain_id', (own) => ({ ...own, chainId: 'eip155:84532' })],
    ['a time that was changed', 'nonce', (own) => ({ ...own, issuedAt: new Date().toISOString() })],
    ['a nonce of its own', 'nonce', (own) => ({ ...own, nonce: 'a'.repeat(48) })],
    ['a text that was changed', 'signature', (own) => ({ ...own, statement: 'Sign in.' })],
    ['another wallet', 'signature', (own) => ({ ...own, address: account(2).address })],
    ['another route', 'uri_mismatch', (own) => own, { url: () => `${shop.url}/m/member/other` }],
    ['another query', 'nonce', (own) => own, { url: () => `${item()}?a=2` }],
    ['another body', 'nonce', (own) => own, { init: post('{"a":2}') }],
    ['another method', 'nonce', (own) => own, { init: { method: 'HEAD' } }],
  ]
  for (const [name, reason, change, { url = item, init = {} } = {}] of cases)
    test(`attack: a sign-in with or for ${name} is refused`, async () => {
      const before = [shop.counts(), shop.upstream.requests.length]
      const payload = await signedIn(item())
      const headers = { ...init.headers, ...from(), ...signInHeader(await change(payload)) }
      const response = await fetch(url(), { ...init, headers })
      const { required } = await askedOf(response)
      expect([response.status, required.error]).toEqual([402, `invalid_siwx_${reason}`])
      expect(extensionOf(required)?.nonce).not.toBe(payload.nonce)
      expect([shop.counts(), shop.upstream.requests.length]).toEqual(before)
    })

  test('attack: a late, an early and a forwarded one are refused, and one from before a new price', async () => {
    const payload = await signedIn(item())
    shop.advance(301_000)
    expect((await answerTo(payload)).is).toEqual(refused('issued_at_too_old'))
    const early = await signedIn(item())
    shop.advance(-301_000)
    expect((await answerTo(early)).is).toEqual(refused('issued_at_in_future'))
    const cheap = await signedIn(item())
    const config = shop.edited((text) =>
      text.replaceAll('price = "0.005"\nagain', 'price = "0.006"\nagain'),
    )
    const { service } = shop.config
    expect(await shop.app.reload({ ...config, service })).toEqual([])
    expect((await answerTo(cheap)).is).toEqual(refused('nonce'))
    expect((await answerTo(await signedIn(item()))).is).toEqual(nothing)
    expect(await shop.app.reload(shop.config)).toEqual([])
  })

  test('error: a malformed one is a bad request that names the header, and pays nothing', async () => {
    const payload = await signedIn(item())
    const [header = ''] = Object.values(signInHeader(payload))
    for (const value of ['x', `${header}, ${header}`, 'A'.repeat(9000), btoa('{}')]) {
      const response = await fetch(item(), { headers: { ...from(), 'sign-in-with-x': value } })
      const { code, detail, field } = (await response.json()) as Record<string, string>
      expect([response.status, code, field]).toEqual([400, 'bad-request', 'SIGN-IN-WITH-X'])
      expect(detail).toStartWith('SIGN-IN-WITH-X is malformed: ')
    }
  })

  test('valid ones without an entitlement do not count as refused; others do', async () => {
    const statuses: number[] = []
    await shop.still(async () => {
      for (let round = 0; round < 10; round++) {
        const payload = await signedIn(item())
        statuses.push((await answerTo(payload)).response.status)
      }
      for (let round = 0; round < 8; round++) {
        const payload = await signedIn(item())
        statuses.push((await answerTo({ ...payload, nonce: 'x' })).response.status)
      }
    })
    expect(statuses).toEqual([...Array(16).fill(402), 429, 429])
  })
})

describe('a wallet with code', () => {
  const chainOf = (id: typeof base | typeof robinhood) => {
    const chain = shop.chains[id]
    if (chain === undefined) throw new Error(`no ${id}`)
    return chain
  }
  const owner = account(1).address
  const signAs = (wallet: Address, network: typeof base | typeof robinhood = base) =>
    signedIn(item(), { signer: walletOf(wallet), network })

  test('its contract accepts its signature, on its own chain alone and for each sign-in anew', async () => {
    const wallet = await deploy(chainOf(base), GreedyWallet, [owner, 0])
    expect((await answerTo(await signAs(wallet))).is).toEqual(nothing)
    expect((await answerTo(await signAs(wallet, robinhood))).is).toEqual(refused('signature'))
    const other = await signedIn(item(), { signer: walletOf(wallet, account(2)), network: base })
    expect((await answerTo(other)).is).toEqual(refused('signature'))
    const { abi } = GreedyWallet
    const payload = await signAs(wallet)
    const data = encodeFunctionData({ abi, functionName: 'setMode', args: [3] })
    await execute(chainOf(base), [{ from: owner, to: wallet, data }])
    expect((await answerTo(payload)).is).toEqual(refused('signature'))
  })

  test('attack: one whose code uses all gas is refused, and so is an address that returns its input', async () => {
    const burning = await deploy(chainOf(base), GreedyWallet, [owner, 1])
    const identity: Address = '0x0000000000000000000000000000000000000004'
    for (const wallet of [burning, identity, account(3).address])
      expect((await answerTo(await signAs(wallet))).is).toEqual(refused('signature'))
  })

  test('one that is not deployed signs with its deployment (ERC-6492)', async () => {
    const factory: Address = '0x4e59b44847b379578588920cA78FbF26c0B4956C'
    const { abi, bytecode } = SmartWallet
    const code = encodeDeployData({ abi, bytecode, args: [owner] })
    const salt: Hex = `0x${'06'.padStart(64, '0')}`
    const wallet = getContractAddress({ opcode: 'CREATE2', from: factory, salt, bytecode: code })
    const wrapped = async (data: Hex) => {
      const { signature, ...payload } = await signAs(wallet)
      const parts = [factory, data, signature as Hex] as const
      const inner = encodeAbiParameters(parseAbiParameters('address, bytes, bytes'), parts)
      return { ...payload, signature: concat([inner, `0x${'6492'.repeat(16)}`]) }
    }
    const right = concat([salt, code])
    expect((await answerTo(await signAs(wallet))).is).toEqual(refused('signature'))
    expect(
      (await answerTo(await wrapped(concat([`0x${'07'.padStart(64, '0')}`, code])))).is,
    ).toEqual(refused('signature'))
    expect((await answerTo(await wrapped(right))).is).toEqual(nothing)
    // The call has deployed nothing, and a deployed wallet may still show its deployment.
    expect(await chainOf(base).rpc('eth_getCode', [wallet, 'latest'])).toBe('0x')
    await execute(chainOf(base), [{ from: account(9).address, to: factory, data: right }])
    expect((await answerTo(await wrapped(right))).is).toEqual(nothing)
  })

  test('error: while no node answers it is neither accepted nor refused; a key needs no node', async () => {
    const wallet = await deploy(chainOf(base), SmartWallet, [owner])
    const payload = await signAs(wallet)
    const own = await signedIn(item())
    const tap = shop.taps[base]
    if (tap === undefined) throw new Error('no tap')
    tap.intercept = ({ method }) =>
      method === 'eth_call' ? new Response('', { status: 500 }) : undefined
    const { response } = await answerTo(payload)
    expect([response.status, response.headers.has('retry-after')]).toEqual([503, true])
    tap.calls.length = 0
    expect((await answerTo(own)).is).toEqual(nothing)
    expect(tap.calls.filter(({ method }) => method === 'eth_call')).toEqual([])
    tap.intercept = undefined
    expect((await answerTo(payload)).is).toEqual(nothing)
  })

  test('attack: its sign-ins without an entitlement count as refused, because each costs a call', async () => {
    const wallet = await deploy(chainOf(base), SmartWallet, [owner])
    const statuses: number[] = []
    await shop.still(async () => {
      for (let round = 0; round < 7; round++)
        statuses.push((await answerTo(await signAs(wallet))).response.status)
    })
    expect(statuses).toEqual([...Array(6).fill(402), 429])
  })
})
