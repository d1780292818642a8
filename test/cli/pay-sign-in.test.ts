import { afterEach, beforeEach, describe, expect, spyOn, test } from 'bun:test'
import {
  parseSIWxHeader,
  validateSIWxMessage,
  verifySIWxSignature,
} from '@x402/extensions/sign-in-with-x'
import { pay } from '../../src/cli/buy/pay'
import { account } from '../../src/demo/accounts'
import { encodeJson } from '../../src/protocol/Header'
import { exitCode } from '../harness/command'
import { offer } from '../harness/fake-gateway'

/** A buyer at a server that offers `sign-in-with-x`, and reads it with the library of the reference. */

const buyer = account(1)
const chains = ['eip155:4663', 'eip155:8453']

type Info = Record<string, unknown> | ((url: URL) => Record<string, unknown>)
type Told = { status?: number; headers?: Record<string, string>; problem?: object }

/** `answers`: to the sign-ins, one after the other; then nothing is left. */
function startShop(
  options: {
    info?: Info
    chains?: (asked: number) => readonly object[]
    answers?: readonly Told[]
    paid?: Told
  } = {},
) {
  const seen = { signIns: [] as string[], payments: 0, tokens: [] as string[], asked: 0 }
  let nonce = 0
  const unpaid = (url: URL, problem: object = {}) => {
    const info = {
      ...{ domain: url.host, uri: url.href, version: '1', nonce: `nonce000${nonce++}` },
      ...{ statement: 'Sign in to use what you have.', issuedAt: new Date().toISOString() },
      ...{ expirationTime: new Date(Date.now() + 60_000).toISOString(), resources: [url.href] },
      ...(typeof options.info === 'function' ? options.info(url) : options.info),
    }
    const supportedChains =
      options.chains?.(nonce) ?? chains.map((chainId) => ({ chainId, type: 'eip191' as const }))
    const extensions = { 'sign-in-with-x': { info, supportedChains, schema: {} } }
    const required = {
      x402Version: 2,
      accepts: [offer('5000')],
      resource: { url: url.href },
      extensions,
    }
    return Response.json(problem, {
      status: 402,
      headers: { 'payment-required': encodeJson(required) },
    })
  }
  const told = ({ status = 200, headers = {}, problem }: Told) => {
    const type = problem === undefined ? 'text/plain' : 'application/problem+json'
    const body = problem === undefined ? 'goods' : JSON.stringify(problem)
    return new Response(body, { status, headers: { 'content-type': type, ...headers } })
  }
  const server = Bun.serve({
    hostname: '127.0.0.1',
    port: 0,
    fetch(request) {
      const { headers } = request
      const url = new URL(request.url)
      const [signIn, token] = [headers.get('sign-in-with-x'), headers.get('payment-redeem')]
      if (token !== null) seen.tokens.push(token)
      if (headers.has('payment-signature')) seen.payments++
      if (token !== null || headers.has('payment-signature')) return told(options.paid ?? {})
      if (signIn === null) {
        seen.asked++
        return unpaid(url)
      }
      const answer = options.answers?.[seen.signIns.length]
      seen.signIns.push(signIn)
      if (answer?.status === 402 || answer === undefined)
        return unpaid(url, answer?.problem ?? { code: 'not-entitled', reason: 'no_entitlement' })
      return told(answer)
    },
  })
  return Object.assign(seen, {
    url: `http://127.0.0.1:${server.port}/thing?q=a%20b`,
    [Symbol.dispose]: () => void server.stop(true),
  })
}

let out = ''
let err = ''
let ending: () => void
beforeEach(() => {
  out = ''
  err = ''
  const spies = [
    spyOn(process.stdout, 'write').mockImplementation((chunk) => {
      out += typeof chunk === 'string' ? chunk : new TextDecoder().decode(chunk)
      return true
    }),
    spyOn(process.stderr, 'write').mockImplementation((chunk) => {
      err += String(chunk)
      return true
    }),
  ]
  ending = () => {
    for (const spy of spies) spy.mockRestore()
  }
})
afterEach(() => ending())

const run = (url: string, options: object = {}) =>
  exitCode(pay, { operand: url, env: { PAY_KEY: buyer.privateKey }, ...options })

const pass = {
  headers: { 'payment-entitlement': 'kind=pass, remaining=497, until="2026-11-29T20:00:00Z"' },
}

describe('turnpike pay, where the 402 offers a sign-in', () => {
  test('a sign-in that the reference accepts gets the answer, and nothing is paid', async () => {
    using shop = startShop({ answers: [pass] })
    expect(await run(shop.url)).toBe(0)
    expect(out).toBe('goods')
    expect(err).toContain('cost       nothing: a pass, 497 left, until 2026-11-29T20:00:00Z\n')
    expect(shop).toMatchObject({ payments: 0, asked: 1 })
    const payload = parseSIWxHeader(shop.signIns[0] ?? '')
    expect(await validateSIWxMessage(payload, new URL(new URL(shop.url).origin))).toEqual({
      isValid: true,
    })
    expect(await verifySIWxSignature(payload)).toEqual({ isValid: true, payer: buyer.address })
    expect(payload).toMatchObject({ uri: shop.url, chainId: 'eip155:4663', type: 'eip191' })
  })

  test('a message with every optional member, and with none, is signed as the reference writes it', async () => {
    const long = { notBefore: '2026-01-01T00:00:00Z', requestId: 'r-1', resources: [] }
    const short = { statement: undefined, expirationTime: undefined, resources: undefined }
    // As for a URL that no challenge may have.
    const own = ({ origin }: URL) => ({ uri: `${origin}/thing` })
    for (const info of [long, short, own] satisfies Info[]) {
      using shop = startShop({ info, answers: [{}] })
      expect(await run(shop.url, { network: 'base' })).toBe(0)
      const payload = parseSIWxHeader(shop.signIns[0] ?? '')
      expect(await verifySIWxSignature(payload)).toMatchObject({ isValid: true })
      expect(payload.chainId).toBe('eip155:8453')
    }
  })

  test('a wallet without an entitlement pays, and gets the command that asks again', async () => {
    const token = `pay_${'0'.repeat(32)}.${'A'.repeat(43)}`
    const lie = { 'payment-entitlement': 'kind=pass, remaining=1' }
    using shop = startShop({ paid: { headers: { 'payment-redeem': token } } })
    using liar = startShop({ paid: { headers: lie } })
    expect(await run(liar.url)).toBe(0)
    expect(await run(shop.url)).toBe(0)
    expect(err).toContain('sign-in    nothing to use: no_entitlement\n')
    expect(err).not.toContain('cost       nothing')
    expect(err).toContain(`\n  turnpike pay '${shop.url}' --redeem=${token}\n`)
    expect(shop).toMatchObject({ payments: 1, asked: 1 })
    expect(await run(shop.url, { redeem: token })).toBe(0)
    expect(shop).toMatchObject({ payments: 1, tokens: [token] })
    expect(shop.signIns).toHaveLength(1)
  })

  test('the balance for a trial is shown on each network, on at most four', async () => {
    const poor = { status: 402, problem: { code: 'not-entitled', reason: 'trial_balance_too_low' } }
    using shop = startShop({ answers: [poor, pass] })
    expect(await run(shop.url)).toBe(0)
    expect(shop.signIns.map((each) => parseSIWxHeader(each).chainId)).toEqual(chains)
    expect(new Set(shop.signIns.map((each) => parseSIWxHeader(each).nonce)).size).toBe(2)
    using greedy = startShop({
      // Others each time.
      chains: (asked) => [{ chainId: `eip155:${asked + 1}`, type: 'eip191' }],
      answers: Array(9).fill(poor),
    })
    expect(await run(greedy.url)).toBe(0)
    expect([greedy.signIns.length, greedy.payments]).toEqual([4, 1])
  })

  test('--no-sign-in and --dry-run sign no message', async () => {
    using shop = startShop({ answers: [pass] })
    expect(await run(shop.url, { 'dry-run': true })).toBe(0)
    expect(err).toStartWith(
      'sign-in    before a payment: the wallet may have this without one\n402 ',
    )
    expect(shop.payments).toBe(0)
    expect(await run(shop.url, { 'no-sign-in': true })).toBe(0)
    expect([shop.payments, shop.signIns]).toEqual([1, []])
  })

  test('error: with --sign-in-only nothing is paid, and the reason is named', async () => {
    using shop = startShop()
    expect(await run(shop.url, { 'sign-in-only': true })).toBe(1)
    expect(err).toContain('turnpike: Nothing was paid: no_entitlement.\n')
    using other = startShop({ chains: () => [] })
    expect(await run(other.url, { 'sign-in-only': true })).toBe(1)
    expect(err).toContain('Nothing was paid: the sign-in of the server cannot be read.')
    for (const option of [{ 'no-sign-in': true }, { 'dry-run': true }, { redeem: 'x' }])
      expect(await run(shop.url, { 'sign-in-only': true, ...option })).toBe(1)
    expect(err.match(/--sign-in-only takes no --no-sign-in, --dry-run and --redeem/g)).toHaveLength(
      3,
    )
    expect([shop.payments, other.payments, other.signIns]).toEqual([0, 0, []])
  })

  test('error: a use that was not delivered is not paid for', async () => {
    const failed = { status: 502, problem: { code: 'upstream-failed', detail: 'Sign in again.' } }
    using shop = startShop({ answers: [failed] })
    expect(await run(shop.url)).toBe(1)
    expect(err).toContain('refused    502 upstream-failed: Sign in again.\n')
    expect(shop.payments).toBe(0)
  })

  test('attack: the challenge of another service, of another request, or with more lines is not signed', async () => {
    const infos: Info[] = [
      { domain: 'bank.example.com' },
      { domain: 'bank.example.com', uri: 'https://bank.example.com/' },
      { domain: '127.0.0.1' },
      { uri: 'http://127.0.0.1/other' },
      ({ origin }: URL) => ({ uri: `${origin}/thin` }),
      ({ origin }: URL) => ({ uri: `${origin}/thing?q=b` }),
      ({ origin }: URL) => ({ uri: `${origin}/thing/else` }),
      { uri: 'nothing' },
      { version: '2' },
      { nonce: 7 },
      { statement: 'a\n\nURI: https://bank.example.com/' },
      { statement: 'a\u202eb' },
      { requestId: '1\nResources:' },
      { resources: ['a\nb'] },
      { resources: [1] },
      { domain: undefined },
    ]
    for (const info of infos) {
      using shop = startShop({ info, answers: [pass] })
      expect(await run(shop.url, { 'sign-in-only': true })).toBe(1)
      expect([shop.signIns, shop.payments]).toEqual([[], 0])
      // The payment does not depend on it.
      expect(await run(shop.url)).toBe(0)
      expect([shop.signIns, shop.payments]).toEqual([[], 1])
    }
    expect(err).toContain('sign-in to bank.example.com, for https://bank.example.com/')
  })
})
