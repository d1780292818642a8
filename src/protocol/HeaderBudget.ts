import type { Detail } from './Challenge'
import * as Channel from './Channel'
import type { SignedOffer } from './Offer'
import { isUri } from './SignIn'
import { approvalName, permitName } from './Sponsoring'
import type { Declaration, Extension, Extensions, PaymentRequired, Requirements } from './X402'
import * as X402 from './X402'

/**
 * Chooses what the head of a 402 contains. nginx with its default settings answers 502 when the
 * head of an answer is longer than 4 KB (proxy_buffer_size).
 *
 * Every head has `resource`, an `accepts` entry and a challenge of each network, the salt that
 * clients echo, and the sign-in of an item that has one. The entry is the first one in the file. Some clients read the head alone and pay by
 * EIP-3009 only, such as those in Python: where no network lists it first, one has its entry in place
 * of the first. The following is added in this order while there is room:
 *
 * 1. the requested URL, else the route's own, else its origin
 * 2. `digest` in the challenges of a request with a body
 * 3. the permit that lets a wallet without native gas pay by Permit2
 * 4. the schemes `upto` and of channels, first without a transfer method that is the default, then
 *    further transfer methods, in file order. Without a body `upto` comes after 7: that is how indexers ask
 * 5. Permit2 in the challenges, beside EIP-3009
 * 6. the signed approve, as 3 but more work for the client
 * 7. bazaar in its brief form: indexers read the head alone, and buyers find what they list
 * 8. description and media type
 * 9. payment-identifier, whose purpose Idempotency-Key also serves, first without its schema
 * 10. members of challenges that have defaults in the draft
 * 11. signed offers: first of each price on a mainnet, then all
 * 12. bazaar with its examples
 *
 * Where even the first addition does not fit (three networks with both methods each, long names),
 * the head has the shorter entry of each network, then fewer challenges, then fewer networks,
 * dropped from the end. After a refused x402 payment challenges are dropped first, and for a sign-in,
 * too. A sign-in that does not fit beside all networks is left out. The body has everything else.
 */

/** Bytes of the whole head: status line, headers, and the empty line. */
const headMaxBytes = 3584

type Input = {
  /** The complete 402, under the route's own URL, with a sample salt. */
  full: PaymentRequired
  more: readonly Declaration[]
  signed: readonly SignedOffer[]
  isTestnet: (network: string) => boolean
  /** Number of MPP challenges. */
  challenges: number
  /** Bytes of the first `count` challenges, without a digest. */
  challengeBytes: (detail: Detail, count: number) => number
  /** Bytes of the other headers, and of the names of these. */
  besideBytes: number
  /** Bytes of the sign-in without its URL. */
  signInBytes: number
}

/** What differs between two answers of a route. */
export type Ask = {
  /** The requested URL. */
  url: string
  /** Whether the request's body has a digest. */
  hasDigest: boolean
  error: string
  /** Bytes of further headers of this answer. */
  moreBytes: number
  /** Whether an x402 payment was refused. */
  isX402: boolean
  /** Whether a wallet may sign in for this request. */
  hasSignIn: boolean
}

/** The parts that fit. */
export type Choice = {
  url: string
  hasDigest: boolean
  /** The URL of the sign-in; undefined: the head has none. */
  signInUrl: string | undefined
  /** The parts that every head has. */
  base: Base
  /** Names of the other parts that fit. */
  parts: ReadonlySet<string>
  /** Heads of one key differ only in URL, digest, salt and error. */
  key: number
}

type Budget = ReturnType<typeof compile>

type Base = { accepts: readonly Requirements[]; challenges: number; json: number; plain: number }
/** Its bytes: of JSON before its base64, and of challenges. */
type Part = { name: string; json?: number; plain?: number; needs?: readonly string[] }

/** In the order of priority. */
type Parts = { withBody: readonly Part[]; bodiless: readonly Part[] }

const digestBytes = `, digest="sha-256=:${'A'.repeat(44)}:"`.length
/** URL, salt, and the parts between them begin at whole groups of base64. */
const paddingBytes = 6

/** Measures everything that a head can contain. */
export function compile(input: Input) {
  const { full, challenges, challengeBytes } = input
  const { firsts, shortest, further, optional } = byNetwork(full.accepts)
  const base = (accepts: readonly Requirements[], count: number): Base => {
    const extensions = saltOnly(full.extensions)
    const least = { ...full, resource: { url: '' }, accepts, extensions }
    const json = paddingBytes + bytesOf(least)
    return { accepts, challenges: count, json, plain: challengeBytes('bare', count) }
  }
  const counts = Array.from({ length: Math.max(1, challenges) }, (_, gone) => challenges - gone)
  const all = counts.map((count) => base(firsts, count))
  const short = counts.map((count) => base(shortest, count))
  const few = shortest.map((_, gone) => base(shortest.slice(0, shortest.length - gone), 1))
  const forms = formsOf(input)
  return {
    input,
    forms,
    urls: [full.resource.url, new URL(full.resource.url).origin] as const,
    parts: partsOf(input, forms, further, optional),
    bases: [...all.slice(0, 1), ...short, ...few],
    x402Bases: [...all, ...short, ...few],
  }
}

/** Chooses the content of a head. It only adds sizes, because it runs for each new URL. */
export function choose(budget: Budget, ask: Ask): Choice {
  const signedIn = ask.hasSignIn ? leastWithSignIn(budget, ask) : undefined
  return fill(budget.parts, ask, signedIn ?? leastOf(budget, ask))
}

type Least = Pick<Choice, 'url' | 'signInUrl' | 'base'> & {
  index: number
  json: number
  left: number
}

const basesOf = (budget: Budget, { isX402 }: Ask) => (isX402 ? budget.x402Bases : budget.bases)

function leastOf(budget: Budget, ask: Ask): Least {
  const bases = basesOf(budget, ask)
  for (const [index, base] of bases.entries())
    for (const url of [ask.url, ...budget.urls]) {
      const least = measure(budget, ask, { url, signInUrl: undefined, base, index })
      if (least.left >= 0) return least
    }
  const base = bases.at(-1)
  if (base === undefined) throw new Error('a 402 needs an offer')
  const own = { url: budget.urls[1], signInUrl: undefined, base, index: bases.length - 1 }
  return { ...own, json: 0, left: 0 }
}

/** For a sign-in challenges leave a head, then the query, and never a network or the path. */
function leastWithSignIn(budget: Budget, ask: Ask): Least | undefined {
  const bases = basesOf(budget, ask)
  const [ownUrl] = budget.urls
  for (const url of [ask.url, ownUrl]) {
    // A message takes fewer characters than a request.
    const signInUrl = isUri(url) ? url : ownUrl
    for (const [index, base] of bases.entries()) {
      if (base.accepts.length !== bases[0]?.accepts.length) break
      const least = measure(budget, ask, { url, signInUrl, base, index })
      if (least.left >= 0) return least
    }
  }
  return undefined
}

/** The size of a base with a URL, and what it leaves. */
function measure({ input }: Budget, ask: Ask, own: Omit<Least, 'json' | 'left'>): Least {
  const { url, signInUrl, base } = own
  const roomBytes = headMaxBytes - input.besideBytes - ask.moreBytes
  const errorBytes = ask.error.length - input.full.error.length
  const signInBytes = signInUrl === undefined ? 0 : input.signInBytes + signInUrl.length + 2
  const json = base.json + errorBytes + signInBytes + JSON.stringify(url).length - 2
  return { ...own, json, left: roomBytes - base.plain - encoded(json) }
}

/** Adds parts in the order of priority while there is room. */
function fill(all: Parts, ask: Ask, { index, json, left, ...own }: Least): Choice {
  const parts = new Set<string>()
  let room = left
  let size = json
  const digest = digestBytes * own.base.challenges
  const hasDigest = ask.hasDigest && digest <= room
  if (hasDigest) room -= digest
  let key = index * 4 + (ask.isX402 ? 2 : 0) + (ask.hasDigest ? 1 : 0)
  const ordered = ask.hasDigest ? all.withBody : all.bodiless
  for (const { name, json: more = 0, plain = 0, needs = [] } of ordered) {
    key *= 2
    const cost = plain + encoded(size + more) - encoded(size)
    if (cost > room || needs.some((each) => !parts.has(each))) continue
    room -= cost
    size += more
    key++
    parts.add(name)
  }
  return { ...own, hasDigest, parts, key }
}

/** The content of the head of a choice. */
export function headOf({ input, forms }: Budget, { base, parts }: Choice) {
  const { full } = input
  const detail: Detail = parts.has('defaults') ? 'full' : parts.has('permit2') ? 'short' : 'bare'
  const extensions: Record<string, Extension> = {}
  for (const { name, extension } of forms) if (parts.has(name)) extensions[nameOf(name)] = extension
  return {
    accepts: full.accepts.flatMap((accept, index) => {
      if (base.accepts.includes(accept) || parts.has(wholeName(index))) return [accept]
      if (!parts.has(acceptName(index))) return []
      return [X402.brief(accept)]
    }),
    extensions: { ...extensions, ...saltOnly(full.extensions) },
    /** With description and media type. */
    isDescribed: parts.has('resource'),
    detail,
    /** Number of MPP challenges, from the first on. */
    challenges: base.challenges,
  }
}

/** A form of an extension, the shorter one first. `permit#brief` and `permit` are one extension. */
type Form = { name: string; extension: Extension }

const nameOf = (form: string): string => form.split('#')[0] ?? form
const acceptName = (index: number): string => `accepts#${index}`
const wholeName = (index: number): string => `${acceptName(index)}#whole`

function formsOf({ full, more, signed, isTestnet }: Input): readonly Form[] {
  const brief: Record<string, Extension | undefined> = {
    'payment-identifier': { info: { required: false }, schema: { type: 'object' } },
    'offer-receipt': distinct(signed, isTestnet),
    ...Object.fromEntries(more.map((declared) => [declared.name, declared.brief])),
  }
  return Object.entries(full.extensions).flatMap(([name, extension]) => {
    const shorter = brief[name]
    if (name === salted) return []
    const long = { name, extension }
    return shorter === undefined ? [long] : [{ name: `${name}#brief`, extension: shorter }, long]
  })
}

/** One signed offer for each set of terms, which the methods of an asset share; no testnets. */
function distinct(
  signed: readonly SignedOffer[],
  isTestnet: (network: string) => boolean,
): Extension | undefined {
  const stated = new Set<string>()
  const offers = signed.flatMap((offer, acceptIndex) => {
    if (stated.has(offer.signature) || isTestnet(offer.payload.network)) return []
    stated.add(offer.signature)
    return [{ ...offer, acceptIndex }]
  })
  if (offers.length === 0) return undefined
  return { info: { offers }, schema: { type: 'object' } }
}

/** Everything beyond the base, in the order of priority. */
function partsOf(
  input: Input,
  forms: readonly Form[],
  further: readonly number[],
  optional: readonly number[],
): Parts {
  const { full, challenges, challengeBytes } = input
  const plain = (name: string, detail: Detail, before: Detail, ...needs: string[]): Part => {
    const cost = challengeBytes(detail, challenges) - challengeBytes(before, challenges)
    return { name, plain: cost, needs }
  }
  const extension = (name: string): Part[] => {
    const own = forms.filter((form) => nameOf(form.name) === name)
    // The offers refer to entries by index, so they need all further entries.
    const first = name === 'offer-receipt' ? [...further, ...optional].map(acceptName) : []
    return own.map((form, index) => {
      const before = own[index - 1]
      const json = before === undefined ? costOf(name, form) : costOf('', form) - costOf('', before)
      return { name: form.name, json, needs: before === undefined ? first : [before.name] }
    })
  }
  const { description, mimeType } = full.resource
  const resource = { name: 'resource', json: bytesOf({ description, mimeType }) - 1 }
  const entries = further.map(
    (index): Part => ({ name: acceptName(index), json: bytesOf(full.accepts[index] ?? {}) + 1 }),
  )
  const isByChannel = (index: number) => full.accepts[index]?.scheme === Channel.scheme
  const channels = optionalParts(full, optional.filter(isByChannel))
  const upto = optionalParts(
    full,
    optional.filter((index) => !isByChannel(index)),
  )
  const known = [permitName, approvalName, 'payment-identifier', 'offer-receipt', 'bazaar']
  const others = Object.keys(full.extensions).filter((name) => ![...known, salted].includes(name))
  const beforeBazaar = [
    ...entries,
    plain('permit2', 'short', 'bare'),
    ...extension(approvalName),
    ...extension('bazaar').slice(0, 1),
  ]
  const after = [
    resource,
    ...extension('payment-identifier'),
    plain('defaults', 'full', 'short', 'permit2'),
    ...extension('offer-receipt'),
    ...extension('bazaar').slice(1),
    ...others.flatMap(extension),
  ]
  const permit = extension(permitName)
  return {
    withBody: [...permit, ...upto, ...channels, ...beforeBazaar, ...after],
    bodiless: [...permit, ...channels, ...beforeBazaar, ...upto, ...after],
  }
}

/** The entries of optional schemes: all of them in brief, then whole. */
function optionalParts(full: PaymentRequired, optional: readonly number[]): Part[] {
  const entries = optional.flatMap((index): { brief: Part; whole: Part }[] => {
    const accept = full.accepts[index]
    if (accept === undefined) return []
    const [name, json] = [acceptName(index), bytesOf(X402.brief(accept)) + 1]
    const more = bytesOf(accept) + 1 - json
    const whole = { name: wholeName(index), json: more, needs: [name] }
    return [{ brief: { name, json }, whole }]
  })
  return [...entries.map(({ brief }) => brief), ...entries.map(({ whole }) => whole)]
}

/** Length of `"name":{..},` in JSON. The extension with the salt always follows. */
function costOf(name: string, { extension }: Form): number {
  return bytesOf(name) + 1 + bytesOf(extension) + 1
}

/** The entry of each network that every head has, the shortest of each, and indexes of further ones. */
function byNetwork(accepts: readonly Requirements[]) {
  const firsts = new Map<string, number>()
  const shortest = new Map<string, Requirements>()
  const isPlain = (index: number) => accepts[index]?.extra.assetTransferMethod === 'eip3009'
  const optional: number[] = []
  const hasExact = accepts.some(({ scheme }) => scheme === 'exact')
  for (const [index, accept] of accepts.entries()) {
    const { network } = accept
    // Clients pay by another scheme only when their application asked for it, so it is no base.
    if (hasExact && accept.scheme !== 'exact') {
      optional.push(index)
      continue
    }
    if (!firsts.has(network)) firsts.set(network, index)
    const short = shortest.get(network)
    if (!short || bytesOf(accept) < bytesOf(short)) shortest.set(network, accept)
  }
  const exact = [...accepts.keys()].filter((index) => !optional.includes(index))
  if (![...firsts.values()].some(isPlain)) {
    const plain = exact.find(isPlain)
    if (plain !== undefined) firsts.set(accepts[plain]?.network ?? '', plain)
  }
  const own = new Set(firsts.values())
  return {
    firsts: accepts.filter((_, index) => own.has(index)),
    shortest: [...shortest.values()],
    further: exact.filter((index) => !own.has(index)),
    optional,
  }
}

const salted = 'mppx'

/** The extension that every head has. */
export function saltOnly(extensions: Extensions): Extensions {
  const own = extensions[salted]
  return own === undefined ? {} : { [salted]: own }
}

function bytesOf(value: unknown): number {
  return Buffer.byteLength(JSON.stringify(value))
}

/** Length of the base64 of so many bytes. */
function encoded(bytes: number): number {
  return Math.ceil(bytes / 3) * 4
}
