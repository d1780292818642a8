import type { Address } from 'viem'
import { countRefusal, type Tally } from '../../books/tally'
import { shortCorsHeaders } from '../../http/problem'
import * as Challenge from '../../protocol/Challenge'
import * as Channel from '../../protocol/Channel'
import type * as Client from '../../protocol/Client'
import * as HeaderBudget from '../../protocol/HeaderBudget'
import type * as Network from '../../protocol/Network'
import * as Offer from '../../protocol/Offer'
import * as Problem from '../../protocol/Problem'
import * as SignIn from '../../protocol/SignIn'
import * as Sponsoring from '../../protocol/Sponsoring'
import * as X402 from '../../protocol/X402'
import * as X402V1 from '../../protocol/X402V1'
import type { SaleTerms } from '../../settlement/state/availability'
import type { Correction } from '../ChannelState'
import * as Denial from '../Denial'
import type { Item } from './Item'

/** Seconds that MPP challenges and x402 offers are valid (specification 8). */
const validForSeconds = 300

/** Signed offers are made again after this time (ms), because a reload honours them only so long. */
const keptMs = 60_000

/** Characters of a salt: a multiple of three, so that its base64 can be concatenated. */
const saltLength = 15

type QuoterOptions = {
  /** Host name of base_url, the MPP realm. */
  realm: string
  /** The first secret signs. */
  challengeSecrets: readonly Uint8Array[]
  receiptKey: Uint8Array
  /** This service sends approves that payers signed. */
  takesApprovals: boolean
  /** Where holders of the asset get gas for an approve, and on which networks. */
  gasSponsor: { url: string; networks: readonly Network.Id[] }
  /**
   * Why a network is not offered for a price now, as the end of a sentence; undefined when it is.
   */
  whyNot: (network: Network.Id, sale: SaleTerms) => string | undefined
  /** Relayers that may settle a ceiling on a network by the scheme `upto`, in any order. */
  facilitators: (network: Network.Id, ceilingAtomic: bigint) => readonly Address[]
  /** What offers of a network say of payment channels now; the same object while nothing changes. */
  channelOf: (network: Network.Id) => X402.ChannelTerms | undefined
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
  clientKind: Client.Kind
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
  /** Fingerprint of the request; only where its item has sign-ins and its whole body is known. */
  signIn?: string | undefined
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

  return ({ item, url, requestId, clientKind }, details) => {
    // All answers 402 pass here, so it only adds to numbers.
    const counts = tally.of(item, clientKind)
    counts.sent++
    const at = now()
    const ready = readiness(item, options, at)
    const channels = item.isByChannel === true ? channelsOf(item, options, at) : noChannels
    if (ready === 0 && channels.every((terms) => terms === undefined)) {
      const reasons = item.offers.map((offer) => whyNot(item, offer, options, at))
      throw Denial.noNetwork([...new Set(reasons)].join('; '))
    }
    const facilitators = item.isByUse === true ? facilitatorsOf(item, options) : ''
    let compiled = compiledByItem.get(item)
    if (
      compiled === undefined ||
      compiled.ready !== ready ||
      compiled.facilitators !== facilitators ||
      compiled.channels.some((terms, i) => terms !== channels[i]) ||
      !isFresh(compiled, at)
    ) {
      const facilitatorOf = item.isByUse === true ? inTurn(options, turn++) : noFacilitator
      const compiling = { ready, madeAt: at, facilitators, facilitatorOf, channels }
      compiled = compile(item, compiling, secret, options)
      compiledByItem.set(item, compiled)
    }
    const { digest, signIn, refusal } = details
    const fresh: Fresh = {
      salt: options.salt(),
      expires: expires(at),
      requestId,
      digest,
      signIn,
      at,
    }
    if (refusal !== undefined) {
      if (!ofSignIns.has(refusal.problem.code)) countRefusal(counts, refusal.problem)
      return refuse(compiled, url, fresh, refusal)
    }
    const page = pageFor(compiled, url, fresh)
    const headers = freshen(compiled, page, fresh)
    counts.asked++
    // Creating a Response copies the headers, so the page's headers can be reused.
    return new Response(bodyOf(compiled, page, fresh, details), { status: 402, headers })
  }
}

/** Refusals that are not of a payment. */
const ofSignIns: ReadonlySet<string> = new Set<Problem.Code>(['sign-in-refused', 'not-entitled'])

/** All relayers that offers may name, as one text, to notice a change. */
function facilitatorsOf({ offers }: Item, { facilitators }: QuoterOptions): string {
  return offers
    .map(({ network, amountAtomic }) => facilitators(network.id, amountAtomic).join())
    .join(';')
}

/** The channels of each offer, also where a transfer costs too much gas for the price. */
function channelsOf({ offers }: Item, { channelOf, whyNot }: QuoterOptions, at: number): Channels {
  return offers.map(({ network: { id }, amountAtomic }) => {
    const why = whyNot(id, { product: 'gateway', amountAtomic, at, isByChannel: true })
    return why === undefined ? channelOf(id) : undefined
  })
}

type Channels = readonly (X402.ChannelTerms | undefined)[]

const noChannels: Channels = []

/** Names one relayer after the other, so that each has its part of the settlements. */
function inTurn({ facilitators }: QuoterOptions, turn: number) {
  return ({ network, amountAtomic }: Offer.Offer): Address | undefined => {
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
  /** Fingerprint of the request; undefined: no sign-in is offered. */
  signIn: string | undefined
  /** Unix ms. */
  at: number
}

/** The headers of a page with the values of this answer. */
function freshen({ signIn }: CompiledOffers, page: Page, fresh: Fresh): Headers {
  const { headers, header, challenges, hasDigest } = page
  const { salt, expires } = fresh
  const digest = hasDigest ? fresh.digest : undefined
  // Ignore `Accept-Payment`: every challenge is evm/charge, so it could only exclude all of them.
  // In that case the draft permits a server to send them.
  headers.set('www-authenticate', Challenge.issue(challenges, { expires, salt, digest }))
  // A route without `exact` has no challenge.
  if (challenges.terms.length === 0) headers.delete('www-authenticate')
  const own = page.hasSignIn && signIn ? header[0] + freshSignIn(signIn, fresh) : header[0]
  headers.set('payment-required', own + header[1] + salt + header[2])
  headers.set('x-request-id', fresh.requestId)
  return headers
}

/** Base64 of a challenge for this request. The hash of the salt repeats as rarely as the salt. */
function freshSignIn(compiled: SignIn.Compiled, { salt, signIn = '', at }: Fresh): string {
  const random = Bun.hash(salt).toString(16).padStart(16, '0')
  const issuedAt = new Date(at).toISOString()
  const expirationTime = new Date(at + SignIn.validMs).toISOString()
  return base64(SignIn.issue(compiled, { random, issuedAt, expirationTime, fingerprint: signIn }))
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
  { network, amountAtomic }: Offer.Offer,
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
  const correction = correctedBy(compiled, problem)
  // Its base64 in the head, beside what the head must have.
  if (correction) moreBytes += Math.ceil(JSON.stringify(correction.entry).length / 3) * 4
  const isX402 = more['payment-response'] !== undefined || correction !== undefined
  const [hasDigest, hasSignIn] = [fresh.digest !== undefined, fresh.signIn !== undefined]
  const ask = { url, hasDigest, hasSignIn, error, moreBytes, isX402 }
  const choice = HeaderBudget.choose(compiled.budget, ask)
  // Not cached, because it differs each time.
  const page = pageOf(compiled, planOf(compiled, choice, error, correction), choice, ask)
  const required = { ...compiled.required, ...(correction && { accepts: correction.accepts }) }
  const body = {
    ...toBody({ ...compiled, required }, url, error),
    ...compiled.beside,
    ...(page.isShort ? { challenges: leftOut(compiled, fresh) } : {}),
    ...Problem.toJson(problem),
  }
  for (const [name, value] of Object.entries(more)) page.headers.set(name, value)
  const headers = freshen(compiled, page, fresh)
  return new Response(JSON.stringify(body), { status: 402, headers })
}

/** The entry of a channel with its state, and the offers with it in place of the one that all clients get. */
type Corrected = Pick<X402.PaymentRequired, 'accepts'> & { entry: X402.Requirements }

function correctedBy(
  { required }: CompiledOffers,
  { members }: Problem.ProblemError,
): Corrected | undefined {
  const correction = members.channel as Correction | undefined
  if (correction === undefined) return undefined
  const { network, ...state } = correction
  const isOf = (each: X402.Requirements) =>
    each.scheme === Channel.scheme && each.network === network
  const plain = required.accepts.find(isOf)
  if (plain === undefined) return undefined
  const entry = { ...plain, extra: { ...plain.extra, ...state } }
  return { entry, accepts: required.accepts.map((each) => (each === plain ? entry : each)) }
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

/** All parts of a 402 that stay the same for a minute. */
type CompiledOffers = ReturnType<typeof compile>

/** Parts that do not depend on the URL. */
type Plan = {
  challenges: Challenge.Compiled
  /** Whether the body contains what the header omits. */
  isShort: boolean
  /** JSON of `PAYMENT-REQUIRED` before the URL, between URL and salt, and after the salt. */
  json: readonly [before: string, between: string, after: string]
}

/** The parts of a 402 that depend on the URL and on whether there is a digest. */
type Page = {
  url: string
  asksDigest: boolean
  asksSignIn: boolean
  challenges: Challenge.Compiled
  hasDigest: boolean
  /** Whether a challenge is shortened or missing in the header, so that the body contains it. */
  isShort: boolean
  hasSignIn: boolean
  /** Base64 of `PAYMENT-REQUIRED` before the sign-in, between it and the salt, and after the salt. */
  header: readonly [before: string, between: string, after: string]
  /** JSON of the body up to its closing brace. */
  open: string
  /** The whole body for a request without a body, after the first such request. */
  bodiless: string | undefined
  /** Headers that all answers copy; each answer overwrites the values that must be fresh. */
  headers: Headers
}

type Compiling = {
  /** Unix ms. Items expire at different times, because renewing all at once would block answers. */
  madeAt: number
  /** One bit per offer that can settle. */
  ready: number
  /** Relayers that may be named for each offer of the scheme `upto`, as one text. */
  facilitators: string
  /** The relayer that an offer of the scheme `upto` names; undefined: there is none. */
  facilitatorOf: (offer: Offer.Offer) => Address | undefined
  /** By the offers of the item. */
  channels: Channels
}

/** `secret` signs the challenges. Throws when no offer is ready. */
function compile(
  item: Item,
  { ready, madeAt, facilitators, facilitatorOf, channels }: Compiling,
  secret: Uint8Array,
  options: QuoterOptions,
) {
  const offers = item.offers.filter((_, i) => (ready & (1 << i)) !== 0)
  const channelOf = (offer: Offer.Offer) => channels[item.offers.indexOf(offer)]
  const accepts = [
    ...X402.accepts(offers, { isExact: item.isExact !== false, facilitatorOf }),
    ...(channels.length === 0 ? [] : X402.accepts(item.offers, { isExact: false, channelOf })),
  ]
  // Without `exact`, where the contracts of the other schemes are not there.
  if (accepts.length === 0) throw Denial.noNetwork('it has no scheme of this route')
  const validUntil = Math.floor(madeAt / 1000) + validForSeconds + keptMs / 1000
  const signed = accepts.map((requirements) =>
    Offer.sign({ resourceUrl: item.resource.url, requirements, validUntil }, options.receiptKey),
  )
  const more = [...item.extensions, ...Sponsoring.declarations(offers, options.takesApprovals)]
  const salt = 's'.repeat(saltLength)
  const required = X402.paymentRequired({
    resource: item.resource,
    accepts,
    extensions: X402.extensions({ offers: signed, method: item.method, salt, more }),
    error: 'Payment required',
  })
  const signIn =
    item.signIn === undefined
      ? undefined
      : SignIn.compile({
          domain: new URL(item.resource.url).host,
          chains: [...new Set(item.offers.map(({ network }) => network.id))],
          terms: item.signIn,
          secret,
        })
  const version1 = item.takesV1 === true ? X402V1.accepts(offers, item.resource) : []
  // mppx pays the first challenge, and only by EIP-3009: put EIP-3009 challenges first.
  const mppOffers = [true, false].flatMap((isAuthorized) =>
    item.mppOffers.filter(
      (offer) =>
        offers.includes(offer) && offer.network.asset.transfer.includes('eip3009') === isAuthorized,
    ),
  )
  const challengesOf = compileChallenges(mppOffers, item.id, secret, options.realm)
  const testnets = item.offers
    .filter(({ network }) => network.testnet)
    .map(({ network }) => network.id)
  const isSponsored = offers.some(({ network }) => options.gasSponsor.networks.includes(network.id))
  /** Members that only the body has. */
  const beside: { gasSponsor?: string } = isSponsored ? { gasSponsor: options.gasSponsor.url } : {}
  return {
    madeAt,
    ready,
    facilitators,
    channels,
    challengesOf,
    /** Whether some asset is accepted by EIP-3009 or Permit2. */
    hasBoth: mppOffers.some(({ network }) => network.asset.transfer.length > 1),
    /** The x402 payload, with an example salt. */
    required,
    /** The offers of version 1, with an example URL. */
    version1,
    signIn,
    beside,
    budget: HeaderBudget.compile({
      full: required,
      more,
      signed,
      isTestnet: (network) => testnets.some((id) => id === network),
      challenges: mppOffers.length,
      challengeBytes: (detail, count) =>
        Challenge.issue(challengesOf(detail, count), { expires: anyExpiry, salt: btoa(salt) })
          .length,
      besideBytes: besideBytes + (item.besideBytes ?? 0),
      signInBytes: (signIn?.open.length ?? 0) + SignIn.freshLength + paddingBytes,
    }),
    /** The plans by `HeaderBudget.Choice.key`. */
    plans: new Map<number, Plan>(),
    /** JSON of the body around its URLs. Without a salt, so that answers share the string. */
    body: JSON.stringify({
      ...paymentRequired,
      ...toBody({ required, version1 }, anyUrl, required.error),
      ...beside,
    }).split(JSON.stringify(anyUrl)),
    /** The newest page; routes without parameters have only one. */
    page: undefined as Page | undefined,
  }
}

/** The sign-in and the part behind it begin at whole groups of base64. */
const paddingBytes = 6

const anyExpiry = '2026-01-01T00:00:00Z'

/** Stands for the URL. No URL and no text of a configuration is a control character alone. */
const anyUrl = '\u0000'

/** Challenges of the first offers, up to a count, compiled on first use. */
function compileChallenges(
  offers: Item['mppOffers'],
  routeId: string,
  secret: Uint8Array,
  realm: string,
) {
  const made = new Map<Challenge.Detail, Challenge.Compiled>()
  return (detail: Challenge.Detail, count = offers.length): Challenge.Compiled => {
    const all = made.get(detail) ?? Challenge.compile({ realm, offers, routeId, secret, detail })
    made.set(detail, all)
    return count === offers.length ? all : { ...all, terms: all.terms.slice(0, count) }
  }
}

/** The page for a URL, which is ASCII. */
function pageFor(compiled: CompiledOffers, url: string, fresh: Fresh): Page {
  const { page, budget, plans } = compiled
  const hasDigest = fresh.digest !== undefined
  const hasSignIn = fresh.signIn !== undefined
  if (page?.url === url && page.asksDigest === hasDigest && page.asksSignIn === hasSignIn)
    return page
  const { error } = compiled.required
  const ask = { url, hasDigest, hasSignIn, error, moreBytes: 0, isX402: false }
  const choice = HeaderBudget.choose(budget, ask)
  const plan = plans.get(choice.key) ?? planOf(compiled, choice, error)
  plans.set(choice.key, plan)
  compiled.page = pageOf(compiled, plan, choice, ask)
  return compiled.page
}

/** With a correction the head has that entry alone: its client takes no other. */
function planOf(
  compiled: CompiledOffers,
  choice: HeaderBudget.Choice,
  error: string,
  correction?: Corrected,
): Plan {
  const { required, budget } = compiled
  const head = HeaderBudget.headOf(budget, choice)
  const { url } = required.resource
  const payload = X402.paymentRequired({
    resource: head.isDescribed && !correction ? required.resource : { url },
    accepts: correction ? [correction.entry] : head.accepts,
    extensions: correction ? HeaderBudget.saltOnly(head.extensions) : head.extensions,
    error,
  })
  const isBare = head.detail === 'bare' && compiled.hasBoth
  return {
    challenges: compiled.challengesOf(head.detail, head.challenges),
    isShort: isBare || head.challenges < compiled.challengesOf('bare').terms.length,
    json: cut(JSON.stringify(payload), required),
  }
}

function pageOf(
  compiled: CompiledOffers,
  plan: Plan,
  choice: HeaderBudget.Choice,
  { url, hasDigest: asksDigest, hasSignIn: asksSignIn }: HeaderBudget.Ask,
): Page {
  const { hasDigest, signInUrl } = choice
  const { challenges, json } = plan
  const quoted = JSON.stringify(choice.url)
  // Groups of three bytes can be encoded separately, and JSON ignores the padding spaces.
  const before = aligned(json[0]) + aligned(quoted)
  // The extension with the salt is the last one.
  const at = signInUrl === undefined ? 0 : json[1].lastIndexOf('"mppx":')
  const signIn =
    signInUrl === undefined
      ? ''
      : aligned(json[1].slice(0, at) + compiled.signIn?.open + JSON.stringify(signInUrl))
  const between = aligned(json[1].slice(at, -1), 1)
  const body = compiled.body.join(JSON.stringify(url))
  return {
    url,
    asksDigest,
    asksSignIn,
    challenges,
    hasDigest,
    hasSignIn: signInUrl !== undefined,
    isShort: plan.isShort || hasDigest !== asksDigest,
    header: [base64(before + signIn), base64(`${between}"`), base64(json[2])],
    open: body.slice(0, -1),
    bodiless: undefined,
    headers: new Headers(commonHeaders),
  }
}

/**
 * The x402 members of a body: the complete payload without the salt. With a salt no two answers could
 * share a body, and clients of version 2 read the header. Clients of version 1 read the body, and refuse
 * it for an offer that they do not know, so beside theirs the payload is the member `x402`.
 */
function toBody(
  {
    required,
    version1,
  }: { required: X402.PaymentRequired; version1: readonly X402V1.Requirements[] },
  url: string,
  error: string,
) {
  const { resource, extensions } = required
  const asked = { ...resource, url }
  const whole = { ...required, error, resource: asked, extensions: X402.unsalted(extensions) }
  if (version1.length === 0) return whole
  const accepts = version1.map((offer) => ({ ...offer, resource: url }))
  return { x402Version: 1, error, accepts, x402: whole }
}

/** Pads with spaces to whole groups of base64; `room` reserves that many characters after it. */
function aligned(text: string, room = 0): string {
  const bytes = Buffer.byteLength(text) + room
  return text + '  '.slice(0, (3 - (bytes % 3)) % 3)
}

function base64(text: string): string {
  return Buffer.from(text).toString('base64')
}

/** JSON text without the URL of its resource. */
function cutUrl(json: string, { resource }: X402.PaymentRequired): readonly [string, string] {
  const opening = '"resource":{"url":'
  const at = json.indexOf(opening) + opening.length
  return [json.slice(0, at), json.slice(at + JSON.stringify(resource.url).length)]
}

/** Cuts at the URL and at the salt, which comes last. */
function cut(json: string, required: X402.PaymentRequired): Plan['json'] {
  const [before, rest] = cutUrl(json, required)
  const key = '"salt":"'
  const at = rest.lastIndexOf(key) + key.length
  return [before, rest.slice(0, at), rest.slice(at + saltLength)]
}

const commonHeaders = {
  ...shortCorsHeaders,
  'cache-control': 'no-store',
  'content-type': 'application/problem+json',
}

/**
 * Headers that the server writes itself, and the names of headers whose values the header budget
 * counts.
 */
const besideBytes = [
  'HTTP/1.1 402 Payment Required',
  'Connection: keep-alive',
  'Date: Thu, 01 Jan 2026 00:00:00 GMT',
  'Content-Length: 123456',
  `X-Request-Id: ${'i'.repeat(20)}`,
  ...Object.entries(commonHeaders).map(([name, value]) => `${name}: ${value}`),
  'www-authenticate: ',
  'payment-required: ',
  '',
].reduce((bytes, line) => bytes + line.length + '\r\n'.length, 0)

const paymentRequired = {
  type: `${Problem.mppBase}/payment-required`,
  title: 'Payment Required',
  status: 402,
  detail: 'Pay with one of the offers, then send the same request again with the credential.',
  code: 'payment-required',
}
