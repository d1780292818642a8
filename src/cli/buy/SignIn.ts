import * as Crypto from '../../protocol/Crypto'
import { decodeJson, encodeJson } from '../../protocol/Header'
import * as Json from '../../protocol/Json'
import * as Network from '../../protocol/Network'
import * as Problem from '../../protocol/Problem'
import * as SignIn from '../../protocol/SignIn'
import { readable } from './Terms'

/** The buyer's side of the x402 extension `sign-in-with-x`: a signature in place of a payment. */

/** The extension, and the header of the request. */
export const header = SignIn.name

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

/** The value of the header that signs in. Throws for a challenge that `read` has not given. */
export function sign(info: Json.JsonObject, network: Network.Id, privateKey: Uint8Array): string {
  const address = Crypto.addressOf(privateKey)
  const payload = { ...info, address, chainId: network, type: 'eip191' }
  const parsed = SignIn.parse(encodeJson({ ...payload, signature: '0x00' }))
  if (Problem.isFault(parsed)) throw new Error(parsed.detail)
  return encodeJson({ ...payload, signature: Crypto.sign(SignIn.digest(parsed), privateKey) })
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
