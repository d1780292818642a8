import * as Crypto from './Crypto'
import { decodeJson } from './Header'
import * as Json from './Json'
import * as Network from './Network'
import { type Fault, fault } from './Problem'

/**
 * The x402 extension `sign-in-with-x` on EVM: a wallet signs a message of EIP-4361 to use what it has
 * at a route. The challenge is stateless: its nonce is an HMAC over the request and the terms of the
 * route. https://eips.ethereum.org/EIPS/eip-4361
 */

/** Key of the extension, and in any case the name of the header. */
export const name = 'sign-in-with-x'

/** Time that a challenge is valid, ms. */
export const validMs = 300_000

/** Clocks of gateways over one database may differ by some seconds. */
const skewMs = 60_000

const headerMaxLength = 8 * 1024

/** What a wallet has signed, as its header states it; nothing about it is proven yet. */
export type SignIn = ReturnType<typeof read>

/** The parts of a challenge that stay the same for an item. */
export type Compiled = ReturnType<typeof compile>

/** The request and the terms to which a nonce is bound. */
type Bound = { fingerprint: string; terms: string }

/** What differs in each challenge. `random`: 16 hex digits. Times are ISO 8601 with milliseconds. */
type Fresh = Pick<Bound, 'fingerprint'> & {
  random: string
  issuedAt: string
  expirationTime: string
}

const statement =
  'Sign in to use what this wallet has here: a pass, a trial, or an answer that it paid for.'

/** The head of a 402 has little room. */
const schema = { type: 'object' }

/** `domain`: host and port of the service. `terms`: a text of the price and of what is offered. */
export function compile(input: {
  domain: string
  chains: readonly Network.Id[]
  terms: string
  secret: Uint8Array
}) {
  const { domain, chains, terms, secret } = input
  const supportedChains = chains.map((chainId) => ({ chainId, type: 'eip191' }))
  const info = JSON.stringify({ domain, statement, version: '1' })
  const open = JSON.stringify({ supportedChains, schema }).slice(0, -1)
  return {
    terms,
    hmac: new Bun.CryptoHasher('sha256', secret),
    /** JSON of the extension before the URL, which `issue` completes. */
    open: `"${name}":${open},"info":${info.slice(0, -1)},"uri":`,
  }
}

/**
 * JSON of the members that differ in each challenge, with the end of the extension and the comma
 * behind it. Of one length, which is a multiple of three.
 */
export function issue({ hmac, terms }: Compiled, fresh: Fresh): string {
  const { random, issuedAt, expirationTime } = fresh
  const nonce = random + tagOf(hmac.copy(), { ...fresh, terms })
  return `,"nonce":"${nonce}","issuedAt":"${issuedAt}","expirationTime":"${expirationTime}"}},`
}

const sample = { random: '0'.repeat(16), issuedAt: new Date(0).toISOString(), fingerprint: '' }

/** Length of what `issue` returns. */
export const freshLength = issue(
  compile({ domain: '', chains: [], terms: '', secret: new Uint8Array(32) }),
  { ...sample, expirationTime: sample.issuedAt },
).length

function tagOf(
  hmac: Bun.CryptoHasher,
  { random, issuedAt, fingerprint, terms }: Bound & Pick<Fresh, 'random' | 'issuedAt'>,
): string {
  const slots = ['sign-in', random, issuedAt, fingerprint, terms]
  return hmac.update(slots.join('|')).digest('hex').slice(0, 32)
}

/** Of RFC 3986. The URLs of browsers may have other characters, which wallets refuse. */
const uriPattern = /^https?:\/\/[\w.:[\]-]+(?:\/(?:[\w:/?@!$&'()*+,;=.~-]|%[0-9A-Fa-f]{2})*)?$/

/** Whether the message may have a URL. */
export function isUri(url: string): boolean {
  return uriPattern.test(url)
}

const members: ReadonlySet<string> = new Set(
  (
    'domain address statement uri version chainId type nonce issuedAt expirationTime notBefore ' +
    'requestId resources signatureScheme signature'
  ).split(' '),
)

/** Decodes the header `SIGN-IN-WITH-X`. */
export function parse(value: string): SignIn | Fault {
  return Json.wellFormed('bad-request', 'SIGN-IN-WITH-X', () => {
    if (value.length > headerMaxLength)
      throw new Json.JsonError(`longer than ${headerMaxLength} characters`)
    return read(decodeJson(value, 'either'))
  })
}

function read(json: Json.JsonObject) {
  const stranger = Object.keys(json).find((member) => !members.has(member))
  if (stranger !== undefined) throw new Json.JsonError('it has a member that no sign-in has')
  lineIn(json, 'signatureScheme')
  return {
    domain: line(Json.read(json, 'domain', 'text'), 'domain'),
    address: Json.read(json, 'address', 'address'),
    statement: lineIn(json, 'statement'),
    uri: line(Json.read(json, 'uri', 'text'), 'uri'),
    version: line(Json.read(json, 'version', 'text'), 'version'),
    chainId: line(Json.read(json, 'chainId', 'text'), 'chainId'),
    type: line(Json.read(json, 'type', 'text'), 'type'),
    nonce: line(Json.read(json, 'nonce', 'text'), 'nonce'),
    issuedAt: line(Json.read(json, 'issuedAt', 'text'), 'issuedAt'),
    expirationTime: lineIn(json, 'expirationTime'),
    notBefore: lineIn(json, 'notBefore'),
    requestId: lineIn(json, 'requestId'),
    resources: resourcesIn(json),
    signature: Json.read(json, 'signature', 'signature'),
  }
}

/** A text without line ends: with one, two sign-ins could have the same message. */
function line(text: string, member: string): string {
  if (/\p{Cc}/u.test(text)) throw new Json.JsonError(`${member} has a control character`)
  return text
}

function lineIn(json: Json.JsonObject, member: string): string | undefined {
  const text = Json.optional(json, member, 'text')
  return text === undefined ? undefined : line(text, member)
}

function resourcesIn(json: Json.JsonObject): readonly string[] | undefined {
  const found = Json.member(json, 'resources')
  if (found === undefined) return undefined
  const isList = Array.isArray(found) && found.every((each) => typeof each === 'string')
  if (!isList) throw new Json.JsonError('resources is not an array of strings')
  return found.map((each: string) => line(each, 'resources'))
}

/** What a sign-in must state. */
export type Expected = Bound & {
  domain: string
  /** The URLs that the challenge may have had. */
  uris: readonly string[]
  chains: readonly Network.Id[]
  /** All verify. */
  secrets: readonly Uint8Array[]
  /** Unix ms. */
  now: number
}

/** Why a sign-in is not an answer to a challenge of ours for this request; the codes are of x402. */
export function check(signIn: SignIn, expected: Expected): Fault | undefined {
  const { domain, uris, chains, now } = expected
  if (signIn.domain !== domain)
    return fault(
      'invalid_siwx_domain_mismatch',
      `domain is not ${domain}: sign in for this service.`,
    )
  if (!uris.includes(signIn.uri))
    return fault(
      'invalid_siwx_uri_mismatch',
      'uri is not the URL of this request: sign in for this URL.',
    )
  if (signIn.version !== '1' || signIn.type !== 'eip191' || !signIn.chainId.startsWith('eip155:'))
    return fault(
      'invalid_siwx_unsupported_chain',
      'Only version 1 with type eip191 is taken, on an EVM chain.',
    )
  if (!chains.some((chain) => chain === signIn.chainId))
    return fault(
      'invalid_siwx_chain_id',
      `chainId is none of the chains of this route: ${chains.join(', ')}.`,
    )
  return checkTimes(signIn, now) ?? checkNonce(signIn, expected)
}

function checkTimes(
  { issuedAt, expirationTime, notBefore }: SignIn,
  now: number,
): Fault | undefined {
  const issued = Date.parse(issuedAt)
  const expires =
    expirationTime === undefined ? Number.POSITIVE_INFINITY : Date.parse(expirationTime)
  const begins = notBefore === undefined ? Number.NEGATIVE_INFINITY : Date.parse(notBefore)
  if (Number.isNaN(issued)) return fault('invalid_siwx_issued_at', 'issuedAt is not a time.')
  if (now - issued > validMs)
    return fault(
      'invalid_siwx_issued_at_too_old',
      'issuedAt is more than 5 minutes ago: sign a fresh challenge.',
    )
  if (issued - now > skewMs)
    return fault('invalid_siwx_issued_at_in_future', 'issuedAt is in the future.')
  if (Number.isNaN(expires))
    return fault('invalid_siwx_expiration_time', 'expirationTime is not a time.')
  if (expires <= now)
    return fault('invalid_siwx_expired', 'The sign-in has expired: sign a fresh challenge.')
  if (Number.isNaN(begins)) return fault('invalid_siwx_not_before', 'notBefore is not a time.')
  return begins > now
    ? fault('invalid_siwx_not_yet_valid', 'The sign-in is not valid yet.')
    : undefined
}

const noncePattern = /^[0-9a-f]{48}$/

function checkNonce({ nonce, issuedAt }: SignIn, expected: Expected): Fault | undefined {
  const { fingerprint, terms, secrets } = expected
  const random = nonce.slice(0, 16)
  let isOurs = false
  for (const secret of secrets) {
    const hmac = new Bun.CryptoHasher('sha256', secret)
    const tag = tagOf(hmac, { random, issuedAt, fingerprint, terms })
    // Every secret is tried, so that the time does not show which one matched.
    isOurs = Crypto.equal(tag, nonce.slice(16)) || isOurs
  }
  return isOurs && noncePattern.test(nonce) ? undefined : unknownNonce()
}

/** The nonce is not one of this request, or it was used before. */
export function unknownNonce(): Fault {
  const detail = 'nonce is not a new one of this service for this request: sign a fresh challenge.'
  return fault('invalid_siwx_nonce', detail)
}

/** Neither the key of the wallet nor a contract at its address has accepted the signature. */
export function unsigned({ address }: Pick<SignIn, 'address'>): Fault {
  return fault(
    'invalid_siwx_signature',
    `The signature is not one of ${address} over this message.`,
  )
}

/** Whether the key of the wallet has signed. Otherwise a contract may accept the signature. */
export function isKeySigned(signIn: SignIn): boolean {
  return Crypto.recover(digest(signIn), signIn.signature) === signIn.address
}

/** EIP-191 digest of the message. */
export function digest(signIn: SignIn): Uint8Array {
  return Crypto.messageDigest(message(signIn))
}

/** The message of EIP-4361, as the library `siwe` writes it. */
export function message(signIn: Omit<SignIn, 'type' | 'signature'>): string {
  const { domain, address, statement, uri, version, chainId, nonce, issuedAt } = signIn
  const { expirationTime, notBefore, requestId, resources } = signIn
  const optional = (label: string, text: string | undefined) =>
    text === undefined ? [] : [`${label}: ${text}`]
  return [
    `${domain} wants you to sign in with your Ethereum account:`,
    address,
    '',
    ...(statement === undefined ? [] : [statement]),
    '',
    `URI: ${uri}`,
    `Version: ${version}`,
    `Chain ID: ${Network.chainIdOf(chainId)}`,
    `Nonce: ${nonce}`,
    `Issued At: ${issuedAt}`,
    ...optional('Expiration Time', expirationTime),
    ...optional('Not Before', notBefore),
    ...optional('Request ID', requestId),
    ...(resources === undefined ? [] : ['Resources:', ...resources.map((each) => `- ${each}`)]),
  ].join('\n')
}
