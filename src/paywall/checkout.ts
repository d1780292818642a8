import type { Authorization } from '../../db/Authorization'
import type { Payment, Purpose } from '../../db/Payment'
import type { Tally } from '../books/tally'
import type { WriteEvent } from '../log'
import * as Problem from '../protocol/Problem'
import { type Money, moneyKey } from '../protocol/Transfer'
import { usedReason } from '../settlement/read/refusals'
import { type Outcome, RowsRefusedError } from '../settlement/send/Outcome'
import type { Settlement } from '../settlement/settlement'
import { withApproval } from '../settlement/sponsorship'
import type { PaymentRequest } from '../settlement/state/state'
import type { Authorized } from '../settlement/upto/authorize'
import { failingOf, failureHeaders } from './answer/receipts'
import { type Claims, claimMoney, createClaim, type RequestClaim, scopeKey } from './claims'
import { mayContinue } from './continuation'
import { type CredentialOptions, type Named, type Presentation, present } from './credential'
import * as Denial from './Denial'
import type { Quoter } from './offer/quote'
import type { Checkout, Product, Sale } from './Product'

/** Sells a product, and continues what was bought. */

export type CheckoutOptions = CredentialOptions & {
  settlement: Settlement
  /** Claims on money, shared by all products. */
  claims: Claims
  quoter: Quoter
  /** Counts purchases and failed requests. */
  tally: Tally
  log: WriteEvent
}

/** A product on sale. */
export type Shop<S extends Sale = Sale> = CheckoutOptions & {
  product: Product<S>
  /** Keys of buyers whose purchase is being looked up or settled. */
  keys: Set<string>
}

/**
 * Sells to a request that presents a credential. Claims the money in memory, looks up its payment,
 * verifies and reserves the buyer's key, settles, and delivers. Throws ProblemError.
 */
export async function buy<S extends Sale>(shop: Shop<S>, sale: S): Promise<Response> {
  const { product, settlement } = shop
  let named: Named | undefined
  try {
    // First, so that the buyer finds its purchase even when the offer has changed since.
    named = product.peek?.(sale)
    const known = named && (await findReleased(shop, named.transfer))
    if (named && known) {
      return await resumeKnown(shop, open(shop, sale, named, createClaim()), named, known)
    }
    const presented = present(sale, shop)
    const isClear = presented.alternatives.length === 0
    const presentation = isClear ? presented : await chooseAlternative(settlement, presented)
    named = presentation
    return await spend(shop, sale, presentation)
  } catch (error) {
    shop.tally.of(sale.item).failed++
    if (!(error instanceof Problem.ProblemError)) throw error
    return refuse(shop, sale, named, error)
  }
}

/**
 * Chooses among the transfers that a credential may mean. Without `accepted`, an EIP-3009 payload
 * names no chain, and only the payer's contract can decide which offer was signed.
 */
async function chooseAlternative(
  settlement: Settlement,
  presentation: Presentation,
): Promise<Presentation> {
  if (presentation.isKeySigned()) return presentation
  let undecided = presentation
  for (const { transfer, refusal } of [presentation, ...presentation.alternatives]) {
    const candidate = { ...presentation, transfer, refusal }
    const known = await settlement.find(transfer)
    if (known?.transfer.signature === transfer.signature) return candidate
    if (refusal() !== undefined || !settlement.isReady(transfer.network)) continue
    const verdict = await settlement.verify(transfer)
    if ('ok' in verdict) return candidate
    if (verdict.kind === 'unavailable') undecided = candidate
  }
  return undecided
}

/** Converts a problem to the protocol of the buyer. */
function refuse(
  { product }: Shop,
  sale: Sale,
  named: Named | undefined,
  problem: Problem.ProblemError,
): Response {
  const { presented, item, digest } = sale
  const headers =
    presented.kind === 'x402' && problem.headers['payment-response'] === undefined
      ? failureHeaders(problem, named?.transfer ?? failingOf(presented, item.offers))
      : {}
  if (problem.status === 402) {
    return product.challenge(sale, { digest, refusal: { problem, headers } })
  }
  throw Problem.withHeaders(problem, headers)
}

/** The claim of another request for the product, where such requests wait for each other. */
function otherClaim({ claims, product }: Shop, money: Money) {
  const claim = claims.get(moneyKey(money))
  return claim?.waiting === product ? claim : undefined
}

/** The payment of this money, after the current claim on it is released. */
async function findReleased(shop: Shop, money: Money) {
  const claim = otherClaim(shop, money)
  // Wait before the read, because the other request may write meanwhile.
  if (claim !== undefined) await new Promise<void>((resolve) => claim.add(resolve))
  return shop.settlement.find(money)
}

function open({ product }: Shop, sale: Sale, named: Named, claim: RequestClaim): Checkout {
  return {
    sale,
    by: 'credential',
    presentation: named,
    fingerprint: product.fingerprintOf(sale, named.transfer),
    key: idempotencyKey(sale.headers, named.identifier),
    claim,
  }
}

async function spend(shop: Shop, sale: Sale, presentation: Presentation): Promise<Response> {
  const { transfer } = presentation
  // Another request that waited for the same claim may have taken it first.
  while (otherClaim(shop, transfer) !== undefined) {
    const known = await findReleased(shop, transfer)
    if (known !== undefined) {
      return resumeKnown(shop, open(shop, sale, presentation, createClaim()), presentation, known)
    }
  }
  const claim = claimNow(shop, transfer)
  try {
    const checkout = open(shop, sale, presentation, claim)
    // Read under the claim: an earlier read may be outdated.
    const known = await shop.settlement.find(transfer)
    if (known !== undefined) return await resumeKnown(shop, checkout, presentation, known)
    const authorized = transfer.upto && (await shop.settlement.authorizations.find(transfer))
    if (authorized !== undefined) {
      return await resumeAuthorized(shop, checkout, { presentation, authorization: authorized })
    }
    return await pay(shop, checkout, presentation)
  } catch (error) {
    claim.release()
    throw error
  }
}

async function pay(shop: Shop, checkout: Checkout, presentation: Presentation): Promise<Response> {
  const { key } = checkout
  const forged = shop.product.isCostly?.(checkout.sale)
    ? await refusalOfForged(shop, presentation)
    : undefined
  if (forged !== undefined) return conclude(shop, checkout, forged)
  // Without a key, the ceiling goes to a node first, and the body is examined during that call.
  if (presentation.transfer.upto === undefined || key !== undefined) {
    assertSellable(shop, checkout, presentation)
  }
  const taken =
    key === undefined
      ? { outcome: await settle(shop, checkout, presentation) }
      : await reserve(shop, checkout, presentation, key)
  if ('previous' in taken) return repeat(shop, checkout, taken.previous)
  await assertUnknown(shop, presentation, taken.outcome)
  return conclude(shop, checkout, taken.outcome)
}

/** Throws ProblemError when the request cannot be sold, or not for this price. May be called again. */
function assertSellable({ product }: Shop, { sale }: Checkout, { refusal }: Presentation): void {
  const fault = refusal()
  if (fault !== undefined) throw Problem.ofFault(fault, 'payment-expired')
  product.assertServable?.(sale)
}

/**
 * A nonce is used. Another gateway may have used it for the same credential. Then the buyer must
 * present that credential again, because a new one would pay twice.
 */
async function assertUnknown(
  { settlement }: Shop,
  { transfer }: Presentation,
  outcome: Outcome | Authorized,
): Promise<void> {
  if (outcome.kind !== 'refused' || outcome.reason !== usedReason(transfer)) return
  const known =
    (await settlement.find(transfer)) ??
    (transfer.upto && (await settlement.authorizations.find(transfer)))
  if (known !== undefined) throw Denial.inProgress()
}

/** The outcome of a transfer that its payer did not sign. A node is asked about a contract's signature. */
async function refusalOfForged(
  { settlement }: Shop,
  { transfer, isKeySigned }: Presentation,
): Promise<Outcome | undefined> {
  if (isKeySigned()) return undefined
  const verdict = await settlement.verify(transfer)
  return 'ok' in verdict ? undefined : verdict
}

/** Settles unless the buyer's own key has bought something before. */
async function reserve(
  shop: Shop,
  checkout: Checkout,
  presentation: Presentation,
  key: string,
): Promise<{ outcome: Outcome | Authorized } | { previous: Payment }> {
  const { settlement } = shop
  const { transfer } = presentation
  // Only the payer itself may read or reserve its key: otherwise any client could occupy it.
  const forged = await refusalOfForged(shop, presentation)
  if (forged !== undefined) return { outcome: forged }
  const { merchant, route } = checkout.sale.purpose
  const scope = { merchant, route, payer: transfer.payer, key }
  const reserved = scopeKey(scope)
  if (shop.keys.has(reserved)) throw Denial.inProgress()
  shop.keys.add(reserved)
  try {
    const previous = await settlement.findByIdempotencyKey(scope)
    if (previous !== undefined) return { previous }
    if (checkout.sale.item.isByUse && (await settlement.authorizations.findByIdempotencyKey(scope)))
      throw Denial.inProgress()
    return { outcome: await settle(shop, checkout, presentation) }
  } finally {
    shop.keys.delete(reserved)
  }
}

async function settle(
  shop: Shop,
  checkout: Checkout,
  presentation: Presentation,
): Promise<Outcome | Authorized> {
  const { product, settlement } = shop
  const { sale } = checkout
  const { transfer, approval } = presentation
  try {
    if (transfer.upto !== undefined) return await authorize(shop, checkout, presentation)
    const rows = await product.admit(checkout)
    const purpose = purposeOf(checkout, presentation)
    const waitMs = product.waitMs(sale)
    const request: PaymentRequest = {
      transfer,
      purpose,
      receivedAt: shop.now(),
      isKeySigned: presentation.isKeySigned,
      requestId: sale.requestId,
      isUnknown: true,
      rows,
      ...product.settling?.(checkout, purpose),
    }
    const outcome =
      approval === undefined
        ? await settlement.settle(request, waitMs)
        : await withApproval<Outcome>(
            shop,
            { transfer, approval, client: sale.client, waitMs },
            // Another process may have written the payment during the approve.
            (leftMs, isSecond) => settlement.settle({ ...request, isUnknown: !isSecond }, leftMs),
          )
    if (outcome.kind === 'confirmed') shop.tally.of(sale.item).paid++
    return outcome
  } catch (error) {
    if (!(error instanceof RowsRefusedError)) throw error
    // Another gateway has sold something by this key since it was read.
    if (error.reason === 'key-used') throw Denial.inProgress()
    throw product.refusalOf?.(error.reason) ?? error
  }
}

/**
 * Authorizes a ceiling. The price of the request is computed while a node verifies. A request that
 * cannot be sold is refused for that reason, whatever the node answers, and nothing is written.
 */
async function authorize(
  shop: Shop,
  checkout: Checkout,
  presentation: Presentation,
): Promise<Outcome | Authorized> {
  const { product, settlement } = shop
  const { sale } = checkout
  const { transfer, approval } = presentation
  let isAsserted = false
  const assertOnce = () => {
    if (isAsserted) return
    isAsserted = true
    assertSellable(shop, checkout, presentation)
  }
  try {
    await product.admit(checkout)
    const purpose = purposeOf(checkout, presentation)
    const waitMs = product.waitMs(sale)
    const validUntil = shop.now() + (product.answerMs?.(sale) ?? 0)
    const client = sale.client
    const onAsked = () => {
      assertOnce()
      product.prepareByUse?.(checkout)
    }
    const attempt = () => {
      const own = { id: settlement.createId(), receivedAt: shop.now() }
      const terms = { ...own, client, validUntil, onAsked }
      return settlement.authorizations.authorize(transfer, purpose, terms)
    }
    return approval === undefined
      ? await attempt()
      : await withApproval(shop, { transfer, approval, client, waitMs }, attempt)
  } finally {
    assertOnce()
  }
}

function purposeOf(
  { sale, fingerprint, key }: Checkout,
  { protocol, challengeId, credentialHash, bound }: Presentation,
): Purpose {
  return {
    ...sale.purpose,
    protocol,
    fingerprint,
    idempotencyKey: key,
    challengeId,
    credentialHash,
    bound,
  }
}

/** Claims the money, before the first await. */
function claimNow({ claims, product }: Shop, money: Money): RequestClaim {
  const claim = claimMoney(claims, money, product.peek && product)
  if (claim === undefined) throw Denial.inProgress()
  return claim
}

/** The purchase that the same payer made before with the same key. */
async function repeat(
  shop: Shop,
  { claim, ...presented }: Checkout,
  payment: Payment,
): Promise<Response> {
  const { product } = shop
  const { transfer } = payment
  const presentation = { ...presented.presentation, transfer }
  const fingerprint = product.fingerprintOf(presented.sale, transfer)
  const checkout: Checkout = { ...presented, presentation, fingerprint, claim, by: 'key' }
  const replay = await product.replay?.(checkout, payment)
  if (replay !== undefined) {
    claim.release()
    return replay
  }
  checkout.claim = product.peek ? createClaim() : claimNow(shop, transfer)
  // The credential just presented stays unspent: the money of the previous purchase pays.
  claim.release()
  try {
    // Another request may have delivered it before the claim.
    const current = (await shop.settlement.findById(payment.id)) ?? payment
    return await proceed(shop, checkout, current)
  } catch (error) {
    checkout.claim.release()
    throw error
  }
}

/** A credential of a known payment. */
async function resumeKnown(
  shop: Shop,
  checkout: Checkout,
  { transfer, isKeySigned, signatureReason, expectedSigner }: Named,
  payment: Payment,
): Promise<Response> {
  // The chain has accepted one signature of a contract: the credential must have the same one.
  if (transfer.signature !== payment.transfer.signature && !isKeySigned()) {
    throw Denial.verificationFailed(signatureReason, expectedSigner())
  }
  return proceed(shop, checkout, payment)
}

/** A credential of a known authorization: only a charge whose answer is lost is continued. */
async function resumeAuthorized(
  shop: Shop,
  checkout: Checkout,
  { presentation, authorization }: { presentation: Named; authorization: Authorization },
): Promise<Response> {
  const { product, settlement } = shop
  const { fingerprint, key, sale } = checkout
  const { purpose, transfer, delivered } = authorization
  const { isKeySigned, signatureReason, expectedSigner } = presentation
  if (presentation.transfer.signature !== transfer.signature && !isKeySigned()) {
    throw Denial.verificationFailed(signatureReason, expectedSigner())
  }
  if (authorization.state === 'authorized') throw Denial.inProgress()
  // Another gateway has settled the charge since this process read its payment.
  const settled = authorization.state === 'sent' && (await settlement.find(transfer))
  if (settled) return resumeKnown(shop, checkout, presentation, settled)
  if (authorization.state !== 'metered' || delivered !== undefined) throw Denial.spent(transfer)
  if (purpose.fingerprint !== fingerprint) {
    throw Denial.otherRequest(transfer)
  }
  if (!mayContinue({ purpose, state: 'broadcast' }, { presentation, key })) {
    throw Denial.otherCredential()
  }
  const waitMs = product.waitMs(sale)
  const { requestId } = sale
  const outcome = await settlement.authorizations.settleCharge(authorization, {
    waitMs,
    requestId,
  })
  if (outcome.kind === 'confirmed') {
    shop.tally.of(sale.item).paid++
    await product.readmit(checkout, outcome.payment)
  }
  return conclude(shop, checkout, outcome)
}

/** Continues the payment of a redeem token. Throws ProblemError. */
export async function redeem<S extends Sale>(
  shop: Shop<S>,
  sale: S,
  payment: Payment,
): Promise<Response> {
  const { transfer, purpose } = payment
  const claim = claimNow(shop, transfer)
  try {
    const fingerprint = shop.product.fingerprintOf(sale, transfer)
    const { protocol } = purpose
    const presentation = { protocol, transfer, bound: false }
    const key = idempotencyKey(sale.headers, undefined)
    const checkout = { sale, by: 'token', presentation, fingerprint, key, claim } as const
    const current = (await shop.settlement.findById(payment.id)) ?? payment
    return await proceed(shop, checkout, current)
  } catch (error) {
    claim.release()
    throw error
  }
}

/**
 * Continues a known payment: repeats its answer where that is stored for the buyer's key, which may
 * have been lost on its way, or drives the payment on from any state.
 */
async function proceed(shop: Shop, checkout: Checkout, payment: Payment): Promise<Response> {
  const { product, settlement, tally } = shop
  const { sale } = checkout
  const replay = await product.replay?.(checkout, payment)
  if (replay !== undefined) {
    checkout.claim.release()
    return replay
  }
  await product.readmit(checkout, payment)
  if (payment.state === 'confirmed') return conclude(shop, checkout, { kind: 'confirmed', payment })
  const options = { waitMs: product.waitMs(sale), requestId: sale.requestId }
  const outcome = await settlement.resume(payment, payment.transfer, options)
  if (outcome.kind === 'confirmed') tally.of(sale.item).paid++
  return conclude(shop, checkout, outcome)
}

async function conclude(
  { product, tally, log }: Shop,
  checkout: Checkout,
  outcome: Outcome | Authorized,
): Promise<Response> {
  if (outcome.kind === 'confirmed') return product.fulfil(checkout, outcome)
  if (outcome.kind === 'authorized' && product.fulfilByUse) {
    const response = await product.fulfilByUse(checkout, outcome.authorization)
    tally.of(checkout.sale.item).paid++
    return response
  }
  if (outcome.kind === 'authorized') throw new Error('this product is not sold by use')
  if (outcome.kind === 'dead') {
    const { requestId } = checkout.sale
    const { payment, reason } = outcome
    log('payment-dead', { requestId, payment: payment?.id, reason })
  }
  const problem = Denial.unpaid(outcome)
  throw (await product.explain?.(checkout, problem)) ?? problem
}

const keyPattern = /^[\x21-\x7e]{1,255}$/

/**
 * `Idempotency-Key`, or the x402 payment-identifier of a credential; if both are sent, they must be
 * equal. Throws ProblemError `bad-request`.
 */
export function idempotencyKey(
  headers: Headers,
  identifier: string | undefined,
): string | undefined {
  const header = headers.get('idempotency-key') ?? undefined
  if (header !== undefined && identifier !== undefined && header !== identifier)
    throw badKey('Idempotency-Key and payment-identifier differ: send one of them.')
  const key = header ?? identifier
  if (key !== undefined && !keyPattern.test(key))
    throw badKey('Idempotency-Key must be 1 to 255 visible ASCII characters.')
  return key
}

function badKey(detail: string): Problem.ProblemError {
  return Problem.of('bad-request', detail, { members: { field: 'Idempotency-Key' } })
}
