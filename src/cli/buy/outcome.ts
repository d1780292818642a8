import type { Address } from 'viem'
import * as AddressText from '../../protocol/Address'
import { decodeJson } from '../../protocol/Header'
import * as Json from '../../protocol/Json'
import { isFault } from '../../protocol/Problem'
import * as Receipt from '../../protocol/Receipt'
import { poll } from '../poll'
import { readAnswerText } from './body'
import * as Charge from './Charge'
import type { Paid } from './Credential'
import * as SignIn from './SignIn'
import * as Terms from './Terms'

/** Results of a purchase, for the user of `turnpike pay`. */

/** A request and its payment limits. */
export type BuyRequest = {
  url: URL
  method: string
  body: string | undefined
  wanted: {
    protocol: string | undefined
    scheme: Terms.Scheme
    network: string | undefined
    transfer: string | undefined
  }
  /** The most that may be signed, and what to say when more is asked. */
  max: { amount: string; exceeded: string }
  now: () => number
}

/** Prints the answer and checks it. */
export async function finishPurchase(
  response: Response,
  purchase: BuyRequest,
  credential: Paid | undefined,
): Promise<number> {
  const { status } = response
  const encoded =
    response.headers.get('payment-receipt') ?? response.headers.get('payment-response') ?? undefined
  if (status >= 300 && status < 400) {
    const location = oneLine(response.headers.get('location') ?? 'no location')
    say(`turnpike: ${status}, redirects to ${location}; ask there.`)
    return 1
  }
  const type = response.headers.get('content-type') ?? ''
  const isProblem = type.startsWith('application/problem+json')
  if (isProblem && (credential !== undefined || status >= 500 || status === 402)) {
    explain(await problemOf(response), status, purchase, credential)
    return 1
  }
  say(`answer     ${status} ${oneLine(type)}`.trimEnd())
  if (response.headers.has('idempotency-replayed')) say('           a replay of the stored answer')
  const entitlement = response.headers.get('payment-entitlement')
  // What was signed may be charged, whatever the server says.
  if (entitlement !== null && credential === undefined)
    say(`cost       nothing: ${SignIn.describe(entitlement)}`)
  const token = response.headers.get('payment-redeem')
  if (token !== null && entitlement === null) {
    say('again      the same answer costs nothing more, by a sign-in or by its token:')
    say(`  ${redemptionOf(purchase, token)}`)
  }
  const scheme = credential?.terms.scheme
  const charged = response.headers.get('payment-response')
  const isByUse = scheme === 'upto' || (scheme === 'channel' && encoded === undefined)
  // The charge of a stream follows its answer.
  const isLater = isByUse && charged === null
  let genuine = true
  if (credential && isByUse && charged !== null)
    genuine = await checkCharge(Charge.ofResponse(charged), charged, purchase, credential)
  else if (encoded !== undefined && !isLater)
    genuine = await checkReceipt(encoded, purchase, credential)
  else if (credential && !isLater) say('receipt    none')
  const whole = await copyBody(response)
  if (credential && isLater) genuine = await checkLater(response.headers, purchase, credential)
  return response.ok && genuine && whole ? 0 : 1
}

/** How long a settlement is waited for, and the pause between two requests, ms. */
const settleMs = 20_000
const pauseMs = 300

/** States in which nothing more is settled. */
const ended: ReadonlySet<unknown> = new Set(['void', 'failed', 'expired'])

/**
 * Prints the charge of an answer after it, from the payment at its URL. False when it is wrong, and true
 * where the server does not show it, or does not settle in time.
 */
async function checkLater(headers: Headers, purchase: BuyRequest, credential: Paid) {
  const [id, token] = [headers.get('payment-id'), headers.get('payment-token')]
  if (id === null || token === null) {
    say('receipt    none')
    return true
  }
  const url = new URL(`/api/payments/${encodeURIComponent(id)}`, purchase.url)
  say(`receipt    GET ${url.href} with the header Payment-Token: ${oneLine(token)}`)
  const read = () => fetchJson(url, { 'payment-token': token })
  const isEnded = (payment: Json.JsonObject | undefined) =>
    payment === undefined || receiptOf(payment) !== undefined || ended.has(payment.state)
  const payment = await poll({ now: purchase.now, waitMs: settleMs, pauseMs }, read, isEnded)
  if (payment === undefined || !isEnded(payment)) {
    say('           the charge is not settled yet, or the server does not answer')
    return true
  }
  const { state } = payment
  const charge = Charge.ofPayment(payment)
  const genuine = await checkCharge(charge, receiptOf(payment), purchase, credential)
  if (state === 'failed' || state === 'expired')
    say('           it could not be settled, so nothing moved')
  return genuine
}

/** Undefined where the server has no such document. Its levels have no limit. */
async function fetchJson(
  url: URL,
  headers: Readonly<Record<string, string>> = {},
): Promise<Json.JsonObject | undefined> {
  try {
    const signal = AbortSignal.timeout(10_000)
    const response = await fetch(url, { headers, redirect: 'manual', signal })
    const json: unknown = response.ok ? JSON.parse(await readAnswerText(response)) : undefined
    return Json.isObject(json) ? json : undefined
  } catch {
    return undefined
  }
}

function receiptOf(payment: Json.JsonObject): string | undefined {
  const receipt = Json.member(payment, 'receipt')
  if (typeof receipt === 'string') return receipt
  return receipt === undefined ? undefined : JSON.stringify(receipt)
}

/** Prints a charge and its receipt. False when either is wrong. */
async function checkCharge(
  charge: Charge.Charge | undefined,
  receipt: string | undefined,
  purchase: BuyRequest,
  credential: Paid,
): Promise<boolean> {
  const { terms } = credential
  say(`ceiling    ${Terms.amountOf(terms)}`)
  if (charge !== undefined) say(`charge     ${oneLine(Charge.describe(charge, terms))}`)
  const isWithin = charge === undefined || charge.amountAtomic <= terms.amountAtomic
  if (!isWithin) say('           that is above the ceiling that was signed')
  if (charge?.amountAtomic === 0n) {
    say('receipt    none: nothing is charged')
    return true
  }
  if (receipt !== undefined) return (await checkReceipt(receipt, purchase, credential)) && isWithin
  if (charge?.transaction !== undefined) say(`settled by ${hashText(charge.transaction)}`)
  return isWithin
}

/** Members of a problem document, or of any other error body. */
export async function problemOf(response: Pick<Response, 'body' | 'status'>) {
  const text = await readAnswerText(response)
  const json = Json.readable(() => Json.parse(text)) ?? {}
  const string = (parent: Json.JsonObject, name: string) => {
    const value = Json.text(parent, name)
    return value === undefined ? undefined : oneLine(value)
  }
  const transaction = Json.text(json, 'transaction')
  const given = Json.child(json, 'redeem')
  const [token, until = ''] = [string(given, 'token'), string(given, 'until')]
  /** No attempt is left. */
  const isLast = Json.member(given, 'attempts') === 0
  return {
    code: string(json, 'code') ?? `status ${response.status}`,
    detail: string(json, 'detail') ?? '',
    reason: string(json, 'reason'),
    transaction: transaction === undefined ? undefined : hashText(transaction),
    redeem: token === undefined ? undefined : { token, until, isLast },
  }
}

function explain(
  problem: Awaited<ReturnType<typeof problemOf>>,
  status: number,
  purchase: BuyRequest,
  credential: Paid | undefined,
): void {
  const { code, detail, reason, transaction, redeem } = problem
  const because = reason === undefined ? '' : ` (${reason})`
  say(`refused    ${status} ${code}${because}: ${detail}`)
  if (transaction !== undefined) say(`settled by ${transaction}`)
  if (redeem?.isLast) {
    say('You have paid and were not served, and no attempt is left: contact the operator.')
  } else if (redeem !== undefined) {
    say(`You have paid and were not served. Ask again for free until ${redeem.until}:`)
    say(`  ${redemptionOf(purchase, redeem.token)}`)
  } else if (credential !== undefined && (status === 503 || status === 409)) {
    say(
      credential.terms.scheme === 'channel'
        ? 'Run the same command again: it sends the same voucher, and signs no other one.'
        : 'The payment may still settle: look at the transaction before you pay again.',
    )
  } else if (
    // The same terms may be paid without an approval.
    credential?.terms.method === 'permit2' &&
    credential.terms.scheme === 'exact' &&
    reason?.includes('allowance')
  ) {
    say('The wallet has not approved Permit2; --transfer eip3009 needs no approval.')
  }
}

/** The command that asks again with a token. */
function redemptionOf({ url, method, body }: BuyRequest, token: string): string {
  // With the equals sign a value may begin with a hyphen, as one token in 64 does.
  const options = [
    ...(method === 'GET' ? [] : [`--method ${method}`]),
    ...(body === undefined ? [] : [`--body=${quote(body)}`]),
    `--redeem=${quote(token)}`,
  ]
  return ['turnpike pay', quote(url.href), ...options].join(' ')
}

/** Prints a receipt. False when it is signed and the signature or its content is wrong. */
async function checkReceipt(
  encoded: string,
  purchase: BuyRequest,
  credential: Paid | undefined,
): Promise<boolean> {
  const receipt = Receipt.parse(encoded)
  const settled = settlementOf(encoded) ?? (isFault(receipt) ? '' : receipt.payload.transaction)
  if (settled !== '') say(`settled by ${hashText(settled)}`)
  if (isFault(receipt)) {
    say('receipt    not signed')
    return true
  }
  const { payload } = receipt
  const signer = Receipt.verify(receipt)
  const published = await publishedSigner(purchase.url)
  const isOurs =
    credential === undefined ||
    (payload.network === credential.terms.network &&
      AddressText.equal(payload.payer, credential.payer) &&
      BigInt(Receipt.purchaseOf(receipt).amount ?? 0) <= credential.terms.amountAtomic)
  const issued = new Date(payload.issuedAt * 1000).toISOString()
  say(`receipt    ${oneLine(payload.resourceUrl)}, ${oneLine(payload.network)}, ${issued}`)
  if (signer === undefined || !isOurs) {
    say('           its signature is not valid for this payment')
    return false
  }
  if (published === undefined) {
    say(`           signed by ${signer}; the server publishes no receipt key`)
    return true
  }
  const genuine = AddressText.equal(signer, published)
  say(`           signed by ${signer}, ${genuine ? 'the' : 'NOT the'} published receipt key`)
  return genuine
}

/** Transaction that a receipt of either protocol names beside its signed part. */
export function settlementOf(encoded: string): string | undefined {
  return Json.readable(() => {
    const json = decodeJson(encoded, 'either')
    return Json.optional(json, 'reference', 'text') ?? Json.optional(json, 'transaction', 'text')
  })
}

/** Address that signs receipts, according to the server's documents. */
export async function publishedSigner(url: URL): Promise<Address | undefined> {
  for (const path of ['/.well-known/x402', '/openapi.json']) {
    const json = (await fetchJson(new URL(path, url))) ?? {}
    const info = Json.member(json, 'x-service-info')
    const value = Json.member(Json.isObject(info) ? info : json, 'receiptSigner')
    const address = AddressText.parse(value)
    if (address !== undefined) return address
  }
  return undefined
}

/** False when the connection broke before the end of the answer. */
async function copyBody(response: Response): Promise<boolean> {
  if (response.body === null) return true
  try {
    for await (const chunk of response.body) {
      if (process.stdout.write(chunk)) continue
      await new Promise<void>((resolve) => process.stdout.once('drain', () => resolve()))
    }
  } catch {
    say('           the connection broke: the answer is not whole')
    return false
  }
  if (process.stdout.isTTY) process.stdout.write('\n')
  return true
}

function quote(text: string): string {
  if (/^[\w.:/-]+$/.test(text)) return text
  if (!/\p{Cc}/u.test(text)) return `'${text.replaceAll("'", `'\\''`)}'`
  const escaped = text.replace(/[\\']/g, '\\$&').replace(/\p{Cc}/gu, (control) => {
    return Buffer.from(control).toString('hex').replace(/../g, '\\x$&')
  })
  return `$'${escaped}'`
}

/**
 * Prints one line for the user. Some of the text comes from a server, so a line feed or a control
 * character in it is replaced: it must not look like another line of ours.
 */
export function say(line: string): void {
  // stdout is reserved for the bought answer.
  process.stderr.write(`${line.replace(/\p{C}|[\p{Zl}\p{Zp}]/gu, '?')}\n`)
}

/** Text of a server for the middle of a line. */
export function oneLine(text: string): string {
  return text.replace(/\s+/g, ' ')
}

/** The hash of a transaction that a server names. Other text is not shown. */
export function hashText(value: string): string {
  return /^0x[0-9a-f]{64}$/i.test(value) ? value : 'an invalid hash'
}
