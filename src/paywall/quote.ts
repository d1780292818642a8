import { corsHeaders } from '../http/problem'
import * as Challenge from '../protocol/Challenge'
import * as HeaderBudget from '../protocol/HeaderBudget'
import type * as Network from '../protocol/Network'
import * as Offer from '../protocol/Offer'
import * as Problem from '../protocol/Problem'
import * as Sponsoring from '../protocol/Sponsoring'
import * as X402 from '../protocol/X402'
import type { Sale } from '../settlement/offer'
import type { Item } from './Item'

/** MPP challenges and x402 offers are valid this long (specification 8). */
export const validForSeconds = 300

/** Signed offers are made again after this time: they may not be promised for longer than a reload honours. */
const keptMs = 60_000

/** `PAYMENT-REQUIRED` beyond this is refused by clients with small header limits. */
const headerMaxBytes = 4095

/** All headers of a 402 together; what the challenges and the others need is not for the offers. */
const headersMaxBytes = 6144

/** Of `headerMaxBytes`, so many are kept for the URL: 127 characters. */
const urlRoom = 172

export type QuoterOptions = {
  /** Host name of base_url, the MPP realm. */
  realm: string
  /** First signs. */
  challengeSecrets: readonly Uint8Array[]
  receiptKey: Uint8Array
  /** Why a network is not offered for a price now, as the end of a sentence; undefined when it is. */
  whyNot: (network: Network.Id, sale: Sale) => string | undefined
  /** Somebody here sends approves that payers signed. */
  takesApprovals: boolean
  /** Where holders of the asset are given gas for an approve, and on which networks. */
  gasSponsor: { url: string; networks: readonly Network.Id[] }
  now: () => number
  /** Nine characters, different in every process: keeps challenges unique across restarts. */
  processNonce: string
}

/** Why a 402 is answered although a credential came, for the body and `PAYMENT-RESPONSE`. */
export type Refusal = {
  problem: Problem.ProblemError
  headers?: Readonly<Record<string, string>>
}

export type Quoter = {
  /**
   * The 402 of an item, with a fresh MPP challenge per network and the x402 offers, or undefined when
   * none of its networks can settle. `url` is what was asked for, absolute and with its query: some
   * clients refuse an x402 resource that is not the URL they asked, others pay where it points.
   * Touches neither the database nor the chain.
   */
  challenge(
    item: Item,
    url: string,
    requestId: string,
    details?: ChallengeDetails,
  ): Response | undefined
  /** Why none of an item's networks is offered now, as the end of a sentence; undefined when one is. */
  whyNone(item: Item): string | undefined
}

export type ChallengeDetails = {
  /** RFC 9530 digest of the request body, bound into the MPP challenges. */
  digest?: string | undefined
  /** Parameters that cannot be served, looked for only when the answer is not known yet. */
  invalidParams?: () => readonly { name: string; reason: string }[]
  /** There was no body, so that the URL alone decides about the parameters. */
  isBodiless?: boolean
  /** Further members of the body, for people and programs that read it. */
  members?: Readonly<Record<string, unknown>> | undefined
  refusal?: Refusal | undefined
}

/** Everything of a 402 that is the same for a minute. */
type Sheet = {
  /** Unix ms. Each item has a minute of its own: all at once would stop the answers meanwhile. */
  madeAt: number
  ready: number
  challenges: Challenge.Compiled
  required: X402.PaymentRequired
  /** Members that only the body has. */
  beside: { gasSponsor?: string }
  /** Shorter forms of its extensions. */
  briefs: HeaderBudget.Briefs
  /** Longest `PAYMENT-REQUIRED` beside these challenges. */
  mostBytes: number
  /** Base64 of the header's JSON before and after the URL. */
  header: readonly [before: string, after: string]
  /** JSON of the body before and after the URL. */
  body: readonly [before: string, after: string]
  /** The last one that was asked for: routes without parameters have only one. */
  page: Page
}

/** The parts of a 402 that depend on the URL. */
type Page = {
  url: string
  /**
   * One object for all answers, which copy it: the challenges and the request's id are set anew for
   * each, everything else stays.
   */
  headers: Headers
  /** JSON up to its closing brace. */
  open: string
  body: string
  /** The whole body for a request without one, once it was asked for. */
  bodiless: string | undefined
}

/** Makes the 402 answers of all items; constants are built once per item and minute, on first use. */
export function createQuoter(options: QuoterOptions): Quoter {
  const { now } = options
  const [secret] = options.challengeSecrets
  if (secret === undefined) throw new Error('no challenge secret')
  const sheets = new WeakMap<Item, Sheet>()
  const unique = uniqueSource(options.processNonce)
  const expires = expiresSource()

  return {
    challenge(item, url, requestId, details) {
      const at = now()
      const ready = readiness(item, options)
      if (ready === 0) return undefined
      let sheet = sheets.get(item)
      if (sheet === undefined || sheet.ready !== ready || !isFresh(sheet, at)) {
        sheet = compile(item, ready, at, secret, options)
        sheets.set(item, sheet)
      }
      const page = pageFor(sheet, url)
      const { headers } = page
      // `Accept-Payment` is not asked: every challenge is evm/charge, so it could only leave out all
      // of them, and then the draft lets a server send them nevertheless.
      headers.set(
        'www-authenticate',
        Challenge.issue(sheet.challenges, {
          expires: expires(at),
          unique: unique(),
          digest: details?.digest,
        }),
      )
      headers.set('x-request-id', requestId)
      return respond(sheet, page, details)
    },
    whyNone(item) {
      const reasons = item.offers.map((offer) => whyNot(item, offer, options))
      if (reasons.includes(undefined)) return undefined
      return [...new Set(reasons)].join('; ')
    },
  }
}

/** Also when the clock was set back, which would promise the signed offers for too long. */
function isFresh(sheet: Sheet, now: number): boolean {
  const age = now - sheet.madeAt
  return age >= 0 && age < keptMs
}

/** One bit per offer that can settle now. */
function readiness(item: Item, options: Pick<QuoterOptions, 'whyNot'>): number {
  let bits = 0
  for (let i = 0; i < item.offers.length; i++) {
    const offer = item.offers[i]
    if (offer !== undefined && whyNot(item, offer, options) === undefined) bits |= 1 << i
  }
  return bits
}

function whyNot(
  item: Item,
  { network, amountAtomic }: Item['offers'][number],
  options: Pick<QuoterOptions, 'whyNot'>,
): string | undefined {
  return options.whyNot(network.id, { product: item.product ?? 'gateway', amountAtomic })
}

function compile(
  item: Item,
  ready: number,
  madeAt: number,
  secret: Uint8Array,
  options: QuoterOptions,
): Sheet {
  const offers = item.offers.filter((_, i) => (ready & (1 << i)) !== 0)
  const accepts = X402.accepts(offers)
  const validUntil = Math.floor(madeAt / 1000) + validForSeconds + keptMs / 1000
  const signed = accepts.map((requirements) =>
    Offer.sign({ resourceUrl: item.resource.url, requirements, validUntil }, options.receiptKey),
  )
  const more = [...item.extensions, ...Sponsoring.declarations(offers, options.takesApprovals)]
  const required = X402.paymentRequired({
    resource: item.resource,
    accepts,
    extensions: X402.extensions({ offers: signed, method: item.method, more }),
    error: 'Payment required',
  })
  const testnets = offers.filter(({ network }) => network.testnet).map(({ network }) => network.id)
  const briefs = HeaderBudget.briefsOf({
    offers: signed,
    more,
    isTestnet: (network) => testnets.some((id) => id === network),
  })
  const challenges = Challenge.compile({
    realm: options.realm,
    offers: item.mppOffers.filter((offer) => offers.includes(offer)),
    routeId: item.id,
    secret,
  })
  const mostBytes = Math.min(headerMaxBytes, headersMaxBytes - bytesBeside(challenges, item))
  // Whatever fits beside a URL of this length.
  const fitting = Buffer.from(
    HeaderBudget.fit(required, Math.min(headerMaxBytes - urlRoom, mostBytes), briefs).header,
    'base64',
  )
  const { url } = item.resource
  const [before, after] = cut(fitting.toString(), url)
  const { gasSponsor } = options
  const isSponsored = offers.some(({ network }) => gasSponsor.networks.includes(network.id))
  const beside = isSponsored ? { gasSponsor: gasSponsor.url } : {}
  return {
    madeAt,
    ready,
    challenges,
    required,
    briefs,
    beside,
    mostBytes,
    // Spaces are nothing in JSON, and groups of three bytes can be encoded apart.
    header: [base64(before.padEnd(Math.ceil(before.length / 3) * 3)), base64(after)],
    body: cut(JSON.stringify({ ...paymentRequired, ...required, ...beside }), url),
    page: { url: '', headers: new Headers(), open: '', body: '', bodiless: undefined },
  }
}

/** What the other headers of a 402 take at most, with their names. */
function bytesBeside(challenges: Challenge.Compiled, item: Item): number {
  const longest = {
    expires: '2026-01-01T00:00:00Z',
    unique: 'u'.repeat(Challenge.uniqueLength),
    // A GET has no body that could have one.
    digest: item.method === 'GET' ? undefined : `sha-256=:${'A'.repeat(44)}:`,
  }
  // Those of the server itself, such as Date, and the request's id.
  let bytes = 200 + 'www-authenticate'.length + 'payment-required'.length
  bytes += Challenge.issue(challenges, longest).length
  for (const [name, value] of Object.entries(commonHeaders)) bytes += name.length + value.length + 4
  return bytes
}

function base64(text: string): string {
  return Buffer.from(text).toString('base64')
}

/** What is before and after the resource's URL in a JSON text; the URL itself is left out. */
function cut(json: string, url: string): readonly [before: string, after: string] {
  const opening = '"resource":{"url":'
  const at = json.indexOf(opening) + opening.length
  return [json.slice(0, at), json.slice(at + JSON.stringify(url).length)]
}

/** The parts for a URL, which is ASCII. */
function pageFor(sheet: Sheet, url: string): Page {
  if (sheet.page.url === url) return sheet.page
  const quoted = JSON.stringify(url)
  const [before, after] = sheet.header
  const padding = '  '.slice(0, (3 - (quoted.length % 3)) % 3)
  let header = before + btoa(quoted + padding) + after
  const { mostBytes, briefs } = sheet
  if (header.length > mostBytes) {
    header = HeaderBudget.fit(withUrl(sheet.required, url), mostBytes, briefs).header
    // Without any extension it is still too long: the route's own URL has to do.
    if (header.length > mostBytes)
      ({ header } = HeaderBudget.fit(sheet.required, mostBytes, briefs))
  }
  const body = sheet.body[0] + quoted + sheet.body[1]
  const headers = new Headers({
    ...commonHeaders,
    'payment-required': header,
  })
  sheet.page = { url, headers, body, open: body.slice(0, -1), bodiless: undefined }
  return sheet.page
}

function withUrl(required: X402.PaymentRequired, url: string): X402.PaymentRequired {
  return { ...required, resource: { ...required.resource, url } }
}

const commonHeaders = {
  ...corsHeaders,
  'cache-control': 'no-store',
  'content-type': 'application/problem+json',
}

const paymentRequired = {
  type: `${Problem.mppBase}/payment-required`,
  title: 'Payment Required',
  status: 402,
  detail: 'Pay with one of the offers, then send the same request again with the credential.',
  code: 'payment-required',
}

/** Creating a Response copies the headers, so that the page's can be used again. */
function respond(sheet: Sheet, page: Page, details: ChallengeDetails | undefined): Response {
  const { headers } = page
  const refusal = details?.refusal
  if (refusal === undefined) {
    if (details?.isBodiless !== true)
      return new Response(unpaidBody(page, details), { status: 402, headers })
    page.bodiless ??= unpaidBody(page, details)
    return new Response(page.bodiless, { status: 402, headers })
  }
  const body = {
    ...withUrl(sheet.required, page.url),
    ...sheet.beside,
    ...Problem.toJson(refusal.problem),
    error: refusal.problem.reason ?? refusal.problem.code,
  }
  const response = new Response(JSON.stringify(body), { status: 402, headers })
  for (const [name, value] of Object.entries(refusal.headers ?? {}))
    response.headers.set(name, value)
  return response
}

function unpaidBody(page: Page, details: ChallengeDetails | undefined): string {
  const invalidParams = details?.invalidParams?.() ?? []
  if (details?.members !== undefined)
    return `${page.open},${JSON.stringify(details.members).slice(1)}`
  if (invalidParams.length === 0) return page.body
  return `${page.open},"invalidParams":${JSON.stringify(invalidParams)}}`
}

/** 18 characters, never repeated: nine of the process, nine of a counter. */
function uniqueSource(processNonce: string): () => string {
  if (processNonce.length !== 9) throw new Error('processNonce must have nine characters')
  // Two counters that start where their base-36 text needs no padding, the fast one a small integer:
  // printing a large one is ten times as slow.
  const lowEnd = 36 ** 5
  let high = 36 ** 3
  let low = lowEnd
  let prefix = ''
  return () => {
    if (low === lowEnd) {
      low = 36 ** 4
      prefix = processNonce + (high++).toString(36)
    }
    return prefix + (low++).toString(36)
  }
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
