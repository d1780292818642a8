import { expect, test } from 'bun:test'
import { Challenge as MppxChallenge } from 'mppx'
import * as Challenge from '../../src/protocol/Challenge'
import * as Crypto from '../../src/protocol/Crypto'
import { isFault } from '../../src/protocol/Problem'
import vector from './fixtures/mpp-permit2-vector.json'
import { chainA, chainB, offer } from './networks'

const secretText = 'a secret that both sides read as bytes'
const secret = Buffer.from(secretText)
const realm = 'gw.example'
const routeId = 'weather:GET /forecast'
const expires = '2030-01-01T00:05:00Z'
const unique = 'abcdefghi012345-_9'

function echoOf(header: string): Challenge.Echo {
  const param = (name: string) => new RegExp(`[ ,]${name}="([^"]*)"`).exec(header)?.[1]
  return {
    id: param('id') ?? '',
    realm: param('realm') ?? '',
    method: param('method') ?? '',
    intent: param('intent') ?? '',
    request: param('request') ?? '',
    expires: param('expires'),
    digest: param('digest'),
    opaque: param('opaque'),
  }
}

function issueDefault(digest?: string): string {
  const compiled = Challenge.compile({ realm, offers: [offer(chainB)], routeId, secret })
  return Challenge.issue(compiled, { expires, salt: btoa(unique), digest })
}

test('the golden vector is reproduced exactly', () => {
  const compiled = Challenge.compile({
    realm: 'localhost',
    offers: [
      {
        network: chainB,
        payTo: '0x14dC79964da2C08b23698B3D3cc7Ca32193d9955',
        amountAtomic: 10000n,
      },
    ],
    routeId: vector.opaque.route,
    secret: Crypto.bytes(vector.secretHex),
  })
  // The salt of the vector has 16 characters, which is not a multiple of three.
  const opaque = Buffer.from(JSON.stringify(vector.opaque)).toString('base64url')
  const whole = { ...compiled, opaquePrefix: opaque, opaqueSuffix: '' }
  const header = Challenge.issue(whole, { expires, salt: '' })
  expect(header).toBe(vector.wwwAuthenticate)
  const challenge = { id: vector.challengeId, realm: 'localhost' }
  expect(Challenge.nonceOf(challenge)).toBe(vector.challengeHash as `0x${string}`)
})

test('the concatenated parts of opaque are its encoding', () => {
  const { opaque } = echoOf(issueDefault())
  const json = JSON.stringify({ n: unique, route: routeId })
  expect(opaque).toBe(Buffer.from(json).toString('base64url'))
})

test('mppx parses a list of our challenges and agrees with every id', () => {
  const offers = [offer(chainA), offer(chainB)]
  const compiled = Challenge.compile({ realm, offers, routeId, secret })
  const digest = 'sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:'
  const header = Challenge.issue(compiled, { expires, salt: btoa(unique), digest })
  const parsed = MppxChallenge.deserializeList(header)
  expect(parsed).toHaveLength(2)
  for (const challenge of parsed) {
    expect(MppxChallenge.verify(challenge, { secretKey: secretText })).toBe(true)
    expect(challenge).toMatchObject({ realm, method: 'evm', intent: 'charge', expires, digest })
  }
  expect(parsed[0]?.request).toEqual({
    amount: '10000',
    currency: chainA.asset.address,
    recipient: offer(chainA).payTo,
    methodDetails: { chainId: 8453, credentialTypes: ['authorization'], decimals: 6 },
  })
})

test('a challenge of ours is verified and decoded', () => {
  const echo = echoOf(issueDefault('sha-256=:abc=:'))
  const verified = Challenge.verify(echo, { secrets: [secret], realm })
  expect(verified).toEqual({
    id: echo.id,
    request: {
      amountAtomic: 10000n,
      currency: chainB.asset.address,
      recipient: offer(chainB).payTo,
      chainId: 4663,
      credentialTypes: ['permit2', 'authorization'],
      permit2: true,
    },
    expiresAt: Date.parse(expires),
    digest: 'sha-256=:abc=:',
    route: routeId,
  })
})

test('rotated secrets still verify', () => {
  const echo = echoOf(issueDefault())
  const options = { secrets: [Buffer.from('newer'), secret], realm }
  expect(isFault(Challenge.verify(echo, options))).toBe(false)
  expect(Challenge.verify(echo, { secrets: [Buffer.from('newer')], realm })).toMatchObject({
    code: 'invalid-challenge',
  })
})

test('error: any change of any slot is refused', () => {
  const echo = echoOf(issueDefault('sha-256=:abc=:'))
  const other = echoOf(
    Challenge.issue(Challenge.compile({ realm, offers: [offer(chainB, 1n)], routeId, secret }), {
      expires,
      salt: btoa(unique),
    }),
  )
  const changes: Partial<Challenge.Echo>[] = [
    { id: other.id },
    { id: '' },
    { id: `${echo.id}A` },
    { realm: 'other.example' },
    { request: other.request },
    { expires: '2031-01-01T00:05:00Z' },
    { expires: undefined },
    { digest: undefined },
    { digest: 'sha-256=:abd=:' },
    { opaque: undefined },
    { opaque: other.opaque?.replace('e', 'f') },
    // The boundaries of the slots cannot be moved.
    { expires: `${echo.expires}|${echo.digest}`, digest: undefined },
    { expires: undefined, digest: `${echo.expires}|${echo.digest}` },
  ]
  for (const change of changes) {
    expect(Challenge.verify({ ...echo, ...change }, { secrets: [secret], realm })).toMatchObject({
      code: 'invalid-challenge',
    })
  }
})

test('error: a challenge that another realm issued with the same secret is refused', () => {
  const options = { secrets: [secret], realm: 'other.example' }
  expect(Challenge.verify(echoOf(issueDefault()), options)).toMatchObject({
    code: 'invalid-challenge',
  })
})

test('error: other methods and intents are unsupported', () => {
  const echo = echoOf(issueDefault())
  for (const change of [{ method: 'tempo' }, { intent: 'session' }]) {
    expect(Challenge.verify({ ...echo, ...change }, { secrets: [secret], realm })).toMatchObject({
      code: 'method-unsupported',
    })
  }
})

test('expiry is checked apart from authenticity', () => {
  const verified = Challenge.verify(echoOf(issueDefault()), { secrets: [secret], realm })
  if (isFault(verified)) throw new Error(verified.detail)
  expect(Challenge.checkExpiry(verified, Date.parse(expires) - 1)).toBeUndefined()
  expect(Challenge.checkExpiry(verified, Date.parse(expires))).toMatchObject({
    code: 'payment-expired',
  })
})

test('route ids survive quotes and other scripts', () => {
  const strange = 'm:GET /a"b\\\u00fc'
  const compiled = Challenge.compile({ realm, offers: [offer(chainA)], routeId: strange, secret })
  const echo = echoOf(Challenge.issue(compiled, { expires, salt: btoa(unique) }))
  expect(Challenge.verify(echo, { secrets: [secret], realm })).toMatchObject({ route: strange })
})

test('error: a realm that would break the header or the slots throws', () => {
  for (const bad of ['a"b', 'a|b', 'a\\b', 'a\r\nb', '', 'a b', 'caf\u00e9']) {
    const input = { realm: bad, offers: [offer(chainA)], routeId, secret }
    expect(() => Challenge.compile(input)).toThrow('realm')
  }
})
