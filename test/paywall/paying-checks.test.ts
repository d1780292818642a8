import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import { account } from '../../src/demo/accounts'
import { ask, inSeconds, payMpp, settlementOf } from '../harness/buyer'
import { buy, type Shop, sign, startShop, type Terms } from '../harness/shop'
import { until } from '../harness/world'

let shop: Shop
beforeAll(async () => {
  shop = await startShop()
})
afterAll(() => shop.stop())
beforeEach(() => {
  shop.upstream.script = undefined
  shop.upstream.requests.length = 0
})

const item = () => `${shop.url}/m/shop/item`
const x402: Terms = { scheme: 'x402-eip3009' }
const permit2: Terms = { scheme: 'x402-permit2' }

type Refused = { body: Record<string, unknown>; headers: Headers }
type ExpectedProblem = { status: number; code: string; reason?: string }

/** Nothing is written, sent or forwarded. A 402 has a fresh challenge, and for x402 its answer. */
async function expectRefused(
  response: Response,
  refusal: ExpectedProblem,
  before: Record<string, number>,
): Promise<Refused> {
  const body = (await response.json()) as Refused['body']
  expect({ status: response.status, body }).toMatchObject({ status: refusal.status, body: refusal })
  expect(response.headers.has('payment-receipt')).toBe(false)
  expect(response.headers.has('www-authenticate')).toBe(refusal.status === 402)
  expect(response.headers.has('payment-required')).toBe(refusal.status === 402)
  if (refusal.status === 402) {
    const header = JSON.parse(atob(response.headers.get('payment-required') ?? '')) as typeof body
    expect([header.error, body.error]).toEqual(Array(2).fill(body.reason ?? body.code))
  }
  expect(shop.counts()).toEqual(before)
  expect(shop.upstream.requests).toHaveLength(0)
  return { body, headers: response.headers }
}

async function refuse(
  headers: Record<string, string>,
  refusal: ExpectedProblem,
  url = item(),
  init: RequestInit = {},
): Promise<Refused> {
  const before = shop.counts()
  const response = await fetch(url, { ...init, headers })
  const refused = await expectRefused(response, refusal, before)
  if (headers['payment-signature'] !== undefined) {
    const { success, errorReason, transaction, network } = settlementOf(response)
    expect({ success, errorReason, transaction, network }).toEqual({
      success: false,
      errorReason: refusal.reason ?? refusal.code,
      transaction: '',
      network: expect.stringMatching(/^eip155:\d+$/),
    })
    // The head of a 402 has no room for a copy under the old name.
    const copy = refusal.status === 402 ? null : response.headers.get('payment-response')
    expect(response.headers.get('x-payment-response')).toBe(copy)
  }
  return refused
}

describe('an MPP challenge is bound', () => {
  const invalid = { status: 402, code: 'invalid-challenge' }

  test('error: a challenge of one route, or without a body, pays neither for another route nor for a body', async () => {
    const credential = await sign(item())
    await refuse(credential, invalid, `${shop.url}/m/shop/other`)
    await refuse(credential, invalid, item(), { method: 'POST', body: '{}' })
    expect((await fetch(item(), { headers: credential })).status).toBe(200)
  })

  test('without a body the challenge of GET pays for POST, and the reverse', async () => {
    for (const [asked, bought] of [
      ['GET', 'POST'],
      ['POST', 'GET'],
    ] as const) {
      const credential = await sign(item(), { init: { method: asked } })
      const response = await fetch(item(), { method: bought, headers: credential })
      expect([bought, response.status]).toEqual([bought, 200])
      expect(shop.upstream.requests.at(-1)).toMatchObject({ method: bought, body: '' })
    }
  })

  test('error: a challenge of one body does not pay for another', async () => {
    const init = { method: 'POST', body: '{"n":1}' }
    const credential = await sign(item(), { init })
    await refuse(credential, invalid, item(), { method: 'POST', body: '{"n":2}' })
    await refuse(credential, invalid, item(), { method: 'POST' })
    const response = await fetch(item(), { ...init, headers: credential })
    expect(response.status).toBe(200)
    expect(shop.upstream.requests).toMatchObject([{ method: 'POST', body: '{"n":1}' }])
  })

  test('error: a challenge expires after 300 seconds, and not before', async () => {
    const late = await sign(item(), { validBefore: inSeconds(300 + 350) })
    const early = await sign(item(), { validBefore: inSeconds(300 + 290) })
    shop.advance(295_000)
    expect((await fetch(item(), { headers: early })).status).toBe(200)
    shop.upstream.requests.length = 0
    shop.advance(6_000)
    await refuse(late, { status: 402, code: 'payment-expired' })
    shop.advance(-301_000)
  })

  test('error: a challenge that we did not issue is refused', async () => {
    for (const echo of [
      { id: 'AAAA' },
      { realm: 'localhost:4020' },
      { expires: '2099-01-01T00:00:00Z' },
      { opaque: '' },
    ] as Record<string, string>[]) {
      const [challenge] = (await ask(item())).challenges
      if (challenge === undefined) throw new Error('no challenge')
      const forged = { ...challenge, raw: { ...challenge.raw, ...echo } }
      // The credential signs the echoed fields, so that only the HMAC is wrong.
      const own = { ...forged, id: forged.raw.id ?? '', realm: forged.raw.realm ?? '' }
      const authorization = await payMpp(own, account(1).local())
      await refuse({ authorization }, invalid)
    }
  })

  test('error: another method or intent is named as such', async () => {
    const [challenge] = (await ask(item())).challenges
    if (challenge === undefined) throw new Error('no challenge')
    const authorization = await payMpp(challenge, account(1).local(), { echo: { method: 'tempo' } })
    await refuse({ authorization }, { status: 400, code: 'method-unsupported' })
  })
})

describe('before money moves', () => {
  test('error: a malformed Authorization is 402 with a fresh challenge', async () => {
    const { headers } = await refuse(
      { authorization: 'Payment ???' },
      { status: 402, code: 'malformed-credential' },
    )
    expect(headers.get('www-authenticate')).toStartWith('Payment id="')
  })

  test('error: a malformed PAYMENT-SIGNATURE is 400', async () => {
    const malformed = { status: 400, code: 'malformed-payment-signature' }
    await refuse({ 'payment-signature': '{}' }, { ...malformed, reason: 'invalid_payload' })
    const old = btoa(JSON.stringify({ x402Version: 1, payload: {} }))
    await refuse({ 'payment-signature': old }, { ...malformed, reason: 'invalid_x402_version' })
  })

  test('error: more than one credential is 400', async () => {
    const many = { status: 400, code: 'multiple-credentials' }
    const [mpp, one, two] = await Promise.all([
      sign(item()),
      sign(item(), x402),
      sign(item(), x402),
    ])
    await refuse({ ...mpp, ...one }, many)
    await refuse({ ...one, 'x-payment': two['payment-signature'] ?? '' }, many)
    await refuse({ ...mpp, 'payment-redeem': 'A'.repeat(43) }, many)
    await refuse({ authorization: `${mpp.authorization}, ${mpp.authorization}` }, many)
    await refuse({ authorization: `Bearer x, ${mpp.authorization}` }, many)
  })

  test('error: an invalid parameter is 400, and the credential stays valid', async () => {
    const form = `${shop.url}/m/shop/form`
    for (const terms of [{}, x402, permit2] as Terms[]) {
      shop.upstream.requests.length = 0
      const credential = await sign(form, terms)
      const { body } = await refuse(credential, { status: 400, code: 'invalid-parameter' }, form)
      expect(body).toMatchObject({ invalidParams: [{ name: 'symbol', in: 'query' }] })
      expect((await fetch(`${form}?symbol=AAPL`, { headers: credential })).status).toBe(200)
    }
  })

  test('attack: what a schema checked is what the upstream reads, whatever type the buyer names', async () => {
    const form = `${shop.url}/m/shop/form`
    const post = (body: string) => ({ method: 'POST', body })
    const type = { 'content-type': 'application/x-www-form-urlencoded' }
    const wrong = { status: 400, code: 'invalid-parameter' }
    const credential = { ...(await sign(form, x402)), ...type }
    for (const [body, name] of [
      ['{"symbol":"A","symbol":"&symbol=B&x="}', 'symbol'],
      ['symbol=A', ''],
    ] as const) {
      const refused = await refuse(credential, wrong, form, post(body))
      expect(refused.body.invalidParams).toContainEqual(
        expect.objectContaining({ name, in: 'body' }),
      )
    }
    // As `curl -d` sends it.
    const paid = await fetch(form, { ...post('{"symbol":"&symbol=B&x="}'), headers: credential })
    expect(paid.status).toBe(200)
    expect(shop.upstream.requests.map(({ headers }) => headers['content-type'])).toEqual([
      'application/json',
    ])
  })

  test('attack: a long body is checked only after the signer of its credential', async () => {
    const form = `${shop.url}/m/shop/form`
    const post = (length: number) => ({
      method: 'POST',
      body: JSON.stringify({ symbol: 1, text: 'x'.repeat(length) }),
    })
    const from = account(2).address
    const forged = { status: 402, code: 'verification-failed' }
    const wrong = { status: 400, code: 'invalid-parameter' }
    await refuse(await sign(form, { ...x402, from }), wrong, form, post(100))
    await refuse(
      await sign(form, { ...x402, from }),
      { ...forged, reason: 'invalid_exact_evm_signature' },
      form,
      post(20_000),
    )
    await refuse(await sign(form, x402), wrong, form, post(20_000))
  })

  test('error: a signature of another key is refused without a simulation', async () => {
    const before = shop.taps['eip155:8453']?.calls.length ?? 0
    const wrong = { status: 402, code: 'verification-failed' }
    const from = account(2).address
    await refuse(await sign(item(), { from }), { ...wrong, reason: 'invalid_exact_evm_signature' })
    await refuse(await sign(item(), { ...x402, from }), {
      ...wrong,
      reason: 'invalid_exact_evm_signature',
    })
    const calls = shop.taps['eip155:8453']?.calls.slice(before).map(({ method }) => method) ?? []
    expect(calls.filter((method) => method !== 'eth_getCode')).toEqual([])
    await refuse(await sign(item(), { ...permit2, from }), {
      ...wrong,
      reason: 'invalid_permit2_signature',
    })
  })

  test('error: validBefore and deadline later than 360 seconds from now are refused', async () => {
    const validBefore = inSeconds(365)
    const expired = { status: 402, code: 'payment-expired' }
    const reason = 'invalid_exact_evm_payload_authorization_valid_before'
    await refuse(await sign(item(), { validBefore }), { ...expired, reason })
    await refuse(await sign(item(), { ...x402, validBefore }), { ...expired, reason })
    await refuse(await sign(item(), { ...permit2, validBefore }), {
      ...expired,
      reason: 'permit2_deadline_expired',
    })
    const soon = await buy(item(), { ...x402, validBefore: inSeconds(355) })
    expect(soon.status).toBe(200)
  })

  test('error: an authorization that has expired or is about to is refused', async () => {
    const expired = { status: 402, code: 'payment-expired' }
    const validBefore = inSeconds(4)
    const { body } = await refuse(await sign(item(), { ...x402, validBefore }), {
      ...expired,
      reason: 'invalid_exact_evm_payload_authorization_valid_before',
    })
    expect(body.detail).toContain(`validBefore is ${validBefore}, and the time here is `)
  })

  test('error: accepted is compared with our own offers', async () => {
    const network = 'eip155:1'
    const reason = 'invalid_payment_requirements'
    for (const [accepted, expected] of [
      [{ amount: '1' }, reason],
      [{ payTo: account(2).address }, reason],
      [{ asset: account(2).address }, reason],
      [{ maxTimeoutSeconds: 1 }, reason],
      [{ extra: {} }, reason],
      [{ scheme: 'upto' }, 'unsupported_scheme'],
      [{ network }, 'invalid_network'],
    ] as [Record<string, unknown>, string][])
      await refuse(await sign(item(), { ...x402, accepted }), {
        status: 402,
        code: 'verification-failed',
        reason: expected,
      })
  })

  test('amount in accepted may be a safe integer', async () => {
    expect((await buy(item(), { ...x402, accepted: { amount: 5000 } })).status).toBe(200)
  })

  test('error: one atomic unit more or less, or another payee, is refused', async () => {
    const wrong = { status: 402, code: 'verification-failed' }
    for (const value of [4999n, 5001n]) {
      await refuse(await sign(item(), { value }), wrong)
      await refuse(await sign(item(), { scheme: 'mpp-permit2', value }), wrong)
      await refuse(await sign(item(), { ...x402, value }), {
        ...wrong,
        reason: 'invalid_exact_evm_payload_authorization_value_mismatch',
      })
      await refuse(await sign(item(), { ...permit2, value }), {
        ...wrong,
        reason: 'permit2_amount_mismatch',
      })
    }
    const to = account(2).address
    await refuse(await sign(item(), { to }), wrong)
    await refuse(await sign(item(), { scheme: 'mpp-permit2', to }), wrong)
    await refuse(await sign(item(), { ...x402, to }), {
      ...wrong,
      reason: 'invalid_exact_evm_recipient_mismatch',
    })
  })

  test('error: an MPP nonce that is not the hash of the challenge is refused', async () => {
    const nonce = `0x${'12'.repeat(32)}` as const
    const wrong = { status: 402, code: 'verification-failed' }
    await refuse(await sign(item(), { nonce }), wrong)
    await refuse(await sign(item(), { scheme: 'mpp-permit2', nonce }), wrong)
  })

  test('error: permit2 of MPP needs its source, and a deadline within the challenge', async () => {
    const wrong = { status: 402, code: 'verification-failed' }
    const scheme = 'mpp-permit2'
    const source = `did:pkh:eip155:4663:${account(2).address}`
    await refuse(await sign(item(), { scheme, source }), wrong)
    await refuse(await sign(item(), { scheme, validBefore: inSeconds(310) }), wrong)
  })

  test('error: permit2 of MPP must have one entry each, with equal amounts', async () => {
    const to = account(2).address
    type Payload = {
      permit: { permitted: object[] }
      transferDetails: object[]
      witness: Record<string, string>
    }
    const broken: [code: string, change: (payload: Payload) => void][] = [
      ['verification-failed', ({ witness }) => Object.assign(witness, { validAfter: '1' })],
      ['verification-failed', ({ transferDetails: [only] }) => Object.assign(only ?? {}, { to })],
      [
        'verification-failed',
        ({ transferDetails: [only] }) => Object.assign(only ?? {}, { requestedAmount: '1' }),
      ],
      ['malformed-credential', ({ transferDetails: list }) => list.push(...list)],
      ['malformed-credential', ({ permit }) => permit.permitted.push(...permit.permitted)],
      ['malformed-credential', ({ permit }) => permit.permitted.splice(0)],
    ]
    for (const [code, change] of broken)
      await refuse(await altered(({ payload }) => change(payload as Payload)), {
        status: 402,
        code,
      })
    const sourceless = await altered((credential) => delete credential.source)
    await refuse(sourceless, { status: 402, code: 'verification-failed' })
  })

  test("error: the draft's own witness is refused, with the witness to sign", async () => {
    const credential = await altered(({ payload }) =>
      Object.assign(payload, { witness: { challengeHash: `0x${'ab'.repeat(32)}` } }),
    )
    const { body } = await refuse(credential, { status: 402, code: 'verification-failed' })
    expect(body.detail).toContain('x402ExactPermit2Proxy')
    expect(body.detail).toContain('Witness(address to,uint256 validAfter)')
  })

  /** An MPP permit2 credential with something changed after it was signed. */
  async function altered(
    change: (credential: { payload: object; source?: string }) => unknown,
  ): Promise<Record<string, string>> {
    const { authorization = '' } = await sign(item(), { scheme: 'mpp-permit2' })
    const encoded = authorization.slice('Payment '.length)
    const credential = JSON.parse(Buffer.from(encoded, 'base64url').toString())
    change(credential)
    const text = Buffer.from(JSON.stringify(credential)).toString('base64url')
    return { authorization: `Payment ${text}` }
  }

  test('error: a payment that the simulation refuses is not written and may be tried again', async () => {
    const poor = { buyer: 6 }
    const wrong = { status: 402, code: 'verification-failed' }
    await refuse(await sign(item(), poor), {
      ...wrong,
      reason: 'invalid_exact_evm_insufficient_balance',
    })
    await refuse(await sign(item(), { ...x402, ...poor }), {
      ...wrong,
      reason: 'invalid_exact_evm_insufficient_balance',
    })
    const unapproved = await sign(item(), { ...permit2, buyer: 3 })
    await refuse(unapproved, { ...wrong, reason: 'permit2_allowance_required' })
    await refuse(unapproved, { ...wrong, reason: 'permit2_allowance_required' })
  })

  test('error: every x402 failure has PAYMENT-RESPONSE, in every part that refuses it', async () => {
    const credential = await sign(item(), x402)
    const otherPaths = [
      ['/m/shop/nothing', 404, 'not-found'],
      ['/m/closed/item', 503, 'not-ready'],
    ] as const
    for (const [path, status, code] of otherPaths)
      await refuse(credential, { status, code }, shop.url + path)
    await refuse(credential, { status: 405, code: 'method-not-allowed' }, item(), {
      method: 'DELETE',
    })
    await refuse(credential, { status: 413, code: 'body-too-large' }, item(), {
      method: 'POST',
      body: new Uint8Array(10 * 1024 * 1024 + 1),
    })
  })
})

describe('a spent credential', () => {
  const spent: [name: string, terms: Terms, reason: string][] = [
    ['mpp', {}, 'invalid_exact_evm_nonce_already_used'],
    ['mpp permit2', { scheme: 'mpp-permit2' }, 'permit2_invalid_nonce'],
    ['x402 eip3009', x402, 'invalid_exact_evm_nonce_already_used'],
    ['x402 permit2', permit2, 'permit2_invalid_nonce'],
  ]
  for (const [name, terms, reason] of spent)
    test(`error: a credential that is spent by ${name} is 402 invalid-challenge, and nothing is forwarded`, async () => {
      const credential = await sign(item(), terms)
      const first = await fetch(item(), { headers: credential })
      expect(first.status).toBe(200)
      const undelivered = "SELECT id FROM payments WHERE delivery <> 'delivered'"
      await until('it is delivered', () => shop.rows(undelivered).length === 0)
      const counts = shop.counts()
      const calls = shop.calls()
      shop.upstream.requests.length = 0
      const again = await fetch(item(), { headers: credential })
      await expectRefused(again, { status: 402, code: 'invalid-challenge', reason }, counts)
      expect(shop.calls()).toBe(calls)
      if (!name.startsWith('x402')) return
      const { transaction } = settlementOf(first)
      expect(settlementOf(again)).toMatchObject({
        success: false,
        errorReason: reason,
        transaction,
      })
    })
})
