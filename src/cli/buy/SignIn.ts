import * as Crypto from '../../protocol/Crypto'
import { decodeJson, encodeJson } from '../../protocol/Header'
import * as Json from '../../protocol/Json'
import * as Network from '../../protocol/Network'
import * as SignIn from '../../protocol/SignIn'

/** The buyer's side of the x402 extension `sign-in-with-x`: a signature in place of a payment. */

/** The extension, and the header of the request. */
export const header = SignIn.name

/** A message without its signer, or why it is not signed. */
type Offered = { info: Info; networks: readonly Network.Id[] } | { fault: string }

type Info = Omit<Parameters<typeof SignIn.message>[0], 'address' | 'chainId'>

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
  const extension = Json.readable(() => {
    const extensions = Json.optional(decodeJson(required ?? '', 'either'), 'extensions', 'object')
    return extensions && Json.optional(extensions, header, 'object')
  })
  if (extension === undefined) return undefined
  const offered = Json.readable(() => ({
    info: infoOf(Json.read(extension, 'info', 'object')),
    networks: networksOf(Json.member(extension, 'supportedChains')),
  }))
  if (offered === undefined) return { fault: 'the sign-in of the server cannot be read' }
  const { domain, uri } = offered.info
  return domain === url.host && isOf(uri, url)
    ? offered
    : { fault: `the server asks for a sign-in to ${domain}, for ${uri}` }
}

/** Whether a text is the URL, or its path or a part of it without the query, as for a long URL. */
function isOf(uri: string, { href, hash, origin, pathname }: URL): boolean {
  const stated = URL.parse(uri)
  if (stated?.origin !== origin || stated.hash !== '') return false
  if (stated.href === href.slice(0, href.length - hash.length)) return true
  return stated.search === '' && `${pathname}/`.startsWith(`${stated.pathname}/`)
}

/** The members of a message of version 1. Throws a JsonError. */
function infoOf(info: Json.JsonObject): Info {
  const text = (name: string) => plainText(Json.read(info, name, 'text'))
  const optional = (name: string) =>
    Json.member(info, name) === undefined ? undefined : text(name)
  const resources = Json.member(info, 'resources')
  if (Json.member(info, 'version') !== '1') throw new Json.JsonError('not version 1')
  return {
    ...{ domain: text('domain'), uri: text('uri'), version: text('version') },
    ...{ nonce: text('nonce'), issuedAt: text('issuedAt'), statement: optional('statement') },
    ...{ expirationTime: optional('expirationTime'), notBefore: optional('notBefore') },
    requestId: optional('requestId'),
    resources: Array.isArray(resources) ? resources.map(plainText) : undefined,
  }
}

function plainText(text: Json.Json): string {
  if (typeof text !== 'string' || !plain.test(text)) throw new Json.JsonError('not plain text')
  return text
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

/** The value of the header that signs in. */
export function sign(info: Info, chainId: Network.Id, privateKey: Uint8Array): string {
  const address = Crypto.addressOf(privateKey)
  const message = SignIn.message({ ...info, address, chainId })
  const signature = Crypto.sign(Crypto.messageDigest(message), privateKey)
  return encodeJson({ ...info, address, chainId, type: 'eip191', signature })
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
