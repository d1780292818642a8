import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import * as Paid from '../../src/cli/buy/Credential'
import * as Terms from '../../src/cli/buy/Terms'
import { account } from '../../src/demo/accounts'
import * as Crypto from '../../src/protocol/Crypto'
import { isFault } from '../../src/protocol/Problem'
import * as Receipt from '../../src/protocol/Receipt'
import * as Transfer from '../../src/protocol/Transfer'
import * as X402 from '../../src/protocol/X402'
import { ask } from '../harness/buyer'
import { executable } from '../harness/executable'
import { units } from '../harness/meter'
import { payee, type Shop, startShop } from '../harness/shop'
import { freshWallet, setTokens } from '../harness/sponsor'

/** `turnpike pay --scheme upto`, which pays an answer by what it has used. */

// Programs start in each test, perhaps beside other work.
const merchant = `
[[merchants]]
slug = "model"
upstream = "https://shop.example.com"
networks = ["eip155:4663", "eip155:8453"]
[[merchants.routes]]
path = "/chat"
methods = ["POST"]
price = "0.05"
upstream_path = "/v1/chat/completions"
[merchants.routes.meter]
preset = "openai"
base = "0.0005"
${units}
`
let shop: Shop
beforeAll(async () => {
  shop = await startShop({ edit: (text) => text + merchant })
})
afterAll(() => shop?.stop())
beforeEach(() => {
  shop.upstream.script = undefined
  shop.upstream.requests.length = 0
})

const payer = account(2)
const privateKey = Uint8Array.fromHex(payer.privateKey.slice(2))
const chat = () => `${shop.url}/m/model/chat`
const body = '{"model":"m","max_tokens":1000,"messages":[]}'
const usage = (input: number, output: number) =>
  JSON.stringify({ usage: { prompt_tokens: input, completion_tokens: output } })
/** The ceiling of `body` in USDC: base, 45 bytes and 1,024 tokens of input, 1,000 of output. */
const ceiling = async (): Promise<string> => {
  const { required } = await ask(chat(), posting)
  const [accept] = required.accepts
  return `0.0${String(accept?.amount).padStart(5, '0')}`
}
const posting: RequestInit = {
  method: 'POST',
  headers: { 'content-type': 'application/json' },
  body,
}

async function run(url: string, args: readonly string[], key: string = payer.privateKey) {
  const child = Bun.spawn([executable, 'pay', url, ...args], {
    env: { PATH: process.env.PATH ?? '', PAY_KEY: key },
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

const byUse = (...more: string[]) => ['--scheme', 'upto', '--body', body, '--max', '1', ...more]
const onBase = ['--network', 'eip155:8453']

describe('against the gateway', () => {
  for (const [network, symbol] of [
    ['eip155:8453', 'USDC'],
    ['eip155:4663', 'USDG'],
  ] as const) {
    test(`a whole answer is charged by its use on ${network}`, async () => {
      shop.upstream.script = (_, reply) => reply.send(200, usage(7, 20))
      const before = await shop.balance(network, payee)
      const most = await ceiling()
      const ran = await run(chat(), byUse('--network', network))
      expect(ran).toMatchObject({ code: 0, out: usage(7, 20) })
      expect(ran.err).toContain(`402        up to ${most} ${symbol} on ${network} by permit2`)
      expect(ran.err).toContain(`ceiling    ${most} ${symbol}\n`)
      expect(ran.err).toContain(`charge     0.000707 ${symbol}: 7 input, 20 output\n`)
      expect(ran.err).toMatch(/settled by 0x[0-9a-f]{64}\n/)
      expect(ran.err).toContain('the published receipt key')
      expect(ran.err).not.toContain(payer.privateKey.slice(2))
      expect(await shop.balance(network, payee)).toBe(before + 707n)
    })
  }

  test('a stream is printed as it comes, then where its receipt is', async () => {
    const events = ['data: {"choices":[]}\n\n', `data: ${usage(5, 30)}\n\n`, 'data: [DONE]\n\n']
    shop.upstream.script = (_, reply) => {
      reply.head(200, { 'content-type': 'text/event-stream' })
      for (const event of events) reply.chunk(event)
      reply.end()
    }
    const before = await shop.balance('eip155:8453', payee)
    const ran = await run(chat(), byUse(...onBase))
    expect(ran).toMatchObject({ code: 0, out: events.join('') })
    const [row] = shop.rows('SELECT * FROM authorizations ORDER BY created_at DESC LIMIT 1')
    const url = `${new URL(chat()).origin}/api/payments/${row?.id}`
    expect(ran.err).toContain(`receipt    GET ${url} with the header Payment-Token: `)
    expect(ran.err).toMatch(/Payment-Token: [\w-]{43}\n/)
    expect(ran.err).toContain('charge     0.000805 USDC: 5 input, 30 output\n')
    expect(ran.err).toMatch(/settled by 0x[0-9a-f]{64}\n/)
    expect(ran.err).toContain('the published receipt key')
    expect(await shop.balance('eip155:8453', payee)).toBe(before + 500n + 5n + 300n)
  })

  test('an answer that failed costs nothing', async () => {
    shop.upstream.script = (_, reply) => reply.send(400, '{"error":"no"}')
    const before = await shop.balance('eip155:8453', payee)
    const ran = await run(chat(), byUse(...onBase))
    expect(ran).toMatchObject({ code: 1, out: '{"error":"no"}' })
    expect(ran.err).toContain('charge     0.000000 USDC\n')
    expect(ran.err).toContain('receipt    none: nothing is charged')
    expect(await shop.balance('eip155:8453', payee)).toBe(before)
    shop.upstream.script = (_, reply) => reply.send(503)
    const failed = await run(chat(), byUse(...onBase))
    expect(failed).toMatchObject({ code: 1, out: '' })
    expect(failed.err).toMatch(/refused {4}502 .* Nothing is charged/)
    expect(failed.err).not.toContain('--redeem')
    expect(await shop.balance('eip155:8453', payee)).toBe(before)
  })

  test('without --scheme the ceiling is paid, by exact', async () => {
    shop.upstream.script = (_, reply) => reply.send(200, usage(7, 20))
    const most = await ceiling()
    const before = await shop.balance('eip155:8453', payee)
    for (const scheme of [[], ['--scheme', 'exact']]) {
      const ran = await run(chat(), [...scheme, '--body', body, '--max', '1', ...onBase])
      expect(ran.code).toBe(0)
      expect(ran.err).not.toContain('up to')
      expect(ran.err).not.toContain('charge  ')
    }
    const paid = (await shop.balance('eip155:8453', payee)) - before
    expect(paid).toBe(2n * BigInt(most.replace('0.', '')))
  })

  test('a wallet that never approved Permit2 signs a permit of the ceiling', async () => {
    shop.upstream.script = (_, reply) => reply.send(200, usage(1, 1))
    const wallet = freshWallet()
    const chain = shop.chains['eip155:4663']
    const asset = shop.config.networks.find(({ id }) => id === 'eip155:4663')?.asset.address
    if (!chain || !asset) throw new Error('no chain')
    await setTokens(chain, asset, [wallet.address], 1_000_000n)
    const options = byUse('--network', 'eip155:4663', '--rpc', chain.url)
    const ran = await run(chat(), options, wallet.privateKey)
    expect(ran.code).toBe(0)
    const most = Number(BigInt((await ceiling()).replace('0.', '')))
    expect(ran.err).toContain(`permit     Permit2 may transfer ${most} atomic units, by signature`)
    expect(ran.err).toContain('charge     0.000511 USDG: 1 input, 1 output')
    expect(await shop.balance('eip155:4663', wallet.address)).toBe(1_000_000n - 511n)
  })

  test('error: a ceiling above --max is not signed', async () => {
    const ran = await run(chat(), byUse('--max', '0.000707'))
    expect(ran.code).toBe(1)
    expect(ran.err).toContain('More than --max 0.000707 is asked:\n  up to 0.0')
    expect(shop.upstream.requests).toEqual([])
  })

  test('error: a route that is not offered by use is not paid by exact instead', async () => {
    const ran = await run(`${shop.url}/m/shop/item`, ['--scheme', 'upto'])
    expect(ran.code).toBe(1)
    expect(ran.err).toContain('The 402 does not offer that. It offers:\n  0.005000')
    expect(shop.upstream.requests).toEqual([])
  })
})

test('error: options that exclude the scheme are named', async () => {
  const url = 'http://127.0.0.1:1/'
  const wrong: [string[], string][] = [
    [['--scheme', 'most'], '--scheme is exact, upto or channel.'],
    [['--scheme', 'upto', '--protocol', 'mpp'], '--scheme upto is a scheme of x402'],
    [['--scheme', 'upto', '--transfer', 'eip3009'], '--scheme upto is paid by permit2 only'],
    [['--scheme', 'exact', '--redeem', 'x'], '--redeem asks again without paying'],
  ]
  for (const [options, message] of wrong) {
    const ran = await run(url, options)
    expect(ran).toMatchObject({ code: 1, out: '' })
    expect(ran.err).toContain(message)
  }
})

describe('Terms', () => {
  const offered = async () => {
    const { required, response } = await ask(chat(), posting)
    const terms = Terms.decode(response.headers).filter(({ scheme }) => scheme === 'upto')
    return { required, response, terms }
  }

  test('offers that are only in the body are read, once each', async () => {
    const { response, required, terms } = await offered()
    const all = Terms.decode(response.headers, JSON.stringify(required))
    expect(all).toEqual(Terms.decode(response.headers))
    const first = required.accepts.slice(0, 1)
    const short = new Headers({
      'payment-required': Buffer.from(JSON.stringify({ ...required, accepts: first })).toString(
        'base64',
      ),
    })
    expect(Terms.decode(short)).toHaveLength(1)
    const whole = Terms.decode(short, JSON.stringify(required))
    expect(whole.map(Terms.describe)).toEqual(
      all.filter(({ source }) => source.kind === 'x402').map(Terms.describe),
    )
    expect(whole.filter(({ scheme }) => scheme === 'upto')).toHaveLength(terms.length)
  })

  test('the signature is of the ceiling, the proxy and the facilitator', async () => {
    const { terms } = await offered()
    expect(terms.map(({ network }) => network)).toEqual(['eip155:4663', 'eip155:8453'])
    for (const one of terms) {
      const random = new Uint8Array(32).fill(9)
      const paid = Paid.from(one, { privateKey, now: Date.now(), random })
      const parsed = X402.parsePayload(paid.value)
      if (isFault(parsed)) throw new Error(parsed.detail)
      const network = shop.config.networks.find(({ id }) => id === one.network)
      if (network === undefined) throw new Error(one.network)
      const offer = { network, payTo: one.payTo, amountAtomic: one.amountAtomic }
      const matches = X402.matchOffer(parsed, [offer], { takesUpto: true })
      if (isFault(matches)) throw new Error(matches.detail)
      expect(matches.map(({ transfer }) => transfer)).toEqual([paid.transfer])
      expect(paid.transfer.upto?.facilitator).toBe(account(0).address)
      const digest = Transfer.digest(paid.transfer, network.asset)
      expect(Crypto.recover(digest, paid.transfer.signature)).toBe(payer.address)
    }
  })

  test('error: an offer without its facilitator, or of another proxy, is omitted', async () => {
    const { required } = await offered()
    const accepted = required.accepts.find(({ scheme }) => scheme === 'upto')
    const of = (extra: object) =>
      Terms.decode(
        new Headers({
          'payment-required': Buffer.from(
            JSON.stringify({ accepts: [{ ...accepted, extra: { ...accepted?.extra, ...extra } }] }),
          ).toString('base64'),
        }),
      )
    expect(of({})).toHaveLength(1)
    expect(of({ facilitatorAddress: undefined })).toEqual([])
    expect(of({ facilitatorAddress: '0x12' })).toEqual([])
    expect(of({ assetTransferMethod: 'eip3009' })).toEqual([])
    expect(of({ spender: '0x402085c248EeA27D92E8b30b2C58ed07f9E20001' })).toEqual([])
  })
})

describe('a stream of a server that answers for its payments', () => {
  const transaction = `0x${'ab'.repeat(32)}` as const
  const receiptKey = new Uint8Array(32).fill(5)
  const token = 'A'.repeat(43)

  /** The 402 of the gateway, then a stream, then these answers of `/api/payments/pay_1`. */
  function serve(answers: readonly (object | undefined)[]) {
    let asked = 0
    const tokens: (string | null)[] = []
    const server = Bun.serve({
      hostname: '127.0.0.1',
      port: 0,
      async fetch(request) {
        const { pathname } = new URL(request.url)
        if (pathname === '/.well-known/x402')
          return Response.json({ receiptSigner: Crypto.addressOf(receiptKey) })
        if (pathname.startsWith('/api/payments/')) {
          tokens.push(request.headers.get('payment-token'))
          const answer = answers[asked++] ?? answers.at(-1)
          return answer ? Response.json(answer) : new Response('{}', { status: 404 })
        }
        if (!request.headers.has('payment-signature')) return fetch(chat(), posting)
        return new Response('data: [DONE]\n\n', {
          headers: {
            'content-type': 'text/event-stream',
            'payment-id': 'pay_1',
            'payment-token': token,
          },
        })
      },
    })
    return { url: `http://127.0.0.1:${server.port}/chat`, tokens, stop: () => server.stop(true) }
  }

  const receipt = (key = receiptKey) =>
    Receipt.sign(
      {
        network: 'eip155:8453',
        resourceUrl: chat(),
        payer: payer.address,
        issuedAt: 1_800_000_000,
        transaction,
      },
      key,
    )
  const open = { id: 'pay_1', state: 'sent', network: 'eip155:8453', ceiling: '20000' }

  test('the charge of a stream is shown as soon as it is settled', async () => {
    const settled = { ...open, amount: '12', units: { output: 3 }, transaction, receipt: receipt() }
    const server = serve([open, open, settled])
    const ran = await run(server.url, byUse(...onBase))
    server.stop()
    expect(ran).toMatchObject({ code: 0, out: 'data: [DONE]\n\n' })
    expect(ran.err).toContain(`charge     0.000012 USDC: 3 output\nsettled by ${transaction}\n`)
    expect(ran.err).toContain('the published receipt key')
    expect(server.tokens).toEqual([token, token, token])
  })

  test('a stream that costs nothing needs no receipt', async () => {
    const server = serve([{ ...open, state: 'void', amount: '0', units: {} }])
    const ran = await run(server.url, byUse(...onBase))
    server.stop()
    expect(ran.code).toBe(0)
    expect(ran.err).toContain('receipt    none: nothing is charged')
  })

  test('a stream whose charge could not be settled is reported', async () => {
    const server = serve([{ ...open, state: 'failed', amount: '12', units: { output: 3 } }])
    const ran = await run(server.url, byUse(...onBase))
    server.stop()
    expect(ran.code).toBe(0)
    expect(ran.err).toContain('charge     0.000012 USDC: 3 output\n')
    expect(ran.err).toContain('it could not be settled, so nothing moved')
    expect(ran.err).not.toContain('settled by')
  })

  test('error: a charge above the ceiling, or a false receipt, is reported', async () => {
    const dear = { ...open, amount: '50001', units: {}, transaction, receipt: receipt() }
    const forged = { ...dear, amount: '1', receipt: receipt(new Uint8Array(32).fill(6)) }
    for (const [answer, message] of [
      [dear, 'above the ceiling that was signed'],
      [forged, 'NOT the published receipt key'],
    ] as const) {
      const server = serve([answer])
      const ran = await run(server.url, byUse(...onBase))
      server.stop()
      expect(ran.code).toBe(1)
      expect(ran.err).toContain(message)
    }
  })

  test('a server that does not show it leaves the place of the receipt', async () => {
    const server = serve([undefined])
    const ran = await run(server.url, byUse(...onBase))
    server.stop()
    expect(ran.code).toBe(0)
    const url = `${new URL(server.url).origin}/api/payments/pay_1`
    expect(ran.err).toContain(`GET ${url} with the header Payment-Token: ${token}\n`)
    expect(ran.err).toContain('the charge is not settled yet, or the server does not answer')
  })
})
