import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import fc from 'fast-check'
import { account } from '../../src/demo/accounts'
import * as Facilitation from '../../src/protocol/Facilitation'
import { type Body, charging, type Made, makeBody, post } from '../harness/facilitation'
import { runs } from '../harness/samples'
import { type Shop, startShop } from '../harness/shop'

/** Requests that no honest resource server sends: never a 5xx, never a row, never a success. */

let shop: Shop
let good: Body
beforeAll(async () => {
  shop = await startShop({
    adjust: (config) => ({
      ...config,
      facilitator: {
        ...config.facilitator,
        verifyPerMinute: 1e6,
        settlePerMinute: 1e6,
        uptoWithoutKeys: true,
      },
    }),
  })
})
afterAll(() => shop?.stop())
beforeEach(async () => {
  good = await make()
})

function make(made?: Made, id = 'eip155:8453') {
  const network = shop.config.networks.find((each) => each.id === id)
  if (network === undefined) throw new Error(`no ${id}`)
  return makeBody(network, made)
}

/** A value that is not an object replaces the member; undefined removes it. */
function changed(body: Body, path: string, value: unknown): Body {
  const copy = structuredClone(body)
  const names = path.split('.')
  const last = names.pop() ?? ''
  let at: Record<string, unknown> = copy as unknown as Record<string, unknown>
  for (const name of names) at = at[name] as Record<string, unknown>
  if (value === undefined) delete at[last]
  else at[last] = value
  return copy
}

async function expectMalformed(what: string, body: unknown, code: string): Promise<void> {
  const verified = await post(`${shop.url}/verify`, body)
  expect([what, verified.status, verified.json.invalidReason]).toEqual([what, 400, code])
  expect(verified.json).toMatchObject({ isValid: false, status: 400, code: 'bad-request' })
  const settled = await post(`${shop.url}/settle`, body)
  expect([what, settled.status, settled.json.errorReason]).toEqual([what, 400, code])
  expect(settled.json).toMatchObject({
    success: false,
    transaction: '',
    network: expect.stringMatching(/^[-a-z0-9]{3,8}:[-\w]{1,32}$/),
  })
}

const authorization = 'paymentPayload.payload.authorization'

describe('malformed requests', () => {
  const bodies: readonly [string, string, unknown, string][] = [
    ['no payload', 'paymentPayload', undefined, 'invalid_payload'],
    ['a payload of text', 'paymentPayload', 'x', 'invalid_payload'],
    ['no inner payload', 'paymentPayload.payload', undefined, 'invalid_payload'],
    ['no accepted', 'paymentPayload.accepted', undefined, 'invalid_payload'],
    ['version 3', 'paymentPayload.x402Version', 3, 'invalid_x402_version'],
    ['version 1 in the form of version 2', 'paymentPayload.x402Version', 1, 'invalid_payload'],
    ['version "2"', 'paymentPayload.x402Version', '2', 'invalid_x402_version'],
    ['no authorization', authorization, undefined, 'invalid_payload'],
    ['no signature', 'paymentPayload.payload.signature', undefined, 'invalid_payload'],
    ['an empty signature', 'paymentPayload.payload.signature', '0x', 'invalid_payload'],
    ['half a byte', 'paymentPayload.payload.signature', '0x123', 'invalid_payload'],
    [
      'an endless signature',
      'paymentPayload.payload.signature',
      `0x${'00'.repeat(5000)}`,
      'invalid_payload',
    ],
    ['a hex amount', `${authorization}.value`, '0x1388', 'invalid_payload'],
    ['an exponent', `${authorization}.value`, '5e3', 'invalid_payload'],
    ['a float', `${authorization}.value`, 5000.5, 'invalid_payload'],
    ['a leading zero', `${authorization}.value`, '05000', 'invalid_payload'],
    ['a negative amount', `${authorization}.value`, '-1', 'invalid_payload'],
    ['2^256', `${authorization}.value`, String(2n ** 256n), 'invalid_payload'],
    ['a short nonce', `${authorization}.nonce`, '0x01', 'invalid_payload'],
    ['a payer of text', `${authorization}.from`, 'vitalik.eth', 'invalid_payload'],
    ['no requirements', 'paymentRequirements', undefined, 'invalid_payment_requirements'],
    ['a list of requirements', 'paymentRequirements', [], 'invalid_payment_requirements'],
    ['another scheme', 'paymentRequirements.scheme', 'subscription', 'unsupported_scheme'],
    ['no scheme', 'paymentRequirements.scheme', undefined, 'unsupported_scheme'],
    ['another network', 'paymentRequirements.network', 'eip155:1', 'invalid_network'],
    ['a family', 'paymentRequirements.network', 'eip155:*', 'invalid_network'],
    ['a name', 'paymentRequirements.network', 'base', 'invalid_network'],
    ['a number', 'paymentRequirements.network', 8453, 'invalid_payment_requirements'],
    [
      'a required hex amount',
      'paymentRequirements.amount',
      '0x1388',
      'invalid_payment_requirements',
    ],
    ['no amount', 'paymentRequirements.amount', undefined, 'invalid_payment_requirements'],
    ['a bad asset', 'paymentRequirements.asset', '0x12', 'invalid_payment_requirements'],
    ['a bad payee', 'paymentRequirements.payTo', null, 'invalid_payment_requirements'],
    [
      'a negative wait',
      'paymentRequirements.maxTimeoutSeconds',
      -1,
      'invalid_payment_requirements',
    ],
    [
      'a wait of text',
      'paymentRequirements.maxTimeoutSeconds',
      '60',
      'invalid_payment_requirements',
    ],
  ]
  for (const [what, path, value, code] of bodies) {
    test(`error: ${what} at ${path} is 400 ${code}`, () =>
      expectMalformed(what, changed(good, path, value), code))
  }

  test('error: JSON that parsers disagree about is 400, before any other check', async () => {
    const text = JSON.stringify(good)
    const twice = text.replace('"value":"5000"', '"value":"5000","value":"1"')
    const deep = `{"paymentPayload":${'['.repeat(5000)}${']'.repeat(5000)}}`
    for (const body of ['', 'null', '[]', '{', twice, deep, text.replace('"extra"', '"__proto__"')])
      await expectMalformed(body.slice(0, 40), body, 'invalid_payload')
    const response = await fetch(`${shop.url}/verify`, {
      method: 'POST',
      body: new Uint8Array([0x7b, 0xff, 0x7d]),
    })
    expect(response.status).toBe(400)
  })

  test('error: a body above 256 KiB is 413, another method 405', async () => {
    const long = await post(`${shop.url}/settle`, `{"x":"${'y'.repeat(300_000)}"}`)
    expect(long.status).toBe(413)
    expect(long.json).toMatchObject({ success: false, code: 'body-too-large' })
    for (const path of ['verify', 'settle']) {
      const got = await fetch(`${shop.url}/${path}`)
      expect([got.status, got.headers.get('allow')]).toEqual([405, 'POST, OPTIONS'])
    }
    const posted = await fetch(`${shop.url}/supported`, { method: 'POST' })
    expect([posted.status, posted.headers.get('allow')]).toEqual([405, 'GET, HEAD, OPTIONS'])
  })
})

test('pages of other origins may send requests, and a query changes nothing', async () => {
  const headers = { origin: 'https://shop.example.com', 'access-control-request-method': 'POST' }
  const preflight = await fetch(`${shop.url}/settle`, { method: 'OPTIONS', headers })
  expect(preflight.status).toBe(204)
  expect(preflight.headers.get('access-control-allow-methods')).toBe('POST, OPTIONS')
  const { status, headers: answered, json } = await post(`${shop.url}/facilitator/verify?x=1`, good)
  expect([status, json.isValid]).toEqual([200, true])
  expect(answered.get('access-control-allow-origin')).toBe('*')
  expect(answered.get('cache-control')).toBe('no-store')
  expect((await fetch(`${shop.url}/facilitator/settled`)).status).toBe(404)
})

describe('malformed requests of the scheme upto', () => {
  const permit = 'paymentPayload.payload.permit2Authorization'
  const faults: readonly [string, unknown, string][] = [
    [`${permit}.witness.facilitator`, '0x12', 'facilitator'],
    [`${permit}.witness.facilitator`, 7, 'facilitator'],
    [`${permit}.witness.facilitator`, ['0x12'], 'facilitator'],
    [`${permit}.witness.to`, undefined, 'to'],
    [`${permit}.witness.validAfter`, '-1', 'validAfter'],
    [`${permit}.witness`, null, 'witness'],
    [`${permit}.permitted.amount`, '0x1388', 'amount'],
    [`${permit}.permitted.amount`, String(2n ** 256n), 'amount'],
    [`${permit}.permitted.token`, 'USDC', 'token'],
    [`${permit}.spender`, '0x', 'spender'],
    [`${permit}.nonce`, `0x${'0'.repeat(65)}`, 'nonce'],
    [`${permit}.nonce`, -1, 'nonce'],
    [`${permit}.deadline`, '1e9', 'deadline'],
    [`${permit}.from`, 'vitalik.eth', 'from'],
    ['paymentRequirements.amount', '-1', 'amount'],
    ['paymentRequirements.amount', '50%', 'amount'],
    ['paymentRequirements.amount', 0.5, 'amount'],
    ['paymentRequirements.amount', String(2n ** 256n), 'amount'],
    ['paymentRequirements.amount', null, 'amount'],
  ]
  for (const [path, value, name] of faults) {
    test(`error: ${JSON.stringify(value)} at ${path} is 400, and the answer names it`, async () => {
      const rows = shop.counts()
      const body = changed(await make({ scheme: 'upto' }), path, value)
      const code = path.startsWith(permit) ? 'invalid_payload' : 'invalid_payment_requirements'
      await expectMalformed(path, body, code)
      const { json } = await post(`${shop.url}/settle`, body)
      expect(String(json.detail)).toMatch(new RegExp(`: ${name} is not an? `))
      expect(shop.counts()).toEqual(rows)
    })
  }

  const others: readonly [string, string, unknown, string][] = [
    ['no facilitator', `${permit}.witness.facilitator`, undefined, 'unsupported_payload_type'],
    ['exact accepted', 'paymentPayload.accepted.scheme', 'exact', 'invalid_upto_evm_scheme'],
    ['exact required', 'paymentRequirements.scheme', 'exact', 'unsupported_payload_type'],
  ]
  for (const [what, path, value, code] of others) {
    test(`error: ${what} is refused as ${code}`, async () => {
      const rows = shop.counts()
      const body = changed(await make({ scheme: 'upto' }), path, value)
      for (const operation of ['verify', 'settle']) {
        const { status, json } = await post(`${shop.url}/${operation}`, body)
        expect([status, json.invalidReason ?? json.errorReason]).toEqual([200, code])
      }
      expect(shop.counts()).toEqual(rows)
    })
  }
})

describe('signatures in other forms', () => {
  const halved = 0xfffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141n
  const forms: readonly [string, (signature: string) => string, boolean][] = [
    ['v of 0 or 1', (s) => s.slice(0, -2) + (s.endsWith('1b') ? '00' : '01'), true],
    ['capital letters', (s) => `0x${s.slice(2).toUpperCase()}`, true],
    [
      'a high s',
      (s) => {
        const high = (halved - BigInt(`0x${s.slice(66, 130)}`)).toString(16).padStart(64, '0')
        return s.slice(0, 66) + high + (s.endsWith('1b') ? '1c' : '1b')
      },
      false,
    ],
    ['64 bytes', (s) => s.slice(0, -2), false],
    ['66 bytes', (s) => `${s}00`, false],
    ['v of 29', (s) => `${s.slice(0, -2)}1d`, false],
    ['nothing but zeros', (s) => `0x${'0'.repeat(s.length - 2)}`, false],
  ]
  for (const method of ['eip3009', 'permit2'] as const) {
    for (const [what, form, isGood] of forms) {
      test(`attack 18: ${method} with ${what}`, async () => {
        const id = method === 'permit2' ? 'eip155:4663' : 'eip155:8453'
        const body = await make({ method }, id)
        const other = structuredClone(body)
        other.paymentPayload.payload.signature = form(
          body.paymentPayload.payload.signature,
        ) as `0x${string}`
        const { json } = await post(`${shop.url}/verify`, other)
        expect(json.isValid).toBe(isGood)
        if (!isGood) {
          const prefix = method === 'permit2' ? 'invalid_permit2' : 'invalid_exact_evm'
          expect(json.invalidReason).toBe(`${prefix}_signature`)
          return
        }
        // The same money in two forms succeeds once.
        const answers = await Promise.all(
          [body, other, other].map((each) => post(`${shop.url}/settle`, each)),
        )
        expect(answers.filter((answer) => answer.json.success === true)).toHaveLength(1)
      })
    }
  }
})

describe('a node that fails', () => {
  test('error: a node that fails is 503 without a result for the payment', async () => {
    const tap = shop.taps['eip155:8453']
    if (tap === undefined) throw new Error('no tap')
    tap.intercept = ({ method }) =>
      method === 'eth_call' ? new Response('down', { status: 502 }) : undefined
    try {
      for (const path of ['verify', 'settle']) {
        const { status, json, headers } = await post(`${shop.url}/${path}`, good)
        expect(status).toBe(503)
        expect(json).toMatchObject({ code: 'not-ready' })
        expect([json.isValid, json.success]).toEqual([undefined, undefined])
        expect(Number(headers.get('retry-after'))).toBeGreaterThan(0)
      }
    } finally {
      tap.intercept = undefined
    }
    expect((await post(`${shop.url}/settle`, good)).json).toMatchObject({ success: true })
  })
})

describe('fuzzed requests', () => {
  /** Answers of both operations; fails on a 5xx or a success. */
  async function refuse(body: unknown): Promise<void> {
    const text = typeof body === 'string' ? body : JSON.stringify(body)
    for (const path of ['verify', 'settle']) {
      const { status, json } = await post(`${shop.url}/${path}`, text)
      if (status >= 500 || json.isValid === true || json.success === true)
        throw new Error(`${path} answered ${status} to ${text}`)
    }
  }

  const values = fc.oneof(
    fc.jsonValue(),
    fc.constantFrom<unknown>(undefined, null, '', '0', '-0', '0x', '1e400', 2 ** 60, -1, [], {}),
    fc.bigInt({ min: 0n, max: 2n ** 257n }).map(String),
    fc.uint8Array({ maxLength: 100 }).map((bytes) => `0x${Buffer.from(bytes).toString('hex')}`),
    fc.constantFrom(account(1).address, account(0).address, 'eip155:4663', 'eip155:84532'),
  )

  test('error: every fuzzed request is refused without a 5xx, and no row is written', async () => {
    const rows = shop.counts()
    const unsigned = await make({ from: account(2).local(), payer: account(1).address })
    const permit = await make(
      { method: 'permit2', from: account(2).local(), payer: account(1).address },
      'eip155:4663',
    )
    const paths = [...pathsOf(unsigned), 'paymentPayload.extensions', authorization]
    const permitPaths = pathsOf(permit)
    const upto = await make({ scheme: 'upto', from: account(2).local(), payer: account(1).address })
    await fc.assert(fc.asyncProperty(fc.string({ maxLength: 300 }), refuse), runs(60))
    await fc.assert(fc.asyncProperty(fc.jsonValue(), refuse), runs(60))
    const mutate = (body: Body, of: readonly string[]) =>
      fc
        .array(fc.tuple(fc.constantFrom(...of), values), { minLength: 1, maxLength: 3 })
        .map((changes) =>
          changes.reduce((before, [path, value]) => {
            try {
              return changed(before, path, value)
            } catch {
              return before
            }
          }, body),
        )
    await fc.assert(fc.asyncProperty(mutate(unsigned, paths), refuse), runs(250))
    await fc.assert(fc.asyncProperty(mutate(permit, permitPaths), refuse), runs(250))
    await fc.assert(fc.asyncProperty(mutate(upto, pathsOf(upto)), refuse), runs(250))
    for (const amount of [0, 1, 5000, 5001]) await refuse(charging(upto, amount))
    expect(shop.counts()).toEqual(rows)
  })
})

/** Every member of a body, as paths. */
function pathsOf(value: unknown, prefix = ''): string[] {
  if (typeof value !== 'object' || value === null) return []
  return Object.entries(value).flatMap(([name, inner]) => {
    const path = prefix === '' ? name : `${prefix}.${name}`
    return [path, ...pathsOf(inner, path)]
  })
}

test('a request that waits for a chain keeps only the members that are needed later', () => {
  const junk = Array.from({ length: 1000 }, (_, i) => ({ [`n${i}`]: [] }))
  const extra = { ...good.paymentRequirements.extra, junk }
  const body = {
    ...good,
    paymentPayload: {
      ...good.paymentPayload,
      accepted: { ...good.paymentPayload.accepted, junk },
      resource: { url: 'https://shop.example.com/', junk },
      extensions: { junk: { info: { junk }, schema: {} } },
    },
    paymentRequirements: { ...good.paymentRequirements, extra },
  }
  const parsed = Facilitation.parse(new TextEncoder().encode(JSON.stringify(body)))
  if (!('request' in parsed)) throw new Error('not read')
  const held = JSON.stringify(parsed.request, (_, value) =>
    typeof value === 'bigint' ? String(value) : value,
  )
  expect(held.length).toBeLessThan(2000)
  expect(parsed.request.resource).toBe('https://shop.example.com/')
  // Dropped members still count: other terms are another request.
  const other = { ...body, paymentRequirements: good.paymentRequirements }
  const bare = Facilitation.parse(new TextEncoder().encode(JSON.stringify(other)))
  expect('request' in bare && bare.request.requirements.fingerprint).not.toBe(
    parsed.request.requirements.fingerprint,
  )
})
