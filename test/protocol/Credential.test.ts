import { expect, test } from 'bun:test'
import * as Challenge from '../../src/protocol/Challenge'
import * as Credential from '../../src/protocol/Credential'
import * as Crypto from '../../src/protocol/Crypto'
import { isFault } from '../../src/protocol/Problem'
import * as Transfer from '../../src/protocol/Transfer'
import vector from './fixtures/mpp-permit2-vector.json'
import both from './fixtures/mppx-4663-permit2-and-authorization.json'
import plain from './fixtures/mppx-8453-authorization.json'
import preferred from './fixtures/mppx-both-mpp-and-x402.json'
import digest from './fixtures/mppx-with-digest-opaque-header.json'

type Members = { [member: string]: unknown }
type Golden = typeof vector.credential & Members

function encode(credential: unknown): string {
  return `Payment ${Buffer.from(JSON.stringify(credential)).toString('base64url')}`
}

function golden(change: (credential: Golden) => unknown): string {
  const copy = structuredClone(vector.credential) as Golden
  return encode(change(copy) ?? copy)
}

function parsed(value: string): Credential.Parsed {
  const result = Credential.parse(value)
  if (isFault(result)) throw new Error(`${result.code}: ${result.detail}`)
  return result
}

function code(value: string): string {
  const result = Credential.parse(value)
  return isFault(result) ? result.code : 'none'
}

test('captured mppx credentials parse and recover to their payer', () => {
  for (const capture of [plain, both, preferred, digest]) {
    const header = capture.retryRequest.headers.authorization
    const { transfer, challenge, type } = parsed(header)
    expect(type).toBe('authorization')
    expect(challenge.id).toBe(capture.credential.challenge.id)
    expect(challenge.request).toBe(capture.credential.challenge.request)
    expect(transfer.payer).toBe('0x70997970C51812dc3A010C7d01b50e0d17dc79C8')
    const names = transfer.chainId === 8453 ? ['USD Coin', '2'] : ['Global Dollar', '1']
    const eip712 = { name: names[0] ?? '', version: names[1] ?? '' }
    expect(Crypto.recover(Transfer.digest(transfer, { eip712 }), transfer.signature)).toBe(
      transfer.payer,
    )
  }
  const { challenge } = parsed(digest.retryRequest.headers.authorization)
  expect(challenge.digest).toBe(digest.credential.challenge.digest)
  expect(challenge.opaque).toBe(digest.credential.challenge.opaque)
})

test('the golden permit2 credential is verified end to end', () => {
  const { challenge, transfer, type } = parsed(vector.authorization)
  expect(type).toBe('permit2')
  const secrets = [Crypto.bytes(vector.secretHex)]
  expect(Challenge.verify(challenge, { secrets, realm: 'localhost' })).toMatchObject({
    route: 'catjoke:GET /joke',
  })
  const hash = Transfer.digest(transfer, { eip712: { name: '', version: '' } })
  expect(Crypto.hex(hash)).toBe(vector.eip712Digest as `0x${string}`)
  expect(Crypto.recover(hash, transfer.signature)).toBe(transfer.payer)
})

test('padding, spaces, scheme case, unknown members and null are tolerated', () => {
  const bare = vector.authorization.slice('Payment '.length)
  expect(code(`payment   ${bare}  `)).toBe('none')
  const padded = bare + '='.repeat((4 - (bare.length % 4)) % 4)
  expect(code(`Payment ${padded}`)).toBe('none')
  expect(code(golden((c) => ({ ...c, future: { x: 1 } })))).toBe('none')
  expect(
    code(golden((c) => void Object.assign(c.challenge, { digest: null, description: 'x' }))),
  ).toBe('none')
})

test('addresses in any case and safe integers are the same terms', () => {
  const value = golden((c) => {
    const [details] = c.payload.transferDetails
    if (details) details.to = details.to.toLowerCase()
    c.source = c.source.toLowerCase()
    Object.assign(c.payload.witness, { validAfter: 0 })
    Object.assign(c.payload.permit, { deadline: 1893456300 })
  })
  expect(code(value)).toBe('none')
})

test('error: a text that is not a credential is malformed', () => {
  const bare = vector.authorization.slice('Payment '.length)
  const text = JSON.stringify(vector.credential)
  const raw = (json: string) => `Payment ${Buffer.from(json).toString('base64url')}`
  for (const value of [
    ...['', 'Payment', 'Payment ', `Bearer ${bare}`, bare, `Payment ${bare} ${bare}`],
    ...[`Payment ${bare}!`, `Payment ${bare.slice(0, -7)}`, `Payment ${'A'.repeat(20000)}`],
    ...['{}', 'null', '[]', '"x"', '1'].map(raw),
    raw(text.replace('"type":', '"type":"authorization","type":')),
    raw(text.replace('{"challenge"', '{"__proto__":{},"challenge"')),
    raw(text.slice(0, -1)),
    raw(`{"challenge":${'{"a":'.repeat(20)}1${'}'.repeat(20)}}`),
    golden(({ challenge: _, ...c }) => c),
    golden(({ payload: _, ...c }) => c),
    golden((c) => void Object.assign(c.challenge, { id: 5 })),
    golden((c) => void Object.assign(c.challenge, { request: 'e30' })),
    golden((c) => void Object.assign(c.challenge, { request: { amount: '1' } })),
    golden((c) => void Object.assign(c.challenge, { opaque: { n: '1' } })),
    golden((c) => void Object.assign(c.payload, { type: 1 })),
    golden((c) => void Object.assign(c.payload, { signature: '0x' })),
    golden((c) => void Object.assign(c.payload, { permit: [] })),
    golden((c) => void Object.assign(c, { source: 5 })),
    golden((c) => void Object.assign(c.payload.permit, { nonce: '0x10' })),
    golden((c) => void Object.assign(c.payload.permit, { nonce: (2n ** 256n).toString() })),
    golden((c) => void Object.assign(c.payload.permit, { deadline: 1.5 })),
    golden((c) => void Object.assign(c.payload.permit, { deadline: '-1' })),
    golden((c) => void Object.assign(c.payload.permit, { permitted: [] })),
    golden((c) => void c.payload.permit.permitted.push({ token: '0x1', amount: '1' })),
    golden((c) => void c.payload.transferDetails.push({ to: '0x1', requestedAmount: '1' })),
  ]) {
    expect([value.slice(0, 40), code(value)]).toEqual([value.slice(0, 40), 'malformed-credential'])
  }
})

test('error: terms that differ from the challenge fail verification', () => {
  const other = '0x0000000000000000000000000000000000000001'
  for (const value of [
    golden((c) => void Object.assign(c.payload.permit, { nonce: '1' })),
    golden((c) => void Object.assign(c.payload.permit, { deadline: '1893456301' })),
    golden((c) => void Object.assign(c.payload.permit.permitted[0] ?? {}, { amount: '9999' })),
    golden((c) => void Object.assign(c.payload.permit.permitted[0] ?? {}, { amount: '10001' })),
    golden((c) => void Object.assign(c.payload.permit.permitted[0] ?? {}, { token: other })),
    golden((c) => void Object.assign(c.payload.transferDetails[0] ?? {}, { to: other })),
    golden((c) => void Object.assign(c.payload.transferDetails[0] ?? {}, { requestedAmount: '1' })),
    golden((c) => void Object.assign(c.payload.witness, { to: other })),
    golden((c) => void Object.assign(c.payload.witness, { validAfter: '1' })),
    golden((c) => void Object.assign(c.challenge, { id: 'x' })),
    golden((c) => void Object.assign(c.challenge, { realm: 'x' })),
    golden(({ source: _, ...c }) => c),
    golden((c) => void Object.assign(c, { source: 'did:key:z6Mk' })),
    golden((c) => void Object.assign(c, { source: c.source.replace('4663', '8453') })),
    golden((c) => void Object.assign(c.payload, { type: 'hash' })),
    golden((c) => void Object.assign(c.payload, { type: 'transaction' })),
  ]) {
    expect(code(value)).toBe('verification-failed')
  }
})

test("error: the draft's own permit2 witness is refused with an explanation", () => {
  const value = golden((c) => {
    Object.assign(c.payload, { witness: { challengeHash: vector.challengeHash } })
  })
  const result = Credential.parse(value)
  expect(result).toMatchObject({ code: 'verification-failed' })
  expect(isFault(result) && result.detail).toContain('x402ExactPermit2Proxy')
})

test('error: an authorization that differs from its challenge fails verification', () => {
  const change = (members: Members, source?: string) =>
    encode({
      ...plain.credential,
      ...(source === undefined ? {} : { source }),
      payload: { ...plain.credential.payload, ...members },
    })
  expect(code(change({}))).toBe('none')
  expect(code(change({}, 'did:key:z6Mk'))).toBe('none')
  const other = '0x0000000000000000000000000000000000000001'
  for (const value of [
    change({ to: other }),
    change({ from: other }),
    change({ value: '9999' }),
    change({ nonce: `0x${'11'.repeat(32)}` }),
    change({ type: 'permit2' }),
    change({}, `did:pkh:eip155:1:${plain.credential.payload.from}`),
  ]) {
    expect(code(value)).toBe('verification-failed')
  }
  for (const members of [
    { value: '0x2710' },
    { value: '010000' },
    { nonce: '0x11' },
    { from: 'x' },
  ]) {
    expect(code(change(members))).toBe('malformed-credential')
  }
})

test('error: other payment methods are unsupported', () => {
  const value = golden((c) => void Object.assign(c.challenge, { method: 'tempo' }))
  expect(code(value)).toBe('method-unsupported')
})
