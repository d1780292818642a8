import { describe, expect, test } from 'bun:test'
import {
  type CompleteSIWxInfo,
  createSIWxMessage,
  createSIWxPayload,
  encodeSIWxHeader,
  parseSIWxHeader,
  type SIWxPayload,
  validateSIWxMessage,
  verifySIWxSignature,
} from '@x402/extensions/sign-in-with-x'
import fc from 'fast-check'
import { hashMessage } from 'viem'
import { account } from '../../src/demo/accounts'
import * as Crypto from '../../src/protocol/Crypto'
import { isFault } from '../../src/protocol/Problem'
import * as SignIn from '../../src/protocol/SignIn'
import { runs } from '../harness/samples'

const wallet = account(1)
const secret = new Uint8Array(32).fill(7)
const domain = 'api.example.com:8443'
const uri = `https://${domain}/m/shop/item?a=1&b=%20x`
const at = Date.parse('2026-11-28T20:00:00.123Z')
const bound = { fingerprint: 'f'.repeat(64), terms: '["5000",{"forMs":60000,"max":5},null,null]' }
const chains = ['eip155:8453', 'eip155:4663'] as const
const compiled = SignIn.compile({ domain, chains, terms: bound.terms, secret })
const expected: SignIn.Expected = {
  ...{ ...bound, domain, uris: [uri], chains, secrets: [secret], now: at + 1000 },
}

type Extension = {
  info: CompleteSIWxInfo
  supportedChains: { chainId: string; type: 'eip191' }[]
  schema: object
}

/** The extension of a 402 as its client parses it. */
function challenge(changes: Partial<typeof bound & { now: number }> = {}): Extension {
  const { now = at, fingerprint = bound.fingerprint } = changes
  const [issuedAt, expirationTime] = [now, now + SignIn.validMs].map((ms) => {
    return new Date(ms).toISOString()
  }) as [string, string]
  const random = '0123456789abcdef'
  const fresh = SignIn.issue(compiled, { random, issuedAt, expirationTime, fingerprint })
  expect([fresh.length, fresh.length % 3]).toEqual([SignIn.freshLength, 0])
  return JSON.parse(`{${compiled.open}${JSON.stringify(uri)}${fresh}"end":0}`)[SignIn.name]
}

/** The header of a stock client. */
async function signed(info = challenge().info, changes: Partial<SIWxPayload> = {}) {
  const asked = { ...info, chainId: chains[0], type: 'eip191' as const }
  const payload = await createSIWxPayload(asked, wallet.local(), uri)
  return { ...payload, ...changes }
}

const parsed = (payload: object): SignIn.SignIn => {
  const found = SignIn.parse(encodeSIWxHeader(payload as SIWxPayload))
  if (isFault(found)) throw new Error(found.detail)
  return found
}
const codeOf = (payload: object, changes: Partial<SignIn.Expected> = {}) =>
  SignIn.check(parsed(payload), { ...expected, ...changes })?.code.replace('invalid_siwx_', '')

describe('a challenge', () => {
  test('a stock client signs it, and the service and the reference accept the same', async () => {
    const { info, supportedChains, schema } = challenge()
    expect(schema).toEqual({ type: 'object' })
    expect(supportedChains).toEqual(chains.map((chainId) => ({ chainId, type: 'eip191' })))
    expect(info).toMatchObject({ domain, uri, version: '1', issuedAt: '2026-11-28T20:00:00.123Z' })
    expect(info.nonce).toMatch(/^0123456789abcdef[0-9a-f]{32}$/)
    const payload = await signed(info)
    const header = encodeSIWxHeader(payload)
    expect(await verifySIWxSignature(parseSIWxHeader(header))).toMatchObject({ isValid: true })
    const [issuedAt, expirationTime] = [new Date().toISOString(), '2100-01-01T00:00:00.000Z']
    const recent = await signed({ ...info, issuedAt, expirationTime })
    expect(await validateSIWxMessage(recent, new URL(uri))).toEqual({ isValid: true })
    const own = parsed(payload)
    expect(SignIn.check(own, expected)).toBeUndefined()
    expect([own.address, SignIn.isKeySigned(own)]).toEqual([wallet.address, true])
  })

  test('every secret verifies, and the times of two gateways may differ by a minute', async () => {
    const payload = await signed()
    expect(codeOf(payload, { secrets: [new Uint8Array(32), secret] })).toBeUndefined()
    expect(codeOf(payload, { now: at - 60_000 })).toBeUndefined()
    expect(codeOf(payload, { now: at + SignIn.validMs - 1 })).toBeUndefined()
  })

  test('attack: one for another request, body, price or secret, or a changed one, is refused', async () => {
    const payload = await signed()
    const { nonce } = payload
    expect(codeOf(payload, { fingerprint: 'e'.repeat(64) })).toBe('nonce')
    expect(codeOf(payload, { terms: bound.terms.replace('5000', '6000') })).toBe('nonce')
    expect(codeOf(payload, { secrets: [new Uint8Array(32)] })).toBe('nonce')
    const other = challenge({ now: at + 500 }).info
    for (const changed of [
      { nonce: `${nonce.slice(0, -1)}${nonce.endsWith('0') ? 1 : 0}` },
      { nonce: nonce.toUpperCase() },
      { nonce: nonce.slice(0, 16) },
      { nonce: `${nonce}00` },
      { nonce: `1${nonce.slice(1)}` },
      { issuedAt: other.issuedAt },
      { issuedAt: '2026-11-28T20:00:00.1230Z' },
    ])
      expect([changed, codeOf({ ...payload, ...changed })]).toEqual([changed, 'nonce'])
  })

  test('error: each check has the code of the reference, in the order of the checks', async () => {
    const payload = await signed()
    const faults: readonly (readonly [string, object, Partial<SignIn.Expected>?])[] = [
      ['domain_mismatch', { domain: 'evil.example.com', uri: 'x', version: '2' }],
      ['domain_mismatch', { domain: 'api.example.com' }],
      ['uri_mismatch', { uri: `${uri}&c=1`, version: '2' }],
      ['unsupported_chain', { version: '2', chainId: 'eip155:1' }],
      [
        'unsupported_chain',
        { type: 'ed25519', chainId: 'solana:5eykt4UsFv8P8NJdTREpY1vzqKqZKvdp' },
      ],
      ['chain_id', { chainId: 'eip155:1', issuedAt: 'x' }],
      ['chain_id', { chainId: 'eip155:08453' }],
      ['issued_at', { issuedAt: 'now', expirationTime: 'x' }],
      ['issued_at_too_old', { expirationTime: 'x' }, { now: at + SignIn.validMs + 1 }],
      ['issued_at_in_future', { expirationTime: 'x' }, { now: at - 60_001 }],
      ['expiration_time', { expirationTime: 'later', notBefore: 'x' }],
      ['expired', { expirationTime: '2026-11-28T20:00:01.000Z', notBefore: 'x' }],
      ['not_before', { notBefore: 'soon', nonce: 'x' }],
      ['not_yet_valid', { notBefore: '2026-11-28T20:00:02.000Z', nonce: 'x' }],
      ['nonce', { nonce: 'x' }],
    ]
    for (const [code, changes, context] of faults)
      expect([changes, codeOf({ ...payload, ...changes }, context)]).toEqual([changes, code])
  })
})

describe('the message', () => {
  const word = fc.stringMatching(/^[A-Za-z0-9._-]{1,12}$/)
  const time = fc
    .date({ min: new Date(0), max: new Date('2100-01-01'), noInvalidDate: true })
    .map((date) => date.toISOString())
  const url = fc.webUrl({ withQueryParameters: true, validSchemes: ['https'] })
  const fields = fc.record(
    {
      statement: fc.stringMatching(/^[A-Za-z0-9 .,:;!?'()-]{1,40}$/),
      expirationTime: time,
      notBefore: time,
      requestId: word,
      resources: fc.array(url, { maxLength: 3 }),
    },
    { requiredKeys: [] },
  )
  const base = fc.record({
    uri: url,
    issuedAt: time,
    chainId: fc.integer({ min: 1, max: 1e9 }).map((id): `eip155:${number}` => `eip155:${id}`),
    nonce: fc.stringMatching(/^[0-9a-f]{8,48}$/),
  })

  test('it is that of the reference in every combination of members', () => {
    const check = fc.property(base, fields, fc.integer({ min: 0, max: 9 }), (own, more, index) => {
      const { address } = account(index)
      const info = { domain, version: '1', type: 'eip191' as const, ...own, ...more }
      const text = createSIWxMessage(info, address)
      const signIn = parsed({ ...info, address: address.toLowerCase(), signature: '0x00' })
      expect(SignIn.message(signIn)).toBe(text)
      expect(Crypto.hex(SignIn.digest(signIn))).toBe(hashMessage(text))
    })
    fc.assert(check, runs(2000))
  })

  test('attack: no query that a request may have keeps a stock client from signing', () => {
    const { address } = wallet
    const query = fc.string({ unit: 'binary-ascii', maxLength: 20 })
    const check = fc.property(query, (text) => {
      const { href } = new URL(`https://${domain}/m/shop/item?${text}`)
      fc.pre(SignIn.isUri(href))
      const asked = { ...challenge().info, uri: href, chainId: chains[0], type: 'eip191' as const }
      expect(createSIWxMessage(asked, address)).toContain(`URI: ${href}\n`)
    })
    fc.assert(check, runs(2000))
    for (const query of ['?a[0]=1', '?a=1|2', '?a=%zz', '?a=^', '?a=`', '?a={b}'])
      expect(SignIn.isUri(`https://${domain}/x${query}`)).toBe(false)
    expect(SignIn.isUri('https://[::1]:4020/m/a?b=%5Bc%5D&d=~!')).toBe(true)
  })

  test('error: the signature of another wallet, message or form is none of the wallet', async () => {
    const payload = await signed()
    const high = `${payload.signature.slice(0, 66)}${'f'.repeat(64)}1b`
    for (const changes of [
      { address: account(2).address },
      { statement: 'Sign in to give everything away.' },
      { statement: undefined },
      { requestId: '1' },
      { resources: [] },
      { signature: high },
      { signature: payload.signature.slice(0, -2) },
    ])
      expect([changes, SignIn.isKeySigned(parsed({ ...payload, ...changes }))]).toEqual([
        changes,
        false,
      ])
  })
})

test('error: a header that is no sign-in is malformed, whatever member it is', async () => {
  const payload = await signed()
  const header = encodeSIWxHeader(payload)
  const encode = (value: unknown) => btoa(JSON.stringify(value))
  const without = (name: string) =>
    Object.fromEntries(Object.entries(payload).filter(([each]) => each !== name))
  const wrong: string[] = [
    ...['', '!', 'e30', header.slice(1), `${header}, ${header}`, encode([payload])],
    encode({ ...payload, padding: 'x'.repeat(8192) }),
    encode({ ...payload, requestId: 'x'.repeat(8192) }),
    btoa(JSON.stringify(payload).replace('{', '{"domain":"x",')),
    ...[
      'domain',
      'address',
      'uri',
      'version',
      'chainId',
      'type',
      'nonce',
      'issuedAt',
      'signature',
    ].map((name) => encode(without(name))),
    ...Object.keys(payload).map((name) => encode({ ...payload, [name]: 7 })),
    ...['statement', 'uri', 'requestId', 'domain'].map((name) =>
      encode({ ...payload, [name]: 'a\nURI: b' }),
    ),
    encode({ ...payload, resources: ['a\n- b'] }),
    encode({ ...payload, resources: 'a' }),
    encode({ ...payload, unknown: 'x' }),
  ]
  for (const value of wrong) {
    const found = SignIn.parse(value)
    const told = isFault(found) ? found : undefined
    expect([value.slice(0, 300), told?.code]).toEqual([value.slice(0, 300), 'bad-request'])
    expect(told?.detail).toStartWith('SIGN-IN-WITH-X is malformed: ')
  }
  expect(isFault(SignIn.parse(header.replace(/=+$/, '')))).toBe(false)
  expect(isFault(SignIn.parse(encode({ ...payload, signatureScheme: 'eip1271' })))).toBe(false)
})

test('attack: no header makes the service fail or is taken for another message', async () => {
  const payload = await signed()
  const own = SignIn.message(parsed(payload))
  const names = fc.constantFrom(...Object.keys(payload), 'notBefore', 'requestId', 'resources')
  const value = fc.oneof(
    fc.jsonValue(),
    fc.string({ unit: 'binary', maxLength: 60 }),
    fc.constantFrom('eip155:', 'eip155:8453\n', '+275760-09-13', 'pay_', '0x', '%00', '|', '1e999'),
  )
  const check = fc.property(fc.array(fc.tuple(names, value), { maxLength: 3 }), (changes) => {
    const changed = { ...payload, ...Object.fromEntries(changes) }
    const header = Buffer.from(JSON.stringify(changed)).toString('base64')
    const found = SignIn.parse(header)
    if (isFault(found)) return
    const isTaken = SignIn.check(found, expected) === undefined && SignIn.isKeySigned(found)
    if (isTaken) expect(SignIn.message(found)).toBe(own)
  })
  fc.assert(check, runs(4000))
})
