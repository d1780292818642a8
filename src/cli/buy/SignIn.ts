import type { Address } from 'viem'
import * as Crypto from '../../protocol/Crypto'
import { decodeJson, encodeJson } from '../../protocol/Header'
import * as Json from '../../protocol/Json'
import * as Network from '../../protocol/Network'
import { readable } from './Terms'

/** The buyer's side of the x402 extension `sign-in-with-x`: a signature in place of a payment. */

/** The extension, and the header of the request. */
export const header = 'sign-in-with-x'

/** A challenge that may be signed, or why it is not. */
type Offered = { info: Json.JsonObject; networks: readonly Network.Id[] } | { fault: string }

const members = ['domain', 'uri', 'version', 'nonce', 'issuedAt'] as const
const optional = ['statement', 'expirationTime', 'notBefore', 'requestId'] as const
/** Texts with more, or with a line feed, could look like other lines of the message. */
const plain = /^[\x20-\x7e]{1,8192}$/
/** Most networks that one request is signed for. */
export const networksMax = 4

/**
 * The sign-in that a 402 to a request of `url` offers; undefined without one. A challenge in the name of
 * another service, or for another request, is a fault: a server may have got it from there.
 */
export function read(headers: Headers, url: URL): Offered | undefined {
  const required = headers.get('payment-required')
  const extension = readable(() => {
    const extensions = Json.optional(decodeJson(required ?? '', 'either'), 'extensions', 'object')
    return extensions && Json.optional(extensions, header, 'object')
  })
  if (extension === undefined) return undefined
  const offered = readable(() => ({
    info: infoOf(Json.read(extension, 'info', 'object')),
    networks: networksOf(Json.member(extension, 'supportedChains')),
  }))
  if (offered === undefined) return { fault: 'the sign-in of the server cannot be read' }
  const { domain, uri } = offered.info
  const asked = url.href.slice(0, url.href.length - url.hash.length)
  if (domain !== url.host || URL.parse(String(uri))?.href !== asked)
    return { fault: `the server asks for a sign-in to ${domain}, for ${uri}` }
  return offered
}

/** The members of a message of version 1. Throws a JsonError. */
function infoOf(info: Json.JsonObject): Json.JsonObject {
  const resources = Json.member(info, 'resources')
  const texts = [
    ...members.map((name) => [name, Json.read(info, name, 'text')] as const),
    ...optional.map((name) => [name, Json.optional(info, name, 'text')] as const),
  ].filter(([, text]) => text !== undefined)
  const all = [...texts.map(([, text]) => text), ...(Array.isArray(resources) ? resources : [])]
  const isPlain = all.every((text) => typeof text === 'string' && plain.test(text))
  if (!isPlain || info.version !== '1') throw new Json.JsonError('not a message of version 1')
  return { ...Object.fromEntries(texts), ...(Array.isArray(resources) && { resources }) }
}

function networksOf(chains: Json.Json | undefined): Network.Id[] {
  const ids = (Array.isArray(chains) ? chains : []).filter(Json.isObject).flatMap((chain) => {
    const { type, chainId } = chain
    const isEvm = typeof chainId === 'string' && Network.chainIdOf(chainId) !== undefined
    return type === 'eip191' && isEvm ? [chainId as Network.Id] : []
  })
  if (ids.length === 0) throw new Json.JsonError('no network of this wallet')
  return ids.slice(0, networksMax)
}

/** The text that a wallet signs (EIP-4361). */
function messageOf(info: Json.JsonObject, address: Address, network: Network.Id): string {
  const { domain, statement, uri, nonce, issuedAt, expirationTime, notBefore, requestId } = info
  const { resources } = info
  const lines = [
    `${domain} wants you to sign in with your Ethereum account:`,
    address,
    '',
    ...(statement === undefined ? [] : [statement]),
    '',
    `URI: ${uri}`,
    'Version: 1',
    `Chain ID: ${Network.chainIdOf(network)}`,
    `Nonce: ${nonce}`,
    `Issued At: ${issuedAt}`,
    ...(expirationTime === undefined ? [] : [`Expiration Time: ${expirationTime}`]),
    ...(notBefore === undefined ? [] : [`Not Before: ${notBefore}`]),
    ...(requestId === undefined ? [] : [`Request ID: ${requestId}`]),
    ...(Array.isArray(resources) ? ['Resources:', ...resources.map((each) => `- ${each}`)] : []),
  ]
  return lines.join('\n')
}

/** The value of the header that signs in. */
export function sign(info: Json.JsonObject, network: Network.Id, privateKey: Uint8Array): string {
  const address = Crypto.addressOf(privateKey)
  const text = messageOf(info, address, network)
  const digest = Crypto.keccak256(`\x19Ethereum Signed Message:\n${text.length}${text}`)
  const signature = Crypto.sign(digest, privateKey)
  return encodeJson({ ...info, address, chainId: network, type: 'eip191', signature })
}

/** What the header `Payment-Entitlement` of an answer says: `a pass, 497 left, until 2026-11-29T20:00:00Z`. */
export function describe(entitlement: string): string {
  const names: Readonly<Record<string, string>> = { again: 'paid before', pass: 'a pass' }
  const { kind, remaining, until } = Object.fromEntries(
    entitlement.split(',').map((member) => {
      const [name = '', value = ''] = member.trim().split('=')
      return [name, value.replaceAll('"', '')]
    }),
  )
  const left = remaining === undefined ? '' : `, ${remaining} left`
  return `${names[kind ?? ''] ?? `a ${kind}`}${left}${until === undefined ? '' : `, until ${until}`}`
}
