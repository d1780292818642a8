import type { Address } from 'viem'
import type { Tally } from '../../books/tally'
import * as Challenge from '../../protocol/Challenge'
import type * as Network from '../../protocol/Network'
import type { Offer } from '../../protocol/Offer'
import * as Problem from '../../protocol/Problem'
import type { Sale } from '../../settlement/state/availability'
import * as Denial from '../Denial'
import {
  type CompiledOffers,
  type CompileOptions,
  compile,
  keptMs,
  type Page,
  pageFor,
  refusedPage,
  toBody,
  validForSeconds,
} from './compile'
import type { Item } from './Item'

export type QuoterOptions = CompileOptions & {
  /**
   * Why a network is not offered for a price now, as the end of a sentence; undefined when it is.
   */
  whyNot: (network: Network.Id, sale: Sale) => string | undefined
  /** Relayers that may settle a ceiling on a network by the scheme `upto`, in any order. */
  facilitators: (network: Network.Id, ceilingAtomic: bigint) => readonly Address[]
  tally: Tally
  now: () => number
  /** The base64 of a random salt of 15 letters, digits, `-` and `_`. */
  salt: () => string
}

/** Why a request with a credential gets a 402, for the body and `PAYMENT-RESPONSE`. */
export type CredentialRefusal = {
  problem: Problem.ProblemError
  headers?: Readonly<Record<string, string>>
}

/** What is asked for. */
type Asked = {
  item: Item
  /**
   * Absolute, with its query, as requested. Some clients refuse an x402 resource that is not the URL
   * they requested, others pay for what it names.
   */
  url: string
  requestId: string
}

/**
 * The 402 of an item, with a fresh MPP challenge per network and the x402 offers. Uses neither the
 * database nor the chain. Throws ProblemError when none of its networks can settle.
 */
export type Quoter = (asked: Asked, details: ChallengeDetails) => Response

export type ChallengeDetails = {
  /** RFC 9530 digest of the request body, bound into the MPP challenges. */
  digest?: string | undefined
  /** Parameters that cannot be served, computed only when the answer is not cached yet. */
  invalidParams?: () => readonly { name: string; reason: string }[]
  /** Whether the request has no body, so that the URL alone determines the parameters. */
  isBodiless?: boolean
  /** Additional members of the body, for people and programs that read it. */
  members?: Readonly<Record<string, unknown>> | undefined
  refusal?: CredentialRefusal | undefined
}

/**
 * Makes the 402 answers of all items; constants are built once per item and minute, on first use.
 */
export function createQuoter(options: QuoterOptions): Quoter {
  const { tally, now } = options
  const [secret] = options.challengeSecrets
  if (secret === undefined) throw new Error('no challenge secret')
  const compiledByItem = new WeakMap<Item, CompiledOffers>()
  const expires = expiresSource()
  let turn = 0

  return ({ item, url, requestId }, details) => {
    // All answers 402 pass here, so it only adds to numbers.
    const counts = tally.of(item)
    counts.sent++
    const at = now()
    const ready = readiness(item, options, at)
    if (ready === 0) {
      const reasons = item.offers.map((offer) => whyNot(item, offer, options, at))
      throw Denial.noNetwork([...new Set(reasons)].join('; '))
    }
    const facilitators = item.isByUse === true ? facilitatorsOf(item, options) : ''
    let compiled = compiledByItem.get(item)
    if (
      compiled === undefined ||
      compiled.ready !== ready ||
      compiled.facilitators !== facilitators ||
      !isFresh(compiled, at)
    ) {
      const facilitatorOf = item.isByUse === true ? inTurn(options, turn++) : noFacilitator
      const compiling = { ready, madeAt: at, facilitators, facilitatorOf }
      compiled = compile(item, compiling, secret, options)
      compiledByItem.set(item, compiled)
    }
    const { digest, refusal } = details
    const fresh: Fresh = { salt: options.salt(), expires: expires(at), requestId, digest }
    if (refusal !== undefined) return refuse(compiled, url, fresh, refusal)
    const page = pageFor(compiled, url, digest !== undefined)
    const headers = freshen(page, fresh)
    counts.asked++
    // Creating a Response copies the headers, so the page's headers can be reused.
    return new Response(bodyOf(compiled, page, fresh, details), { status: 402, headers })
  }
}

/** All relayers that offers may name, as one text, to notice a change. */
function facilitatorsOf({ offers }: Item, { facilitators }: QuoterOptions): string {
  return offers
    .map(({ network, amountAtomic }) => facilitators(network.id, amountAtomic).join())
    .join(';')
}

/** Names one relayer after the other, so that each has its part of the settlements. */
function inTurn({ facilitators }: QuoterOptions, turn: number) {
  return ({ network, amountAtomic }: Offer): Address | undefined => {
    const all = facilitators(network.id, amountAtomic)
    return all[turn % all.length]
  }
}

const noFacilitator = (): undefined => undefined

/** Values that differ in every answer. */
type Fresh = {
  salt: string
  expires: string
  requestId: string
  digest: string | undefined
}

/** The headers of a page with the values of this answer. */
function freshen({ headers, header, challenges, hasDigest }: Page, fresh: Fresh): Headers {
  const { salt, expires } = fresh
  const digest = hasDigest ? fresh.digest : undefined
  // Ignore `Accept-Payment`: every challenge is evm/charge, so it could only exclude all of them.
  // In that case the draft permits a server to send them.
  headers.set('www-authenticate', Challenge.issue(challenges, { expires, salt, digest }))
  headers.set('payment-required', header[0] + salt + header[1])
  headers.set('x-request-id', fresh.requestId)
  return headers
}

/** The body's `challenges`, when the header shortens or omits a challenge. */
function leftOut(
  compiled: CompiledOffers,
  { expires, salt, digest }: Fresh,
): Record<string, string>[] {
  const all = Challenge.issue(compiled.challengesOf('full'), { expires, salt, digest })
  return Challenge.parseHeader(all)
}

/**
 * False also when the clock was set back, because the signed offers would be promised for too long.
 */
function isFresh(compiled: CompiledOffers, now: number): boolean {
  const age = now - compiled.madeAt
  return age >= 0 && age < keptMs
}

/** One bit per offer that can settle now. */
function readiness(item: Item, options: Pick<QuoterOptions, 'whyNot'>, at: number): number {
  let bits = 0
  for (let i = 0; i < item.offers.length; i++) {
    const offer = item.offers[i]
    if (offer !== undefined && whyNot(item, offer, options, at) === undefined) bits |= 1 << i
  }
  return bits
}

function whyNot(
  item: Item,
  { network, amountAtomic }: Offer,
  options: Pick<QuoterOptions, 'whyNot'>,
  at: number,
): string | undefined {
  return options.whyNot(network.id, { product: item.product ?? 'gateway', amountAtomic, at })
}

/** The problem of a refused credential; its header and body name the same error. */
function refuse(
  compiled: CompiledOffers,
  url: string,
  fresh: Fresh,
  refusal: CredentialRefusal,
): Response {
  const { problem, headers: more = {} } = refusal
  const error = problem.reason ?? problem.code
  let moreBytes = 0
  for (const [name, value] of Object.entries(more)) moreBytes += name.length + value.length + 4
  const isX402 = more['payment-response'] !== undefined
  const hasDigest = fresh.digest !== undefined
  const page = refusedPage(compiled, { url, hasDigest, error, moreBytes, isX402 })
  const body = {
    ...toBody(compiled.required, url),
    ...compiled.beside,
    ...(page.isShort ? { challenges: leftOut(compiled, fresh) } : {}),
    ...Problem.toJson(problem),
    error,
  }
  for (const [name, value] of Object.entries(more)) page.headers.set(name, value)
  return new Response(JSON.stringify(body), { status: 402, headers: freshen(page, fresh) })
}

/** The body; requests with the same content share one string. */
function bodyOf(
  compiled: CompiledOffers,
  page: Page,
  fresh: Fresh,
  details: ChallengeDetails,
): string {
  const isSame = details.isBodiless === true && !page.isShort
  if (isSame && page.bodiless !== undefined) return page.bodiless
  const more = page.isShort ? `,"challenges":${JSON.stringify(leftOut(compiled, fresh))}` : ''
  const body = `${page.open}${more}${membersOf(details)}}`
  if (isSame) page.bodiless = body
  return body
}

function membersOf(details: ChallengeDetails): string {
  if (details.members !== undefined) return `,${JSON.stringify(details.members).slice(1, -1)}`
  const invalidParams = details.invalidParams?.() ?? []
  return invalidParams.length === 0 ? '' : `,"invalidParams":${JSON.stringify(invalidParams)}`
}

/** RFC 3339 text of the expiry, rebuilt once a second. */
function expiresSource(): (now: number) => string {
  let second = 0
  let text = ''
  return (now) => {
    const current = Math.floor(now / 1000)
    if (current !== second) {
      second = current
      text = new Date((current + validForSeconds) * 1000).toISOString().replace('.000Z', 'Z')
    }
    return text
  }
}
