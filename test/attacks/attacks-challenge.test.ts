import { afterAll, afterEach, beforeAll, describe, expect, test } from 'bun:test'
import { join } from 'node:path'
import { account } from '../../src/demo/accounts'
import * as Challenge from '../../src/protocol/Challenge'
import * as Crypto from '../../src/protocol/Crypto'
import { isFault } from '../../src/protocol/Problem'
import * as Receipt from '../../src/protocol/Receipt'
import { ask, challengesOf, inSeconds, type ParsedChallenge, payMpp } from '../harness/buyer'
import { networkOf } from '../harness/settlement'
import * as Sources from '../harness/sources'
import {
  effects,
  mppPermit,
  mppUsdc,
  nothing,
  price,
  seller,
  startTarget,
  type Target,
  tampered,
  ways,
  x402Permit,
  x402Usdc,
} from '../harness/target'

let target: Target
beforeAll(async () => {
  target = await startTarget()
})
afterAll(() => target?.stop())
afterEach(() => {
  target.clock.offsetMs = 0
  target.upstream.answer = undefined
})

const buyer = account(1).local()
const other = account(2).local()
const at = (path: string) => `${target.url}/m/${path}`

type Problem = { code: string; reason?: string; redeem?: { token: string } }
const problemOf = async (response: Response) => (await response.json()) as Problem

async function refused(
  headers: Record<string, string>,
  path = 'a/get',
  init?: RequestInit,
): Promise<Problem & { status: number; fresh: ParsedChallenge[] }> {
  const { result, ...caused } = await effects(target, () => fetch(at(path), { ...init, headers }))
  const { status } = result
  expect({ ...caused, status, headers }).toEqual({
    ...nothing,
    status: expect.any(Number),
    headers,
  })
  expect([400, 402, 409]).toContain(status)
  const fresh = challengesOf(result)
  return { ...(await problemOf(result)), status, fresh }
}

async function served(headers: Record<string, string>, path = 'a/get', init?: RequestInit) {
  const { result, ...caused } = await effects(target, () => fetch(at(path), { ...init, headers }))
  expect([result.status, caused.forwarded, caused.paidAtomic]).toEqual([200, 1, price])
  return result.text()
}

/** The first challenge, on 8453. */
async function challenge(path = 'a/get', init?: RequestInit): Promise<ParsedChallenge> {
  const [first] = (await ask(at(path), init)).challenges
  if (first === undefined) throw new Error('no challenge')
  return first
}

const encoded = (value: unknown) => Buffer.from(JSON.stringify(value)).toString('base64url')

/** A challenge with replaced parameters; the signed fields follow them. */
function altered(from: ParsedChallenge, raw: Record<string, string>): ParsedChallenge {
  const all = { ...from.raw, ...raw }
  const request = JSON.parse(Buffer.from(all.request ?? '', 'base64url').toString())
  return { id: all.id ?? '', realm: all.realm ?? '', request, raw: all }
}

describe('challenges', () => {
  test('attack 31: a challenge with any forged parameter is refused, though the credential signs the forgery', async () => {
    const real = await challenge()
    const { request, raw } = real
    const digest = 'sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:'
    const opaque = JSON.parse(Buffer.from(raw.opaque ?? '', 'base64url').toString())
    const otherRoute = await challenge('b/get')
    const flipped = real.id.replace(/^./, (first) => (first === 'A' ? 'B' : 'A'))
    const forgeries: Record<string, string>[] = [
      { id: flipped },
      { id: '' },
      { id: `${real.id}A` },
      { id: real.id.slice(0, -1) },
      { id: otherRoute.id },
      { request: encoded({ ...request, amount: '1' }) },
      { request: encoded({ ...request, recipient: buyer.address }) },
      { request: encoded({ ...request, currency: account(6).address }) },
      { request: encoded({ ...request, methodDetails: { ...request.methodDetails, chainId: 1 } }) },
      { expires: '2999-01-01T00:00:00Z' },
      { opaque: encoded({ ...opaque, route: 'b:GET /get' }) },
      { opaque: encoded({ ...opaque, n: 'x' }) },
      { opaque: otherRoute.raw.opaque ?? '' },
      { realm: 'example.com' },
      { realm: 'LOCALHOST' },
      { realm: '' },
      { digest },
      // The joined slots are the same text, split at another place.
      { expires: `${raw.expires}|`, digest: raw.opaque ?? '', opaque: '' },
      { realm: `localhost|evm`, method: 'charge' },
      { method: 'tempo' },
      { method: 'EVM' },
      { intent: 'session' },
    ]
    for (const forgery of forgeries) {
      const authorization = await payMpp(altered(real, forgery), buyer, {
        validBefore: inSeconds(200),
      })
      for (const path of ['a/get', 'b/get']) {
        const { code, status, fresh } = await refused({ authorization }, path)
        const codes = ['invalid-challenge', 'method-unsupported', 'malformed-credential']
        expect(codes).toContain(code)
        if (status === 402) expect(fresh).toHaveLength(2)
      }
    }
    for (const name of ['expires', 'opaque', 'request', 'id', 'realm']) {
      const { [name]: _, ...rest } = raw
      const authorization = await payMpp({ ...real, raw: rest }, buyer)
      await refused({ authorization })
    }
    await served({ authorization: await payMpp(real, buyer) })
  })

  test('attack 31: a consistent challenge of another secret or another realm is refused', async () => {
    const { asset } = networkOf('http://localhost', 'usdc')
    const network = networkOf('http://localhost', 'usdc', {
      asset: { ...asset, transfer: ['eip3009'] },
    })
    const offer = { network, payTo: seller, amountAtomic: price }
    for (const realm of ['localhost', 'example.com']) {
      const secret = new Uint8Array(32).fill(7)
      const compiled = Challenge.compile({ realm, offers: [offer], routeId: 'a:GET /get', secret })
      const expires = new Date(Date.now() + 300_000).toISOString()
      const value = Challenge.issue(compiled, { expires, salt: btoa('abcdefghijklmnopqr') })
      const [forged] = challengesOf(new Response('', { headers: { 'www-authenticate': value } }))
      if (forged === undefined) throw new Error('no challenge')
      const { code } = await refused({ authorization: await payMpp(forged, buyer) })
      expect(code).toBe('invalid-challenge')
    }
  })

  test('attack 31: an expired challenge is refused, though the authorization is valid', async () => {
    const real = await challenge()
    target.clock.offsetMs = 301_000
    const authorization = await payMpp(real, buyer, { validBefore: inSeconds(600) })
    const { code, fresh } = await refused({ authorization })
    expect(code).toBe('payment-expired')
    expect(fresh[0]?.raw.expires !== real.raw.expires).toBe(true)
  })

  test('attack 31: one challenge pays once, with whichever method it is signed', async () => {
    const asked = await ask(at('a/get'))
    const robinhood = asked.challenges[1]
    if (robinhood === undefined) throw new Error('no challenge')
    await served(await mppPermit.pay(asked, buyer))
    expect((await refused({ authorization: await payMpp(robinhood, buyer) })).code).toBe(
      'invalid-challenge',
    )
  })

  test('GET and POST of a route share their challenges while there is no body', async () => {
    const post = { method: 'POST' }
    for (const [issued, used] of [
      [undefined, post],
      [post, undefined],
    ]) {
      const headers = { authorization: await payMpp(await challenge('a/both', issued), buyer) }
      await served(headers, 'a/both', used)
      expect(target.upstream.requests.at(-1)?.method).toBe(used?.method ?? 'GET')
      // It was spent: it pays for neither method again.
      for (const init of [undefined, post]) await refused(headers, 'a/both', init)
    }
  })

  test('attack 32: the challenge of a GET pays neither for a body nor for another route', async () => {
    const headers = { authorization: await payMpp(await challenge('a/both'), buyer) }
    const post = { method: 'POST' }
    const told = await refused(headers, 'a/both', { ...post, body: '{"model":"dear"}' })
    expect([told.status, told.code]).toEqual([402, 'invalid-challenge'])
    for (const path of ['a/post', 'a/get', 'b/both']) {
      const init = path === 'a/post' ? post : undefined
      expect((await refused(headers, path, init)).code).toBe('invalid-challenge')
    }
    // A large body has no digest: its challenge is for a POST with a body.
    const large = { ...post, body: JSON.stringify('x'.repeat(1_100_000)) }
    const other = { authorization: await payMpp(await challenge('a/both', large), buyer) }
    expect((await refused(headers, 'a/both', large)).code).toBe('invalid-challenge')
    await served(other, 'a/both', large)
    await served(headers, 'a/both', { ...post, body: '' })
  })

  test('attack 32: a body that is replaced after the challenge is refused', async () => {
    const init = { method: 'POST', body: '{"amount":1}' }
    for (const way of [mppUsdc, mppPermit]) {
      const headers = await way.pay(await ask(at('a/post'), init), buyer)
      for (const body of ['{"amount":1000}', '{"amount":1} ', '', undefined]) {
        const swapped = { method: 'POST', ...(body === undefined ? {} : { body }) }
        expect((await refused(headers, 'a/post', swapped)).code).toBe('invalid-challenge')
      }
      await served(headers, 'a/post', init)
      expect(target.upstream.requests.at(-1)?.body).toBe(init.body)
      await refused(headers, 'a/post', { method: 'POST', body: '{"amount":1000}' })
    }
  })
})

describe('idempotency keys', () => {
  const key = () => crypto.randomUUID()

  for (const way of ways) {
    test(`attack 33: only the same payer gets the stored answer, ${way.name}`, async () => {
      const mine = { 'idempotency-key': key() }
      target.upstream.answer = () => new Response(`for ${mine['idempotency-key']}`)
      const paid = { ...(await way.pay(await ask(at('a/get')), buyer)), ...mine }
      const answer = await served(paid)

      // Neither the key alone nor the payer's name gives access.
      expect((await refused(mine)).code).toBe('payment-required')
      const forged = await way.pay(await ask(at('a/get')), other, { from: buyer.address })
      await refused({ ...forged, ...mine })
      // The key of another payer is a different key, though its text is the same.
      target.upstream.answer = () => new Response('for the other')
      expect(await served({ ...(await way.pay(await ask(at('a/get')), other)), ...mine })).toBe(
        'for the other',
      )
      // Another request is a conflict, and its money does not move.
      for (const path of ['a/get?x=1', 'a/get/tail']) {
        const fresh = await way.pay(await ask(at(path)), buyer)
        const { status, code } = await refused({ ...fresh, ...mine }, path)
        expect([status, code]).toEqual([409, 'idempotency-conflict'])
        expect((await fetch(at(path), { headers: fresh })).status).toBe(200)
      }
      // A new credential of the payer gets the answer again and is not spent.
      const again = await way.pay(await ask(at('a/get')), buyer)
      for (const headers of [again, again]) {
        const { result, ...caused } = await effects(target, () =>
          fetch(at('a/get'), { headers: { ...headers, ...mine } }),
        )
        expect(await result.text()).toBe(answer)
        expect(result.headers.get('idempotency-replayed')).toBe('true')
        expect(caused).toEqual(nothing)
      }
      expect(
        (await fetch(at('b/get'), { headers: await way.pay(await ask(at('b/get')), buyer) }))
          .status,
      ).toBe(200)
      await served(again)
    })

    test(`attack 33: the spent credential with its key gets the stored answer, ${way.name}`, async () => {
      const mine = { 'idempotency-key': key() }
      const paid = await way.pay(await ask(at('a/get')), buyer)
      const answer = await served({ ...paid, ...mine })
      const { result, ...caused } = await effects(target, () =>
        fetch(at('a/get'), { headers: { ...paid, ...mine } }),
      )
      expect([result.status, await result.text()]).toEqual([200, answer])
      expect(result.headers.get('idempotency-replayed')).toBe('true')
      expect(caused).toEqual(nothing)
      // The public data of the chain is not enough: only the buyer has the key.
      await refused(paid)
      await refused({ ...paid, 'idempotency-key': key() })
      for (const path of ['a/get?x=1', 'a/get/tail', 'b/get', 'a/both'])
        await refused({ ...paid, ...mine }, path)
    })
  }

  test('attack 33: a request without a payment can neither reserve a key nor keep it', async () => {
    const mine = { 'idempotency-key': key() }
    const bad = await x402Usdc.pay(await ask(at('a/get')), other, { from: buyer.address })
    const poor = await x402Usdc.pay(await ask(at('a/get')), account(6).local())
    const good = await x402Usdc.pay(await ask(at('a/get')), buyer)
    const { result, ...caused } = await effects(target, () =>
      Promise.all([
        ...Array.from({ length: 10 }, () => fetch(at('a/get'), { headers: { ...bad, ...mine } })),
        fetch(at('a/get'), { headers: { ...poor, ...mine } }),
        fetch(at('a/get'), { headers: { ...good, ...mine } }),
      ]),
    )
    expect(result.map(({ status }) => status).filter((status) => status === 200)).toHaveLength(1)
    expect(result.at(-1)?.status).toBe(200)
    expect(caused).toMatchObject({ forwarded: 1, paidAtomic: price })
  })

  test('attack 33: two concurrent credentials with one key pay once', async () => {
    for (const way of [x402Usdc, x402Permit, mppUsdc]) {
      const mine = { 'idempotency-key': key() }
      const asked = await Promise.all(Array.from({ length: 5 }, () => ask(at('a/get'))))
      const headers = await Promise.all(asked.map((each) => way.pay(each, buyer)))
      const { result, ...caused } = await effects(target, () =>
        Promise.all(headers.map((each) => fetch(at('a/get'), { headers: { ...each, ...mine } }))),
      )
      const statuses = result.map(({ status }) => status).sort()
      expect(statuses[0]).toBe(200)
      expect(statuses.every((status) => status === 200 || status === 409)).toBe(true)
      expect(caused).toMatchObject({ forwarded: 1, paidAtomic: price })
    }
  })

  test('attack 33: the payment-identifier is an idempotency key, and both must be equal', async () => {
    const id = `pay_${key()}`
    const identifier = { 'payment-identifier': { info: { required: false, id }, schema: {} } }
    const withId = async () =>
      tampered(await x402Usdc.pay(await ask(at('a/get')), buyer), { extensions: identifier })
    const first = await withId()
    expect((await refused({ ...first, 'idempotency-key': key() })).code).toBe('bad-request')
    const answer = await served(first)
    const second = await fetch(at('a/get'), { headers: await withId() })
    expect([await second.text(), second.headers.get('idempotency-replayed')]).toEqual([
      answer,
      'true',
    ])
    const stranger = tampered(await x402Usdc.pay(await ask(at('a/get')), other), {
      extensions: identifier,
    })
    await served(stranger)
  })

  test('error: invalid keys are refused before anything is paid', async () => {
    const headers = await x402Usdc.pay(await ask(at('a/get')), buyer)
    for (const bad of ['', ' ', 'a b', 'a, b', 'x'.repeat(256), '\u00e9', '\t'].slice(2)) {
      const { code, status } = await refused({ ...headers, 'idempotency-key': bad })
      expect([status, code]).toEqual([400, 'bad-request'])
    }
    for (const id of ['short', 'x'.repeat(129), 'has space in the id', 5, {}]) {
      const extensions = { 'payment-identifier': { info: { id }, schema: {} } }
      expect((await refused(tampered(headers, { extensions }))).status).toBe(400)
    }
    await served(headers)
  })
})

describe('receipts and tokens', () => {
  test('attack 34: a receipt names what was bought, and any change invalidates it', async () => {
    for (const way of [mppUsdc, x402Permit]) {
      const headers = await way.pay(await ask(at('a/get?x=1')), buyer)
      const response = await fetch(at('a/get?x=1'), { headers })
      const text =
        response.headers.get('payment-receipt') ?? response.headers.get('payment-response')
      const receipt = Receipt.parse(text ?? '')
      if (isFault(receipt)) throw new Error(receipt.detail)
      expect(Receipt.verify(receipt)).toBe(target.app.receiptAddress)
      expect(receipt.payload).toMatchObject({
        payer: buyer.address,
        transaction: target.payments().at(-1)?.transaction_hash,
      })
      expect(receipt.payload.resourceUrl).toMatch(
        /^http:\/\/localhost\/m\/a\/get\?x=1#request=[0-9a-f]{64}&amount=5000$/,
      )
      const forgeries: Partial<Receipt.Signed['payload']>[] = [
        { network: 'eip155:1' },
        { resourceUrl: 'http://localhost/m/b/get' },
        { resourceUrl: receipt.payload.resourceUrl.replace('x=1', 'x=2') },
        { payer: other.address },
        { issuedAt: receipt.payload.issuedAt + 1 },
        { transaction: `0x${'0'.repeat(64)}` },
      ]
      for (const forgery of forgeries) {
        const payload = { ...receipt.payload, ...forgery }
        expect(Receipt.verify({ ...receipt, payload })).not.toBe(target.app.receiptAddress)
      }
      const own = Receipt.sign(
        { ...receipt.payload, payer: buyer.address, transaction: `0x${'1'.repeat(64)}` },
        Crypto.bytes(account(1).privateKey),
      )
      expect(Receipt.verify(own)).toBe(buyer.address)
    }
  })

  test('attack 34: a receipt pays for nothing', async () => {
    const headers = await mppUsdc.pay(await ask(at('a/get')), buyer)
    const receipt = (await fetch(at('a/get'), { headers })).headers.get('payment-receipt') ?? ''
    for (const header of ['authorization', 'payment-signature', 'x-payment', 'payment-redeem'])
      await refused({ [header]: header === 'authorization' ? `Payment ${receipt}` : receipt })
    expect((await refused({ 'payment-receipt': receipt })).code).toBe('payment-required')
  })

  test('attack 34: a redeem token serves its own request only, and no guess does', async () => {
    target.upstream.answer = () => new Response('broken', { status: 500 })
    const init = { method: 'POST', body: '{"a":1}' }
    const paid = await x402Usdc.pay(await ask(at('a/both'), init), buyer)
    const failed = await fetch(at('a/both'), { ...init, headers: paid })
    expect(failed.status).toBe(502)
    const token = (await problemOf(failed)).redeem?.token ?? ''
    target.upstream.answer = undefined
    // The public data of the chain does not redeem.
    expect((await refused(paid, 'a/both', init)).status).toBe(402)
    const redeem = { 'payment-redeem': token }
    for (const [path, other] of [
      ['b/both', init],
      ['a/post', init],
      ['a/both?x=1', init],
      ['a/both/tail', init],
      ['a/both', {}],
      ['a/both', { ...init, body: '{"a":2}' }],
    ] as const)
      expect((await refused(redeem, path, other)).code).toBe('payment-mismatch')
    const guesses = [
      token.slice(0, -1),
      `${token}A`,
      token.replace(/^./, (first) => (first === 'A' ? 'B' : 'A')),
      token.toLowerCase() === token ? token.toUpperCase() : token.toLowerCase(),
      `${token}=`,
      `${token}'--`,
      '',
    ]
    for (const guess of guesses)
      expect((await refused({ 'payment-redeem': guess }, 'a/both', init)).code).toBe(
        'invalid-redeem-token',
      )
    const { result: redeemed } = await effects(target, () =>
      Promise.all(
        Array.from({ length: 5 }, () => fetch(at('a/both'), { ...init, headers: redeem })),
      ),
    )
    expect(redeemed.filter(({ status }) => status === 200)).toHaveLength(1)
    const late = await fetch(at('a/both'), { ...init, headers: redeem })
    expect([late.status, (await problemOf(late)).code]).toEqual([410, 'redeem-exhausted'])
  })
})

describe('secrets', () => {
  test('attack 42: the comparison of secrets covers every character', () => {
    const reads: number[] = []
    const spy = (text: string) => {
      const watched = new String(text)
      return Object.assign(watched, {
        charCodeAt: (index: number) => {
          reads.push(index)
          return text.charCodeAt(index)
        },
      }) as unknown as string
    }
    for (const guess of ['XXXXXXXX', 'abcdefgX', 'abcdefgh']) {
      reads.length = 0
      expect(Crypto.equal(spy('abcdefgh'), guess)).toBe(guess === 'abcdefgh')
      expect(reads).toEqual([0, 1, 2, 3, 4, 5, 6, 7])
    }
  })

  test('attack 42: no file with a keyed hash compares it by ===', async () => {
    const sources = await Sources.read(join(import.meta.dir, '../..'))
    const keyed = sources.filter(
      ({ path, text }) =>
        path.startsWith('src/') &&
        (/new Bun\.CryptoHasher\('[^']+', /.test(text) || /\badminToken\b/.test(text)),
    )
    expect(keyed.map(({ path }) => path)).toContain('src/protocol/Challenge.ts')
    const secretNames =
      /\b(?:id|digest|hmac|mac|token|secret|adminToken)\s*[!=]==(?!\s*undefined\b)/
    for (const { path, code } of keyed) {
      const lines = code.split('\n').filter((line) => secretNames.test(line))
      expect({ path, lines }).toEqual({ path, lines: [] })
    }
  })
})
