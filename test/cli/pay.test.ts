import { afterAll, beforeAll, describe, expect, spyOn, test } from 'bun:test'
import * as Paid from '../../src/cli/buy/Credential'
import { pay } from '../../src/cli/buy/pay'
import * as Terms from '../../src/cli/buy/Terms'
import type { NetworkConfig } from '../../src/config/Config'
import { account } from '../../src/demo/accounts'
import { startUpstreams } from '../../src/demo/upstreams'
import * as Challenge from '../../src/protocol/Challenge'
import * as Credential from '../../src/protocol/Credential'
import * as Crypto from '../../src/protocol/Crypto'
import { encodeJson } from '../../src/protocol/Header'
import type { Network } from '../../src/protocol/Network'
import type { Offer } from '../../src/protocol/Offer'
import { isFault } from '../../src/protocol/Problem'
import * as Transfer from '../../src/protocol/Transfer'
import * as X402 from '../../src/protocol/X402'
import { exitCode } from '../harness/command'
import { executable } from '../harness/executable'
import { type TestWorld, testWorld, until } from '../harness/world'

// Programs and chains start in each test, perhaps beside other work.
const payer = account(1)
const payee = account(7)
const secret = new Uint8Array(32).fill(7)

const usdg: Network = {
  id: 'eip155:4663',
  chainId: 4663,
  name: 'Robinhood Chain',
  testnet: false,
  asset: {
    symbol: 'USDG',
    address: '0x5fc5360D0400a0Fd4f2af552ADD042D716F1d168',
    decimals: 6,
    transfer: ['permit2', 'eip3009'],
    eip712: { name: 'Global Dollar', version: '1' },
    revertsOnUsedNonce: false,
    eip2612: true,
  },
}
const offer: Offer = { network: usdg, payTo: payee.address, amountAtomic: 5000n }

const usdc: Network = {
  id: 'eip155:8453',
  chainId: 8453,
  name: 'Base',
  testnet: false,
  asset: {
    symbol: 'USDC',
    address: '0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913',
    decimals: 6,
    transfer: ['eip3009'],
    eip712: { name: 'USD Coin', version: '2' },
    revertsOnUsedNonce: true,
    eip2612: true,
  },
}

/** Headers of a 402 for the networks, as this service sends them. */
function asked(
  url: string,
  amountAtomic = offer.amountAtomic,
  networks: readonly Network[] = [usdg],
): Headers {
  const priced = networks.map((network) => ({ ...offer, network, amountAtomic }))
  const compiled = Challenge.compile({
    realm: 'localhost',
    offers: priced,
    routeId: 'a:GET /b',
    secret,
  })
  const expires = new Date(Date.now() + 300_000).toISOString()
  const required = X402.paymentRequired({
    error: 'Payment required',
    resource: { url },
    accepts: X402.accepts(priced),
    extensions: X402.extensions({ offers: [], method: 'GET', salt: 'abcdefghijklmno' }),
  })
  return new Headers({
    'www-authenticate': `Bearer realm="x", ${Challenge.issue(compiled, { expires, salt: btoa('abcdefghijklmnopqr') })}`,
    'payment-required': encodeJson(required),
  })
}

type Ran = { code: number; out: string; err: string }

async function run(args: readonly string[], env: Record<string, string> = {}): Promise<Ran> {
  const child = Bun.spawn([executable, 'pay', ...args], {
    env: { PATH: process.env.PATH ?? '', ...env },
    stdin: 'ignore',
    stdout: 'pipe',
    stderr: 'pipe',
  })
  const [out, err, code] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ])
  return { code, out, err }
}

const key = { PAY_KEY: payer.privateKey }

/** A server with scripted answers to paid requests, and the credentials that it received. */
function shop(
  answers: readonly (() => Response)[],
  amountAtomic?: bigint,
  networks?: readonly Network[],
) {
  const credentials: string[] = []
  const server = Bun.serve({
    hostname: '127.0.0.1',
    port: 0,
    fetch(request) {
      const { headers, url } = request
      const credential =
        headers.get('authorization') ??
        headers.get('payment-signature') ??
        headers.get('payment-redeem')
      if (credential === null)
        return new Response('{}', { status: 402, headers: asked(url, amountAtomic, networks) })
      const answer = answers[credentials.length] ?? answers.at(-1)
      credentials.push(credential)
      return answer?.() ?? new Response('none')
    },
  })
  return {
    url: `http://127.0.0.1:${server.port}/thing`,
    credentials,
    stop: () => server.stop(true),
  }
}

const problem =
  (status: number, members: object, headers: Record<string, string> = {}) =>
  () =>
    new Response(JSON.stringify(members), {
      status,
      headers: { 'content-type': 'application/problem+json', ...headers },
    })

describe('Terms', () => {
  const privateKey = Uint8Array.fromHex(payer.privateKey.slice(2))
  const random = new Uint8Array(32).fill(9)
  const terms = Terms.decode(asked('http://localhost/m/a/b'))

  test('Terms reads every way to pay that we offer, and no other', () => {
    expect(terms.map(Terms.describe)).toEqual([
      '0.005000 USDG on eip155:4663 by permit2 (mpp)',
      '0.005000 USDG on eip155:4663 by eip3009 (mpp)',
      '0.005000 USDG on eip155:4663 by permit2 (x402)',
      '0.005000 USDG on eip155:4663 by eip3009 (x402)',
    ])
  })

  test('MPP credentials of both types pass the service itself', () => {
    for (const one of terms.filter(({ source }) => source.kind === 'mpp')) {
      const paid = Paid.from(one, { privateKey, now: Date.now(), random })
      const parsed = Credential.parse(paid.value)
      if (isFault(parsed)) throw new Error(parsed.detail)
      expect(parsed.transfer).toEqual(paid.transfer)
      const proven = Challenge.verify(parsed.challenge, { secrets: [secret], realm: 'localhost' })
      expect(isFault(proven)).toBe(false)
      const digest = Transfer.digest(parsed.transfer, usdg.asset)
      expect(Crypto.recover(digest, parsed.transfer.signature)).toBe(payer.address)
    }
  })

  test('x402 payloads of both methods pass the service itself, EIP-3009 route-bound', () => {
    for (const one of terms.filter(({ source }) => source.kind === 'x402')) {
      const paid = Paid.from(one, { privateKey, now: Date.now(), random })
      const parsed = X402.parsePayload(paid.value)
      if (isFault(parsed)) throw new Error(parsed.detail)
      const matches = X402.matchOffer(parsed, [offer])
      if (isFault(matches)) throw new Error(matches.detail)
      expect(matches.map(({ transfer }) => transfer)).toEqual([paid.transfer])
      const digest = Transfer.digest(paid.transfer, usdg.asset)
      expect(Crypto.recover(digest, paid.transfer.signature)).toBe(payer.address)
      const bound = X402.isRouteBound(parsed, { url: 'http://localhost/m/a/b' })
      expect(bound).toBe(one.method === 'eip3009')
    }
  })

  test('error: invalid offers, unknown tokens and other spenders are omitted', () => {
    const [, accepted] = X402.accepts([offer])
    if (accepted === undefined) throw new Error('no entry for Permit2')
    const of = (accept: object) =>
      Terms.decode(new Headers({ 'payment-required': encodeJson({ accepts: [accept] }) }))
    expect(of(accepted)).toHaveLength(1)
    expect(of({ ...accepted, asset: payee.address })).toEqual([])
    expect(of({ ...accepted, network: 'eip155:8453' })).toEqual([])
    expect(of({ ...accepted, amount: '0x10' })).toEqual([])
    expect(of({ ...accepted, extra: { ...accepted.extra, spender: payee.address } })).toEqual([])
    expect(of({ ...accepted, scheme: 'other' })).toEqual([])
    for (const value of ['', 'Payment', 'Payment id="x"', 'Basic realm="x"', 'Payment id="', '%'])
      expect(
        Terms.decode(new Headers({ 'www-authenticate': value, 'payment-required': 'x' })),
      ).toEqual([])
  })
})

test('error: a wallet with too little for each offer gets its balances, and signs nothing', async () => {
  const store = shop([() => new Response('never')], undefined, [usdg, usdc])
  const own = globalThis.fetch
  const said = spyOn(process.stderr, 'write').mockReturnValue(true)
  const fetched = spyOn(globalThis, 'fetch').mockImplementation((async (input, init) => {
    if (!String(input).startsWith('https:')) return own(input, init)
    const { id, method } = JSON.parse(String(init?.body))
    const chainId = String(input).includes('robinhood') ? '0x1237' : '0x2105'
    const result = method === 'eth_chainId' ? chainId : `0x${'1'.padStart(64, '0')}`
    return Response.json({ jsonrpc: '2.0', id, result })
  }) as typeof fetch)
  try {
    const code = await exitCode(pay, { operand: store.url, env: key })
    const err = said.mock.calls.map(([text]) => String(text)).join('')
    expect([code, store.credentials]).toEqual([1, []])
    expect(err).toContain(
      `turnpike: The wallet ${payer.address} has too little: 0.000001 USDG on eip155:4663, 0.000001 USDC on eip155:8453. It is asked for:\n  0.005000 USDG`,
    )
  } finally {
    fetched.mockRestore()
    said.mockRestore()
    store.stop()
  }
})

describe.concurrent('turnpike pay, against other servers', () => {
  test('the same credential is sent again while the settlement is pending', async () => {
    const pending = problem(
      503,
      { code: 'settlement-pending', detail: 'not yet', transaction: `0x${'ab'.repeat(32)}` },
      { 'retry-after': '1' },
    )
    const store = shop([pending, pending, () => new Response('the goods')])
    const ran = await run([store.url], key)
    store.stop()
    expect(ran).toMatchObject({ code: 0, out: 'the goods' })
    expect(store.credentials).toHaveLength(3)
    expect(new Set(store.credentials).size).toBe(1)
    expect(ran.err).toContain(`settlement-pending, 0x${'ab'.repeat(32)}`)
  })

  test("error: a server's text neither controls the terminal nor looks like a line of ours", async () => {
    const detail = 'no\x1b]0;owned\x07\x1b[2J\x9b1A\u202e\nsettled by 0xfeed\r'
    const store = shop([problem(400, { code: 'bad\x1b[1m', detail })])
    const ran = await run([store.url], key)
    store.stop()
    expect(ran.code).toBe(1)
    expect(ran.err).toContain('refused    400 bad?[1m: no?]0;owned')
    expect(ran.err).toMatch(/^[^\p{Cf}\p{Zl}\p{Zp}]*$/u)
    expect(ran.err.replaceAll('\n', '')).toMatch(/^\P{Cc}*$/u)
    expect(ran.err).not.toMatch(/^settled by/m)
  })

  test('attack: no field of an answer, a receipt or a problem adds a line to ours', async () => {
    const forged = '\nreceipt    https://bank.example/, eip155:8453\r\n           signed by 0x1'
    const transaction = `0x${'ab'.repeat(32)}${forged}`
    const named = { success: true, network: 'eip155:8453', transaction }
    const payload = {
      ...{
        version: 1,
        network: `eip155:8453${forged}`,
        resourceUrl: `https://a.example/${forged}`,
      },
      ...{ payer: `0x${'1'.repeat(40)}${forged}`, issuedAt: 1_800_000_000, transaction },
    }
    const receipt = { format: 'eip712', payload, signature: `0x${'1'.repeat(130)}` }
    const signed = { ...named, extensions: { 'offer-receipt': { info: { receipt } } } }
    const redeem = { token: `A${forged}`, until: `2026${forged}`, attempts: 5 }
    const members = { code: `a${forged}`, detail: `b${forged}`, reason: `c${forged}`, transaction }
    const usage = { info: { units: { [`input${forged}`]: 3 } } }
    const charged = { ...named, amount: '1', extensions: { usage } }
    const served = (settled: object) => () =>
      new Response('goods', { headers: { 'payment-response': encodeJson(settled) } })
    const answers = [
      served(named),
      served(signed),
      served(charged),
      problem(502, { ...members, redeem }),
      problem(503, members, { 'retry-after': '1' }),
    ]
    for (const answer of answers) {
      const store = shop([answer, problem(400, members)])
      const ran = await run([store.url], key)
      store.stop()
      expect(ran.err).toMatch(/an invalid hash/)
      expect(ran.err).not.toMatch(/^ *(receipt +https:.bank|signed by 0x1)/m)
    }
  })

  test('the printed redeem command holds a body of several lines in one line', async () => {
    const redeem = { token: 'A'.repeat(43), until: '2026-11-21T00:00:00.000Z', attempts: 5 }
    const store = shop([problem(502, { code: 'upstream-failed', detail: 'broken', redeem })])
    const body = "it's\n\\ two\tlines"
    const ran = await run([store.url, '--body', body], key)
    store.stop()
    const quoted = ran.err.match(/--body=(.*) --redeem/)?.[1] ?? ''
    const echoed = Bun.spawnSync(['bash', '-c', `printf %s ${quoted}`])
    expect(echoed.stdout.toString()).toBe(body)
  })

  test('error: a failed delivery prints how to redeem, and --redeem sends the request without a payment', async () => {
    const redeem = { token: `-${'A'.repeat(42)}`, until: '2026-11-21T00:00:00.000Z', attempts: 5 }
    const failed = problem(502, { code: 'upstream-failed', detail: 'broken', redeem })
    const store = shop([failed, () => new Response('late goods')])
    const first = await run([store.url, '--body', `{"it's":1}`], key)
    expect(first.code).toBe(1)
    expect(first.out).toBe('')
    expect(first.err).toContain(`--redeem=${redeem.token}`)
    expect(first.err).toContain(`--method POST --body='{"it'\\''s":1}'`)
    const second = await run([store.url, '--body', `{"it's":1}`, `--redeem=${redeem.token}`])
    store.stop()
    expect(second).toMatchObject({ code: 0, out: 'late goods' })
    expect(store.credentials[1]).toBe(redeem.token)
  })

  test('error: after the last redemption no other is offered', async () => {
    const redeem = { token: 'A'.repeat(43), until: '2026-11-21T00:00:00.000Z', attempts: 0 }
    const store = shop([problem(502, { code: 'upstream-failed', detail: 'broken', redeem })])
    const ran = await run([store.url], key)
    store.stop()
    expect(ran.err).toContain('no attempt is left')
    expect(ran.err).not.toContain('--redeem')
  })

  test('error: a request that is refused after the payment is not paid again', async () => {
    const refusal = problem(402, { code: 'verification-failed', detail: 'no', reason: 'x_y' })
    const store = shop([refusal])
    const ran = await run([store.url], key)
    store.stop()
    expect(ran.code).toBe(1)
    expect(ran.err).toContain('refused    402 verification-failed (x_y): no')
    expect(store.credentials).toHaveLength(1)
  })

  test('error: more than --max is not signed', async () => {
    const store = shop([() => new Response('never')], 1_000_001n)
    const dear = await run([store.url, '--max', '1'], key)
    expect(dear.code).toBe(1)
    expect(dear.err).toContain('More than --max 1 is asked')
    expect(dear.err).toContain('\n  1.000001 USDG on eip155:4663 by eip3009 (mpp)\n')
    expect(store.credentials).toEqual([])
    expect((await run([store.url, '--max', '1.000001'], key)).code).toBe(0)
    store.stop()
  })

  test('error: without --max and without a terminal at most a cent is signed', async () => {
    const store = shop([() => new Response('served')], 10_001n)
    const dear = await run([store.url], key)
    expect([dear.code, store.credentials]).toEqual([1, []])
    expect(dear.err).toContain(
      'More than 0.01 USD is asked, so --max must allow it:\n  0.010001 USDG',
    )
    store.stop()
    const cheap = shop([() => new Response('served')], 10_000n)
    expect((await run([cheap.url], key)).code).toBe(0)
    cheap.stop()
  })

  test('on a terminal a payment above a cent is signed after a yes', async () => {
    const store = shop([() => new Response('served')], 10_001n)
    for (const [typed, code] of [
      ['', 1],
      ['y', 0],
    ] as const) {
      let seen = ''
      const child = Bun.spawn([executable, 'pay', store.url], {
        env: { PATH: process.env.PATH ?? '', ...key },
        terminal: {
          cols: 200,
          data(_: unknown, bytes: Uint8Array) {
            seen += new TextDecoder().decode(bytes)
          },
        },
      })
      await until('the question', () => seen.includes(`to ${payee.address}? [y/N] `))
      expect(store.credentials).toEqual([])
      child.terminal?.write(`${typed}\r`)
      expect(await child.exited).toBe(code)
    }
    expect(store.credentials).toHaveLength(1)
    store.stop()
  })

  test('--dry-run shows what would be paid, with or without a key, and signs nothing', async () => {
    const store = shop([() => new Response('never')], 20_000n, [usdc, usdg])
    const word = await run([store.url, '--dry-run', '--network', 'robinhood'])
    expect(word).toMatchObject({ code: 0, out: '' })
    expect(word.err).toContain(`402        0.020000 USDG on eip155:4663 by eip3009 (mpp)
would pay  the wallet -> ${payee.address}; nothing is signed
or         0.020000 USDC on eip155:8453 by eip3009 (mpp)
`)
    const named = await run([store.url, '--dry-run', '--network', 'base'], key)
    expect(named.err).toContain(`would pay  ${payer.address} -> ${payee.address}`)
    expect(store.credentials).toEqual([])
    store.stop()
  })

  test('an offer whose balance is too low, or less certain, is paid after the others', async () => {
    const node = (chainId: number, atomic: number) =>
      Bun.serve({
        hostname: '127.0.0.1',
        port: 0,
        async fetch(request) {
          const { id, method } = (await request.json()) as { id: number; method: string }
          const balance = `0x${atomic.toString(16).padStart(64, '0')}`
          const result = method === 'eth_chainId' ? `0x${chainId.toString(16)}` : balance
          return Response.json({ jsonrpc: '2.0', id, result })
        },
      })
    const silent = Bun.serve({ hostname: '127.0.0.1', port: 0, fetch: () => new Promise(() => {}) })
    const nodes = [node(4663, 4999), node(4663, 5000), node(8453, 5000), node(1, 5000), silent]
    const store = shop([() => new Response('never')], undefined, [usdg, usdc])
    const paid = await Promise.all(
      nodes.map(async ({ port }) => {
        const rpc = `http://127.0.0.1:${port}`
        const options = ['--dry-run', '--protocol', 'x402', '--rpc', rpc]
        return (await run([store.url, ...options], key)).err.match(/^402 .* (USD[GC]) /)?.[1]
      }),
    )
    expect(paid).toEqual(['USDC', 'USDG', 'USDC', 'USDG', 'USDG'])
    store.stop()
    for (const each of nodes) each.stop(true)
  })

  test('attack: a problem without an end does not fill the memory', async () => {
    let size = 0
    const pull = (controller: ReadableStreamDefaultController) => {
      size += 1 << 20
      controller.enqueue(new Uint8Array(1 << 20).fill(32))
    }
    const headers = { 'content-type': 'application/problem+json' }
    const store = shop([() => new Response(new ReadableStream({ pull }), { status: 502, headers })])
    const ran = await run([store.url], key)
    expect(ran.code).toBe(1)
    expect(ran.err).toContain('refused    502 status 502')
    expect(size).toBeLessThan(64 << 20)
    store.stop()
  })

  test('attack: a 402 whose faults have no text is refused like one without an offer', async () => {
    const invalidParams = [{ name: { toString: 1, valueOf: 1 }, reason: 'x' }]
    using store = Bun.serve({
      port: 0,
      fetch: () => Response.json({ invalidParams }, { status: 402 }),
    })
    const ran = await run([store.url.href], key)
    expect(ran).toMatchObject({ code: 1, out: '' })
    expect(ran.err).toContain('The 402 has no offer that this buyer can pay.')
  })

  test('error: wrong options and keys are named, keys are not shown', async () => {
    const wrong: [string[], Record<string, string>, string][] = [
      [['nowhere'], key, 'not an absolute URL'],
      [['ftp://localhost/'], key, 'http and https'],
      [['http://127.0.0.1:1/'], key, 'did not answer'],
      [['http://127.0.0.1:1/', '--protocol', 'l402'], key, '--protocol is mpp or x402'],
      [
        ['http://127.0.0.1:1/', '--network', '8453'],
        key,
        '--network is base, base-sepolia, robinhood or a CAIP-2 id',
      ],
      [['http://127.0.0.1:1/', '--transfer', 'card'], key, '--transfer is'],
      [['http://127.0.0.1:1/', '--max', '1e9'], key, '--max is an amount'],
      [['http://127.0.0.1:1/', '--max', '01'], key, '--max is an amount'],
      [['http://127.0.0.1:1/', '--method', 'GET', '--body', 'x'], key, 'GET takes no --body'],
      [['http://127.0.0.1:1/'], {}, 'A private key is needed'],
      [['http://127.0.0.1:1/', '--key', '0x1234abcd'], {}, 'The key is not 32 bytes'],
      [['http://127.0.0.1:1/', '--key', 'f'.repeat(64)], {}, 'The key is not valid'],
    ]
    const runs = await Promise.all(
      wrong.map(async (each) => ({ each, ran: await run(each[0], each[1]) })),
    )
    for (const { each, ran } of runs) {
      const message = each[2]
      expect(ran).toMatchObject({ code: 1, out: '' })
      expect(ran.err).toContain(message)
      for (const secretText of ['1234abcd', 'f'.repeat(64), payer.privateKey.slice(2)])
        expect(ran.err).not.toContain(secretText)
    }
  })
})

describe('turnpike pay, against the gateway', () => {
  let world: TestWorld
  beforeAll(async () => {
    world = await testWorld()
  })
  afterAll(() => world?.stop())

  const forecast = '/m/weather/forecast?latitude=52.52&longitude=13.41'
  const ways: [protocol: string, network: NetworkConfig['id'], transfer: string][] = [
    ['mpp', 'eip155:8453', 'eip3009'],
    ['mpp', 'eip155:4663', 'permit2'],
    ['mpp', 'eip155:4663', 'eip3009'],
    ['x402', 'eip155:8453', 'eip3009'],
    ['x402', 'eip155:4663', 'permit2'],
    ['x402', 'eip155:4663', 'eip3009'],
  ]
  for (const [protocol, network, transfer] of ways) {
    test(`turnpike pay buys by ${protocol} and ${transfer} on ${network}`, async () => {
      const options = ['--protocol', protocol, '--network', network, '--transfer', transfer]
      const ran = await run([world.url + forecast, ...options], key)
      expect(ran.err).toContain('the published receipt key')
      expect(ran.err).toMatch(/settled by 0x[0-9a-f]{64}/)
      expect(ran.code).toBe(0)
      expect(JSON.parse(ran.out)).toHaveProperty('latitude')
      expect(ran.err).not.toContain(payer.privateKey.slice(2))
    })
  }

  test('error: a request with invalid parameters is not paid', async () => {
    const ran = await run([`${world.url}/m/weather/forecast`], key)
    expect(ran.code).toBe(1)
    expect(ran.err).toContain('The request would be refused: latitude')
  })

  test('a payment that was not delivered is redeemed by the printed command', async () => {
    const url = world.url + forecast
    const { port } = world.upstreams
    await world.upstreams.stop()
    const paid = await run([url, '--network', 'base'], key)
    expect(paid).toMatchObject({ code: 1, out: '' })
    expect(paid.err).toContain('refused    502 upstream-unreachable')
    const token = paid.err.match(/--redeem=(\S+)/)?.[1] ?? ''
    const upstreams = await startUpstreams({ merchants: world.config.merchants, port })
    const redeemed = await run([url, `--redeem=${token}`])
    await upstreams.stop()
    expect(JSON.parse(redeemed.out)).toHaveProperty('latitude')
    expect(redeemed.err).toContain('the published receipt key')
    expect(redeemed.code).toBe(0)
  })
})
