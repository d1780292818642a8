import type { Authorization } from '../../db/Authorization'
import type { Payment, Purpose } from '../../db/Payment'
import * as Problem from '../protocol/Problem'
import { type Money, moneyKey } from '../protocol/Transfer'
import type { Authorized } from '../settlement/authorizations'
import { type Outcome, RowsRefusedError } from '../settlement/Outcome'
import type { Settlement } from '../settlement/settlement'
import type { ApprovalSponsor } from '../settlement/sponsorship'
import { authorizeSponsored, settleSponsored } from '../settlement/sponsorship'
import { chooseAlternative } from './alternatives'
import { claimMoney, createClaim, type RequestClaim, scopeKey } from './claims'
import { mayContinue } from './continuation'
import { type Named, type Presentation, present } from './credential'
import * as Denial from './Denial'
import { idempotencyKey } from './idempotency'
import type { Checkout, Product, Sale } from './Product'
import type { Quoter } from './quote'
import { failingOf, failureHeaders } from './receipts'

export type CheckoutOptions = {
  settlement: Settlement
  quoter: Quoter
  /** Sends the approves that payers sign; undefined without a sponsor. */
  sponsor: ApprovalSponsor | undefined
  challengeSecrets: readonly Uint8Array[]
  realm: string
  now: () => number
  log: (event: string, fields: Readonly<Record<string, unknown>>) => void
}

export type Checkouts<R> = {
  /** Sells to a request that presents a credential. Throws ProblemError. */
  buy(sale: Sale<R>): Promise<Response>
  /** Continues the payment of a redeem token. Throws ProblemError. */
  redeem(sale: Sale<R>, payment: Payment): Promise<Response>
}

type State<R, A> = {
  options: CheckoutOptions
  product: Product<R, A>
  /** By the key of the money: other requests wait for these claims. */
  claims: Map<string, RequestClaim>
  /** Keys of buyers whose purchase is being looked up or settled. */
  keys: Set<string>
}

/**
 * Sells a product. Claims the money in memory, looks up its payment, verifies and reserves the
 * buyer's key, settles, and delivers.
 */
export function createCheckouts<R, A>(
  options: CheckoutOptions,
  product: Product<R, A>,
): Checkouts<R> {
  const state = { options, product, claims: new Map(), keys: new Set<string>() }
  return {
    buy: (sale) => buy(state, sale),
    redeem: (sale, payment) => redeem(state, sale, payment),
  }
}

async function buy<R, A>(state: State<R, A>, sale: Sale<R>): Promise<Response> {
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
    const { challengeSecrets, realm, now } = options
    const takesApprovals = options.sponsor !== undefined
    const context = { item, url, digest, challengeSecrets, realm, takesApprovals, now }
    const presented = present(sale.presented, context)
    const isClear = presented.alternatives.length === 0
    const presentation = isClear
      ? presented
      : await chooseAlternative(options.settlement, presented)
    named = presentation
    return await spend(state, sale, presentation)
  } catch (error) {
    if (!(error instanceof Problem.ProblemError)) throw error
    return refuse(state, sale, named, error)
  }
}

/** Converts a problem to the protocol of the buyer. */
function refuse<R, A>(
  { product }: State<R, A>,
  sale: Sale<R>,
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

/** The payment of this money, after the current claim on it is released. */
async function findReleased<R, A>({ options, claims }: State<R, A>, money: Money) {
  const claim = claims.get(moneyKey(money))
  // Wait before the read, because the other request may write meanwhile.
  if (claim !== undefined) await new Promise<void>((resolve) => claim.add(resolve))
  return options.settlement.find(money)
}

function open<R, A>(
  { product }: State<R, A>,
  sale: Sale<R>,
  named: Named,
  claim: RequestClaim,
): Checkout<R> {
  return {
    sale,
    by: 'credential',
    presentation: named,
    fingerprint: product.fingerprintOf(sale, named.transfer.payer),
    key: idempotencyKey(sale.headers, named.identifier),
    claim,
  }
}

/** Claims the money. Registered here, before the first await. */
function takeClaim<R, A>({ options, product, claims }: State<R, A>, money: Money): RequestClaim {
  const claim = claimMoney(options.settlement, money)
  if (claim === undefined) throw Denial.inProgress()
  if (product.peek === undefined) return claim
  const key = moneyKey(money)
  claims.set(key, claim)
  claim.add(() => claims.delete(key))
  return claim
}

async function spend<R, A>(
  state: State<R, A>,
  sale: Sale<R>,
  presentation: Presentation,
): Promise<Response> {
  const { transfer } = presentation
  // Another request that waited for the same claim may have taken it first.
  while (state.claims.has(moneyKey(transfer))) {
    const known = await findReleased(state, transfer)
    if (known !== undefined) {
      return resumeKnown(state, open(state, sale, presentation, createClaim()), presentation, known)
    }
  }
  const claim = takeClaim(state, transfer)
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

async function pay<R, A>(
  state: State<R, A>,
  checkout: Checkout<R>,
  presentation: Presentation,
): Promise<Response> {
  if (presentation.window !== undefined) {
    throw Problem.ofFault(presentation.window, 'payment-expired')
  }
  state.product.assertServable?.(checkout.sale)
  const { key } = checkout
  if (key === undefined)
    return conclude(state, checkout, await settle(state, checkout, presentation))
  const taken = await reserve(state, checkout, presentation, key)
  if ('previous' in taken) return repeat(state, checkout, taken.previous)
  return conclude(state, checkout, taken.outcome)
}

/** Settles unless the buyer's own key has bought something before. */
async function reserve<R, A>(
  state: State<R, A>,
  checkout: Checkout<R>,
  presentation: Presentation,
  key: string,
): Promise<{ outcome: Outcome | Authorized } | { previous: Payment }> {
  const { settlement } = state.options
  const { transfer } = presentation
  // Only the payer itself may read or reserve its key: otherwise any client could occupy it.
  if (!presentation.isKeySigned()) {
    const verdict = await settlement.verify(transfer)
    if (!('ok' in verdict)) return { outcome: verdict }
  }
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

async function settle<R, A>(
  { options, product }: State<R, A>,
  checkout: Checkout<R>,
  presentation: Presentation,
): Promise<Outcome | Authorized> {
  const { sale } = checkout
  const { transfer, protocol, challengeId, credentialHash, bound, approval } = presentation
  const admitted = await product.admit(checkout)
  const rows = product.record?.(checkout, admitted)
  const purpose: Purpose = {
    ...sale.purpose,
    protocol,
    fingerprint: checkout.fingerprint,
    idempotencyKey: checkout.key,
    challengeId,
    credentialHash,
    bound,
  }
  const waitMs = product.waitMs(sale)
  if (transfer.upto !== undefined) {
    const validUntil = options.now() + (product.answerMs?.(sale) ?? 0)
    return authorizeSponsored(options, transfer, purpose, { approval, waitMs, validUntil })
  }
  try {
    return await settleSponsored(options, transfer, purpose, {
      approval,
      waitMs,
      receivedAt: options.now(),
      isKeySigned: presentation.isKeySigned,
      requestId: sale.requestId,
      rows,
      ...product.settling?.(checkout, purpose),
    })
  } catch (error) {
    if (!(error instanceof RowsRefusedError)) throw error
    throw product.refusalOf?.(error.reason) ?? error
  }
}

/** The purchase that the same payer made before with the same key. */
async function repeat<R, A>(
  state: State<R, A>,
  { claim, ...presented }: Checkout<R>,
  payment: Payment,
): Promise<Response> {
  const { product } = state
  const presentation = { ...presented.presentation, transfer: payment.transfer }
  const checkout: Checkout<R> = { ...presented, presentation, claim, by: 'key' }
  const replay = await product.replay?.(checkout, payment)
  if (replay !== undefined) {
    claim.release()
    return replay
  }
  checkout.claim = product.peek ? createClaim() : takeClaim(state, payment.transfer)
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
async function resumeKnown<R, A>(
  state: State<R, A>,
  checkout: Checkout<R>,
  { transfer, isKeySigned, signatureReason }: Named,
  payment: Payment,
): Promise<Response> {
  // The chain has accepted one signature of a contract: the credential must have the same one.
  if (transfer.signature !== payment.transfer.signature && !isKeySigned()) {
    throw Denial.verificationFailed(signatureReason, 'The signature is not of the payer.')
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
async function resumeAuthorized<R, A>(
  state: State<R, A>,
  checkout: Checkout<R>,
  { presentation, authorization }: { presentation: Named; authorization: Authorization },
): Promise<Response> {
  const { options, product } = state
  const { fingerprint, key, sale } = checkout
  const { purpose, transfer, delivered } = authorization
  const { isKeySigned, signatureReason } = presentation
  if (presentation.transfer.signature !== transfer.signature && !isKeySigned()) {
    throw Denial.verificationFailed(signatureReason, 'The signature is not of the payer.')
  }
  if (authorization.state === 'authorized') throw Denial.inProgress()
  if (authorization.state !== 'metered' || delivered !== undefined) throw Denial.spentBy(transfer)
  if (purpose.fingerprint !== fingerprint) {
    throw Denial.mismatch('The credential pays for another request.')
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
  if (outcome.kind === 'confirmed') await product.readmit(checkout, outcome.payment)
  return conclude(state, checkout, outcome)
}

async function redeem<R, A>(
  state: State<R, A>,
  sale: Sale<R>,
  payment: Payment,
): Promise<Response> {
  const { transfer, purpose } = payment
  const claim = takeClaim(state, transfer)
  try {
    const fingerprint = state.product.fingerprintOf(sale, transfer.payer)
    const { protocol } = purpose
    const presentation = { protocol, transfer, bound: false, credentialHash: undefined }
    const key = undefined
    const checkout = { sale, by: 'token', presentation, fingerprint, key, claim } as const
    const current = (await state.options.settlement.findById(payment.id)) ?? payment
    await state.product.readmit(checkout, current)
    return await driveKnown(state, checkout, current)
  } catch (error) {
    claim.release()
    throw error
  }
}

/** Drives a known payment on from any state. */
async function driveKnown<R, A>(
  state: State<R, A>,
  checkout: Checkout<R>,
  payment: Payment,
): Promise<Response> {
  const { sale } = checkout
  const { requestId } = sale
  if (payment.state === 'confirmed')
    return conclude(state, checkout, { kind: 'confirmed', payment })
  const waitMs = state.product.waitMs(sale)
  const { settlement } = state.options
  const outcome = await settlement.resume(payment, payment.transfer, { waitMs, requestId })
  return conclude(state, checkout, outcome)
}

async function conclude<R, A>(
  { options, product }: State<R, A>,
  checkout: Checkout<R>,
  outcome: Outcome | Authorized,
): Promise<Response> {
  if (outcome.kind === 'confirmed') return product.fulfil(checkout, outcome)
  if (outcome.kind === 'authorized' && product.fulfilByUse)
    return product.fulfilByUse(checkout, outcome.authorization)
  if (outcome.kind === 'authorized') throw new Error('this product is not sold by use')
  if (outcome.kind === 'dead') {
    const { requestId } = checkout.sale
    const { payment, reason } = outcome
    options.log('payment-dead', { requestId, payment: payment?.id, reason })
  }
  const problem = Denial.unpaid(outcome)
  throw (await product.explain?.(checkout, problem)) ?? problem
}
