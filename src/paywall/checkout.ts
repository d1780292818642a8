import type { Authorization } from '../../db/Authorization'
import type { Payment, Purpose } from '../../db/Payment'
import type { Tally } from '../books/tally'
import type { WriteEvent } from '../log'
import * as Problem from '../protocol/Problem'
import { type Money, moneyKey } from '../protocol/Transfer'
import { usedReason } from '../settlement/read/refusals'
import { type Outcome, RowsRefusedError } from '../settlement/send/Outcome'
import type { Settlement } from '../settlement/settlement'
import { type ApprovalSponsor, withApproval } from '../settlement/sponsorship'
import type { PaymentRequest } from '../settlement/state/state'
import type { Authorized } from '../settlement/upto/authorize'
import { failingOf, failureHeaders } from './answer/receipts'
import { type Claims, claimMoney, createClaim, type RequestClaim, scopeKey } from './claims'
import { mayContinue } from './continuation'
import { type Named, type Presentation, present } from './credential'
import * as Denial from './Denial'
import { idempotencyKey } from './idempotency'
import { chooseAlternative } from './offer/alternatives'
import type { Quoter } from './offer/quote'
import type { Checkout, Product, Sale } from './Product'

/** Sells a product, and continues what was bought. */

export type CheckoutOptions = {
  settlement: Settlement
  /** Claims on money, shared by all products. */
  claims: Claims
  quoter: Quoter
  /** Sends the approves that payers sign; undefined without a sponsor. */
  sponsor: ApprovalSponsor | undefined
  /** Counts purchases and failed requests. */
  tally: Tally
  challengeSecrets: readonly Uint8Array[]
  realm: string
  now: () => number
  log: WriteEvent
}

export type Checkouts<S extends Sale> = {
  /** Sells to a request that presents a credential. Throws ProblemError. */
  buy(sale: S): Promise<Response>
  /** Continues the payment of a redeem token. Throws ProblemError. */
  redeem(sale: S, payment: Payment): Promise<Response>
}

type State = {
  options: CheckoutOptions
  product: Product
  /** Keys of buyers whose purchase is being looked up or settled. */
  keys: Set<string>
}

/**
 * Sells a product. Claims the money in memory, looks up its payment, verifies and reserves the
 * buyer's key, settles, and delivers.
 */
export function createCheckouts<S extends Sale>(
  options: CheckoutOptions,
  product: Product<S>,
): Checkouts<S> {
  const state: State = { options, product, keys: new Set() }
  return {
    buy: (sale) => buy(state, sale),
    redeem: (sale, payment) => redeem(state, sale, payment),
  }
}

async function buy(state: State, sale: Sale): Promise<Response> {
  const { options, product } = state
  let named: Named | undefined
  try {
    // First, so that the buyer finds its purchase even when the offer has changed since.
    named = product.peek?.(sale)
    const known = named && (await findReleased(state, named.transfer))
    if (named && known) {
      return await resumeKnown(state, open(state, sale, named, createClaim()), named, known)
    }
    const { item, url, digest } = sale
    const priced = sale.priced ?? (() => item)
    const { challengeSecrets, realm, now } = options
    const takesApprovals = options.sponsor !== undefined
    const context = { item, priced, url, digest, challengeSecrets, realm, takesApprovals, now }
    const presented = present(sale.presented, context)
    const isClear = presented.alternatives.length === 0
    const presentation = isClear
      ? presented
      : await chooseAlternative(options.settlement, presented)
    named = presentation
    return await spend(state, sale, presentation)
  } catch (error) {
    options.tally.of(sale.item).failed++
    if (!(error instanceof Problem.ProblemError)) throw error
    return refuse(state, sale, named, error)
  }
}

/** Converts a problem to the protocol of the buyer. */
function refuse(
  { product }: State,
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
function otherClaim({ options: { claims }, product }: State, money: Money) {
  const claim = claims.get(moneyKey(money))
  return claim?.waiting === product ? claim : undefined
}

/** The payment of this money, after the current claim on it is released. */
async function findReleased(state: State, money: Money) {
  const claim = otherClaim(state, money)
  // Wait before the read, because the other request may write meanwhile.
  if (claim !== undefined) await new Promise<void>((resolve) => claim.add(resolve))
  return state.options.settlement.find(money)
}

function open({ product }: State, sale: Sale, named: Named, claim: RequestClaim): Checkout {
  return {
    sale,
    by: 'credential',
    presentation: named,
    fingerprint: product.fingerprintOf(sale, named.transfer),
    key: idempotencyKey(sale.headers, named.identifier),
    claim,
  }
}

async function spend(state: State, sale: Sale, presentation: Presentation): Promise<Response> {
  const { transfer } = presentation
  // Another request that waited for the same claim may have taken it first.
  while (otherClaim(state, transfer) !== undefined) {
    const known = await findReleased(state, transfer)
    if (known !== undefined) {
      return resumeKnown(state, open(state, sale, presentation, createClaim()), presentation, known)
    }
  }
  const claim = claimNow(state, transfer)
  try {
    const checkout = open(state, sale, presentation, claim)
    // Read under the claim: an earlier read may be outdated.
    const known = await state.options.settlement.find(transfer)
    if (known !== undefined) return await resumeKnown(state, checkout, presentation, known)
    const authorized =
      transfer.upto && (await state.options.settlement.authorizations.find(transfer))
    if (authorized !== undefined) {
      return await resumeAuthorized(state, checkout, { presentation, authorization: authorized })
    }
    return await pay(state, checkout, presentation)
  } catch (error) {
    claim.release()
    throw error
  }
}

async function pay(
  state: State,
  checkout: Checkout,
  presentation: Presentation,
): Promise<Response> {
  const { key } = checkout
  const forged = state.product.isCostly?.(checkout.sale)
    ? await refusalOfForged(state, presentation)
    : undefined
  if (forged !== undefined) return conclude(state, checkout, forged)
  // Without a key, the ceiling goes to a node first, and the body is examined during that call.
  if (presentation.transfer.upto === undefined || key !== undefined) {
    assertSellable(state, checkout, presentation)
  }
  const taken =
    key === undefined
      ? { outcome: await settle(state, checkout, presentation) }
      : await reserve(state, checkout, presentation, key)
  if ('previous' in taken) return repeat(state, checkout, taken.previous)
  await assertUnknown(state, presentation, taken.outcome)
  return conclude(state, checkout, taken.outcome)
}

/** Throws ProblemError when the request cannot be sold, or not for this price. May be called again. */
function assertSellable({ product }: State, { sale }: Checkout, { refusal }: Presentation): void {
  const fault = refusal()
  if (fault !== undefined) throw Problem.ofFault(fault, 'payment-expired')
  product.assertServable?.(sale)
}

/**
 * A nonce is used. Another gateway may have used it for the same credential. Then the buyer must
 * present that credential again, because a new one would pay twice.
 */
async function assertUnknown(
  { options: { settlement } }: State,
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
  { options: { settlement } }: State,
  { transfer, isKeySigned }: Presentation,
): Promise<Outcome | undefined> {
  if (isKeySigned()) return undefined
  const verdict = await settlement.verify(transfer)
  return 'ok' in verdict ? undefined : verdict
}

/** Settles unless the buyer's own key has bought something before. */
async function reserve(
  state: State,
  checkout: Checkout,
  presentation: Presentation,
  key: string,
): Promise<{ outcome: Outcome | Authorized } | { previous: Payment }> {
  const { settlement } = state.options
  const { transfer } = presentation
  // Only the payer itself may read or reserve its key: otherwise any client could occupy it.
  const forged = await refusalOfForged(state, presentation)
  if (forged !== undefined) return { outcome: forged }
  const { merchant, route } = checkout.sale.purpose
  const scope = { merchant, route, payer: transfer.payer, key }
  const reserved = scopeKey(scope)
  if (state.keys.has(reserved)) throw Denial.inProgress()
  state.keys.add(reserved)
  try {
    const previous = await settlement.findByIdempotencyKey(scope)
    if (previous !== undefined) return { previous }
    if (checkout.sale.item.isByUse && (await settlement.authorizations.findByIdempotencyKey(scope)))
      throw Denial.inProgress()
    return { outcome: await settle(state, checkout, presentation) }
  } finally {
    state.keys.delete(reserved)
  }
}

async function settle(
  state: State,
  checkout: Checkout,
  presentation: Presentation,
): Promise<Outcome | Authorized> {
  const { options, product } = state
  const { settlement } = options
  const { sale } = checkout
  const { transfer, approval } = presentation
  try {
    if (transfer.upto !== undefined) return await authorize(state, checkout, presentation)
    const rows = await product.admit(checkout)
    const purpose = purposeOf(checkout, presentation)
    const waitMs = product.waitMs(sale)
    const request: PaymentRequest = {
      transfer,
      purpose,
      receivedAt: options.now(),
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
            options,
            { transfer, approval, client: product.clientOf(sale), waitMs },
            // Another process may have written the payment during the approve.
            (leftMs, isSecond) => settlement.settle({ ...request, isUnknown: !isSecond }, leftMs),
          )
    if (outcome.kind === 'confirmed') options.tally.of(sale.item).paid++
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
  state: State,
  checkout: Checkout,
  presentation: Presentation,
): Promise<Outcome | Authorized> {
  const { options, product } = state
  const { settlement } = options
  const { sale } = checkout
  const { transfer, approval } = presentation
  let isAsserted = false
  const assertOnce = () => {
    if (isAsserted) return
    isAsserted = true
    assertSellable(state, checkout, presentation)
  }
  try {
    await product.admit(checkout)
    const purpose = purposeOf(checkout, presentation)
    const waitMs = product.waitMs(sale)
    const validUntil = options.now() + (product.answerMs?.(sale) ?? 0)
    const client = product.clientOf(sale)
    const onAsked = () => {
      assertOnce()
      product.prepareByUse?.(checkout)
    }
    const attempt = () => {
      const own = { id: settlement.createId(), receivedAt: options.now() }
      const terms = { ...own, client, validUntil, onAsked }
      return settlement.authorizations.authorize(transfer, purpose, terms)
    }
    const outcome =
      approval === undefined
        ? await attempt()
        : await withApproval(options, { transfer, approval, client, waitMs }, attempt)
    assertOnce()
    return outcome
  } catch (error) {
    assertOnce()
    throw error
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
function claimNow({ options: { claims }, product }: State, money: Money): RequestClaim {
  const claim = claimMoney(claims, money, product.peek && product)
  if (claim === undefined) throw Denial.inProgress()
  return claim
}

/** The purchase that the same payer made before with the same key. */
async function repeat(
  state: State,
  { claim, ...presented }: Checkout,
  payment: Payment,
): Promise<Response> {
  const { product } = state
  const { transfer } = payment
  const presentation = { ...presented.presentation, transfer }
  const fingerprint = product.fingerprintOf(presented.sale, transfer)
  const checkout: Checkout = { ...presented, presentation, fingerprint, claim, by: 'key' }
  const replay = await product.replay?.(checkout, payment)
  if (replay !== undefined) {
    claim.release()
    return replay
  }
  checkout.claim = product.peek ? createClaim() : claimNow(state, payment.transfer)
  try {
    // Another request may have delivered it before the claim.
    const current = (await state.options.settlement.findById(payment.id)) ?? payment
    const late = await product.replay?.(checkout, current)
    if (late !== undefined) {
      checkout.claim.release()
      claim.release()
      return late
    }
    await product.readmit(checkout, current)
    // The credential just presented stays unspent: the money of the previous purchase pays.
    claim.release()
    return await driveKnown(state, checkout, current)
  } catch (error) {
    checkout.claim.release()
    throw error
  }
}

/** A credential of a known payment. */
async function resumeKnown(
  state: State,
  checkout: Checkout,
  { transfer, isKeySigned, signatureReason, expectedSigner }: Named,
  payment: Payment,
): Promise<Response> {
  // The chain has accepted one signature of a contract: the credential must have the same one.
  if (transfer.signature !== payment.transfer.signature && !isKeySigned()) {
    throw Denial.verificationFailed(signatureReason, expectedSigner())
  }
  const replay = await state.product.replay?.(checkout, payment)
  if (replay !== undefined) {
    checkout.claim.release()
    return replay
  }
  await state.product.readmit(checkout, payment)
  return driveKnown(state, checkout, payment)
}

/** A credential of a known authorization: only a charge whose answer is lost is continued. */
async function resumeAuthorized(
  state: State,
  checkout: Checkout,
  { presentation, authorization }: { presentation: Named; authorization: Authorization },
): Promise<Response> {
  const { options, product } = state
  const { fingerprint, key, sale } = checkout
  const { purpose, transfer, delivered } = authorization
  const { isKeySigned, signatureReason, expectedSigner } = presentation
  if (presentation.transfer.signature !== transfer.signature && !isKeySigned()) {
    throw Denial.verificationFailed(signatureReason, expectedSigner())
  }
  if (authorization.state === 'authorized') throw Denial.inProgress()
  // Another gateway has settled the charge since this process read its payment.
  const settled = authorization.state === 'sent' && (await options.settlement.find(transfer))
  if (settled) return resumeKnown(state, checkout, presentation, settled)
  if (authorization.state !== 'metered' || delivered !== undefined) throw Denial.spentBy(transfer)
  if (purpose.fingerprint !== fingerprint) {
    throw Denial.otherRequest(transfer)
  }
  if (!mayContinue({ purpose, state: 'broadcast' }, { presentation, key })) {
    throw Denial.otherCredential()
  }
  const waitMs = product.waitMs(sale)
  const { requestId } = sale
  const outcome = await options.settlement.authorizations.settleCharge(authorization, {
    waitMs,
    requestId,
  })
  if (outcome.kind === 'confirmed') {
    options.tally.of(sale.item).paid++
    await product.readmit(checkout, outcome.payment)
  }
  return conclude(state, checkout, outcome)
}

async function redeem(state: State, sale: Sale, payment: Payment): Promise<Response> {
  const { transfer, purpose } = payment
  const claim = claimNow(state, transfer)
  try {
    const fingerprint = state.product.fingerprintOf(sale, transfer)
    const { protocol } = purpose
    const presentation = { protocol, transfer, bound: false, credentialHash: undefined }
    const key = idempotencyKey(sale.headers, undefined)
    const checkout = { sale, by: 'token', presentation, fingerprint, key, claim } as const
    const current = (await state.options.settlement.findById(payment.id)) ?? payment
    // An answer with a key is stored, so one that was lost on its way is repeated.
    const replay = await state.product.replay?.(checkout, current)
    if (replay !== undefined) {
      claim.release()
      return replay
    }
    await state.product.readmit(checkout, current)
    return await driveKnown(state, checkout, current)
  } catch (error) {
    claim.release()
    throw error
  }
}

/** Drives a known payment on from any state. */
async function driveKnown(state: State, checkout: Checkout, payment: Payment): Promise<Response> {
  const { sale } = checkout
  const { requestId } = sale
  if (payment.state === 'confirmed')
    return conclude(state, checkout, { kind: 'confirmed', payment })
  const waitMs = state.product.waitMs(sale)
  const { settlement, tally } = state.options
  const outcome = await settlement.resume(payment, payment.transfer, { waitMs, requestId })
  if (outcome.kind === 'confirmed') tally.of(sale.item).paid++
  return conclude(state, checkout, outcome)
}

async function conclude(
  { options, product }: State,
  checkout: Checkout,
  outcome: Outcome | Authorized,
): Promise<Response> {
  if (outcome.kind === 'confirmed') return product.fulfil(checkout, outcome)
  if (outcome.kind === 'authorized' && product.fulfilByUse) {
    const response = await product.fulfilByUse(checkout, outcome.authorization)
    options.tally.of(checkout.sale.item).paid++
    return response
  }
  if (outcome.kind === 'authorized') throw new Error('this product is not sold by use')
  if (outcome.kind === 'dead') {
    const { requestId } = checkout.sale
    const { payment, reason } = outcome
    options.log('payment-dead', { requestId, payment: payment?.id, reason })
  }
  const problem = Denial.unpaid(outcome)
  throw (await product.explain?.(checkout, problem)) ?? problem
}
