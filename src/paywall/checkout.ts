import type { Payment, Purpose } from '../../db/Payment'
import * as Problem from '../protocol/Problem'
import { type Money, moneyKey } from '../protocol/Transfer'
import { usedReason } from '../settlement/read/refusals'
import { type Outcome, RowsRefusedError } from '../settlement/send/Outcome'
import { authorizeSponsored, settleSponsored } from '../settlement/sponsorship'
import type { Authorized } from '../settlement/upto/authorize'
import { failingOf, failureHeaders } from './answer/receipts'
import { createClaim, type RequestClaim, scopeKey } from './claims'
import { type Named, type Presentation, present } from './credential'
import * as Denial from './Denial'
import { idempotencyKey } from './idempotency'
import { chooseAlternative } from './offer/alternatives'
import type { Checkout, Product, Sale } from './Product'
import {
  type CheckoutOptions,
  conclude,
  redeem,
  repeat,
  resumeAuthorized,
  resumeKnown,
  type State,
  takeClaim,
} from './resume'
import { createSeen, type FindKnown, payUnread } from './unread'

export type Checkouts<R> = {
  /** Sells to a request that presents a credential. Throws ProblemError. */
  buy(sale: Sale<R>): Promise<Response>
  /** Continues the payment of a redeem token. Throws ProblemError. */
  redeem(sale: Sale<R>, payment: Payment): Promise<Response>
}

/**
 * Sells a product. Claims the money in memory, looks up its payment, verifies and reserves the
 * buyer's key, settles, and delivers.
 */
export function createCheckouts<R, A>(
  options: CheckoutOptions,
  product: Product<R, A>,
): Checkouts<R> {
  const isSeen = createSeen()
  const state = { options, product, claims: new Map(), keys: new Set<string>(), isSeen }
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
    fingerprint: product.fingerprintOf(sale, named.transfer),
    key: idempotencyKey(sale.headers, named.identifier),
    claim,
  }
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
    const find = () => state.options.settlement.find(transfer)
    if (mayPayUnread(state, checkout, presentation)) {
      const paid = await payUnread(checkout, find, async (attempt, findKnown) => {
        assertSellable(state, attempt, presentation)
        return settle(state, attempt, presentation, findKnown)
      })
      if ('known' in paid) return await resumeKnown(state, checkout, presentation, paid.known)
      await assertUnknown(state, presentation, paid.outcome)
      return await conclude(state, checkout, paid.outcome)
    }
    const known = await find()
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

/** Whether a node may be asked about the money before it is looked up. */
function mayPayUnread<R, A>(
  { options: { settlement }, product, isSeen }: State<R, A>,
  { key, sale }: Checkout<R>,
  { transfer }: Presentation,
): boolean {
  if (!settlement.isShared || isSeen(transfer) || product.isCostly?.(sale)) return false
  return key === undefined && transfer.upto === undefined && product.peek === undefined
}

/** Throws ProblemError when the request cannot be sold, or not for this price. May be called again. */
function assertSellable<R, A>(
  { product }: State<R, A>,
  { sale }: Checkout<R>,
  { refusal }: Presentation,
): void {
  const fault = refusal()
  if (fault !== undefined) throw Problem.ofFault(fault, 'payment-expired')
  product.assertServable?.(sale)
}

/**
 * A nonce is used. Another gateway may have used it for the same credential. Then the buyer must
 * present that credential again, because a new one would pay twice.
 */
async function assertUnknown<R, A>(
  { options: { settlement } }: State<R, A>,
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
async function refusalOfForged<R, A>(
  { options: { settlement } }: State<R, A>,
  { transfer, isKeySigned }: Presentation,
): Promise<Outcome | undefined> {
  if (isKeySigned()) return undefined
  const verdict = await settlement.verify(transfer)
  return 'ok' in verdict ? undefined : verdict
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

async function settle<R, A>(
  state: State<R, A>,
  checkout: Checkout<R>,
  presentation: Presentation,
  findKnown?: FindKnown,
): Promise<Outcome | Authorized> {
  const { options, product } = state
  const { sale } = checkout
  const { transfer, approval } = presentation
  try {
    if (transfer.upto !== undefined) return await authorize(state, checkout, presentation)
    const admitted = await product.admit(checkout)
    const rows = product.record?.(checkout, admitted)
    const purpose = purposeOf(checkout, presentation)
    const waitMs = product.waitMs(sale)
    const outcome = await settleSponsored(options, transfer, purpose, {
      approval,
      client: approval && product.clientOf(sale),
      waitMs,
      receivedAt: options.now(),
      isKeySigned: presentation.isKeySigned,
      requestId: sale.requestId,
      isUnknown: true,
      findKnown,
      rows,
      ...product.settling?.(checkout, purpose),
    })
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
async function authorize<R, A>(
  state: State<R, A>,
  checkout: Checkout<R>,
  presentation: Presentation,
): Promise<Outcome | Authorized> {
  const { options, product } = state
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
    const outcome = await authorizeSponsored(options, transfer, purposeOf(checkout, presentation), {
      approval,
      waitMs: product.waitMs(sale),
      validUntil: options.now() + (product.answerMs?.(sale) ?? 0),
      client: product.clientOf(sale),
      onAsked() {
        assertOnce()
        product.prepareByUse?.(checkout)
      },
    })
    assertOnce()
    return outcome
  } catch (error) {
    assertOnce()
    throw error
  }
}

function purposeOf<R>(
  { sale, fingerprint, key }: Checkout<R>,
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
