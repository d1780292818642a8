import type { Authorization } from '../../db/Authorization'
import type { Payment } from '../../db/Payment'
import type { Tally } from '../books/tally'
import type { WriteEvent } from '../log'
import { type Money, moneyKey } from '../protocol/Transfer'
import type { Outcome } from '../settlement/send/Outcome'
import type { Settlement } from '../settlement/settlement'
import type { ApprovalSponsor } from '../settlement/sponsorship'
import type { Authorized } from '../settlement/upto/authorize'
import { claimMoney, createClaim, type RequestClaim } from './claims'
import { mayContinue } from './continuation'
import type { Named } from './credential'
import * as Denial from './Denial'
import { idempotencyKey } from './idempotency'
import type { Quoter } from './offer/quote'
import type { Checkout, Product, Sale } from './Product'

/** Continues purchases whose money is known already, and concludes all of them. */

export type CheckoutOptions = {
  settlement: Settlement
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

export type State<R, A> = {
  options: CheckoutOptions
  product: Product<R, A>
  /** By the key of the money: other requests wait for these claims. */
  claims: Map<string, RequestClaim>
  /** Keys of buyers whose purchase is being looked up or settled. */
  keys: Set<string>
  /** Notes money that is presented; true if it was before. */
  isSeen: (money: Money) => boolean
}

/** Claims the money. Registered here, before the first await. */
export function takeClaim<R, A>(
  { options, product, claims }: State<R, A>,
  money: Money,
): RequestClaim {
  const claim = claimMoney(options.settlement, money)
  if (claim === undefined) throw Denial.inProgress()
  if (product.peek === undefined) return claim
  const key = moneyKey(money)
  claims.set(key, claim)
  claim.add(() => claims.delete(key))
  return claim
}

/** The purchase that the same payer made before with the same key. */
export async function repeat<R, A>(
  state: State<R, A>,
  { claim, ...presented }: Checkout<R>,
  payment: Payment,
): Promise<Response> {
  const { product } = state
  const { transfer } = payment
  const presentation = { ...presented.presentation, transfer }
  const fingerprint = product.fingerprintOf(presented.sale, transfer)
  const checkout: Checkout<R> = { ...presented, presentation, fingerprint, claim, by: 'key' }
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
export async function resumeKnown<R, A>(
  state: State<R, A>,
  checkout: Checkout<R>,
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
export async function resumeAuthorized<R, A>(
  state: State<R, A>,
  checkout: Checkout<R>,
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

export async function redeem<R, A>(
  state: State<R, A>,
  sale: Sale<R>,
  payment: Payment,
): Promise<Response> {
  const { transfer, purpose } = payment
  const claim = takeClaim(state, transfer)
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
  const { settlement, tally } = state.options
  const outcome = await settlement.resume(payment, payment.transfer, { waitMs, requestId })
  if (outcome.kind === 'confirmed') tally.of(sale.item).paid++
  return conclude(state, checkout, outcome)
}

export async function conclude<R, A>(
  { options, product }: State<R, A>,
  checkout: Checkout<R>,
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
