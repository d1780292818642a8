import type { Payment, Purpose } from '../../db/Payment'
import * as Problem from '../protocol/Problem'
import { type Money, moneyKey } from '../protocol/Transfer'
import { type Outcome, RowsRefusedError } from '../settlement/Outcome'
import type { Settlement } from '../settlement/settlement'
import type { ApprovalSponsor } from '../settlement/sponsorship'
import { settleSponsored } from '../settlement/sponsorship'
import { chooseAlternative } from './alternatives'
import { type Named, type Presentation, present } from './credential'
import * as Denial from './Denial'
import { createHold, type Hold, holdMoney, scopeKey } from './hold'
import { idempotencyKey } from './idempotency'
import type { Checkout, Product, Sale } from './Product'
import type { Quoter } from './quote'
import { failingOf, failureHeaders } from './receipts'

export type CheckoutOptions = {
  settlement: Settlement
  quoter: Quoter
  /** Sends the approves that payers sign; undefined when there is no sponsor. */
  sponsor: ApprovalSponsor | undefined
  challengeSecrets: readonly Uint8Array[]
  realm: string
  now: () => number
  log: (event: string, fields: Readonly<Record<string, unknown>>) => void
}

export type Checkouts<R> = {
  /** Sells to a request that presents a credential. Throws ProblemError. */
  buy(sale: Sale<R>): Promise<Response>
  /** Goes on with a payment that a redeem token stands for. Throws ProblemError. */
  redeem(sale: Sale<R>, payment: Payment): Promise<Response>
}

type State<R, A> = {
  options: CheckoutOptions
  product: Product<R, A>
  /** By the key of the money: what other requests wait for. */
  held: Map<string, Hold>
  /** Keys of buyers with which a purchase is looked for or settled now. */
  keys: Set<string>
}

/**
 * Sells a product: takes the money in memory, finds what is known of it, proves and reserves the
 * buyer's key, settles, and hands over.
 */
export function createCheckouts<R, A>(
  options: CheckoutOptions,
  product: Product<R, A>,
): Checkouts<R> {
  const state = { options, product, held: new Map(), keys: new Set<string>() }
  return {
    buy: (sale) => buy(state, sale),
    redeem: (sale, payment) => redeem(state, sale, payment),
  }
}

async function buy<R, A>(state: State<R, A>, sale: Sale<R>): Promise<Response> {
  const { options, product } = state
  let named: Named | undefined
  try {
    // First, so that the buyer finds its purchase even where the offer has changed since.
    named = product.peek?.(sale)
    const known = named && (await meet(state, named.transfer))
    if (named && known) {
      return await comeBack(state, open(state, sale, named, createHold()), named, known)
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

/** Answers a problem in the terms of the protocol that the buyer speaks. */
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

/** The payment of this money, once the request that holds the money now has given it back. */
async function meet<R, A>({ options, held }: State<R, A>, money: Money) {
  const hold = held.get(moneyKey(money))
  // Before the read: what the other request writes must be seen.
  if (hold !== undefined) await new Promise<void>((resolve) => hold.add(resolve))
  return options.settlement.find(money)
}

function open<R, A>(
  { product }: State<R, A>,
  sale: Sale<R>,
  named: Named,
  hold: Hold,
): Checkout<R> {
  return {
    sale,
    by: 'credential',
    presentation: named,
    fingerprint: product.fingerprintOf(sale, named.transfer.payer),
    key: idempotencyKey(sale.headers, named.identifier),
    hold,
  }
}

/** Takes the money. What is under way is registered here, before the first await. */
function claim<R, A>({ options, product, held }: State<R, A>, money: Money): Hold {
  const hold = holdMoney(options.settlement, money)
  if (hold === undefined) throw Denial.inProgress()
  if (product.peek === undefined) return hold
  const key = moneyKey(money)
  held.set(key, hold)
  hold.add(() => held.delete(key))
  return hold
}

async function spend<R, A>(
  state: State<R, A>,
  sale: Sale<R>,
  presentation: Presentation,
): Promise<Response> {
  const { transfer } = presentation
  // Of the requests that waited together another one may have been first to try again.
  while (state.held.has(moneyKey(transfer))) {
    const known = await meet(state, transfer)
    if (known !== undefined) {
      return comeBack(state, open(state, sale, presentation, createHold()), presentation, known)
    }
  }
  const hold = claim(state, transfer)
  try {
    const checkout = open(state, sale, presentation, hold)
    // Read under the claim: what was read before may be out of date.
    const known = await state.options.settlement.find(transfer)
    if (known !== undefined) return await comeBack(state, checkout, presentation, known)
    return await pay(state, checkout, presentation)
  } catch (error) {
    hold.release()
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
): Promise<{ outcome: Outcome } | { previous: Payment }> {
  const { settlement } = state.options
  const { transfer } = presentation
  // Only the payer itself may find or hold its key: without this proof a stranger could squat it.
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
    return { outcome: await settle(state, checkout, presentation) }
  } finally {
    state.keys.delete(reserved)
  }
}

async function settle<R, A>(
  { options, product }: State<R, A>,
  checkout: Checkout<R>,
  presentation: Presentation,
): Promise<Outcome> {
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
  try {
    return await settleSponsored(options, transfer, purpose, {
      approval,
      waitMs: product.waitMs(sale),
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
  { hold, ...presented }: Checkout<R>,
  payment: Payment,
): Promise<Response> {
  const { product } = state
  const presentation = { ...presented.presentation, transfer: payment.transfer }
  const checkout: Checkout<R> = { ...presented, presentation, hold, by: 'key' }
  const replay = await product.replay?.(checkout, payment)
  if (replay !== undefined) {
    hold.release()
    return replay
  }
  checkout.hold = product.peek ? createHold() : claim(state, payment.transfer)
  try {
    // Before it could be claimed another request may have got its answer.
    const current = (await state.options.settlement.findById(payment.id)) ?? payment
    const late = await product.replay?.(checkout, current)
    if (late !== undefined) {
      checkout.hold.release()
      hold.release()
      return late
    }
    await product.readmit(checkout, current)
    // The credential just presented stays unspent: the money of the previous purchase pays.
    hold.release()
    return await pursue(state, checkout, current)
  } catch (error) {
    checkout.hold.release()
    throw error
  }
}

/** A credential whose money is known already. */
async function comeBack<R, A>(
  state: State<R, A>,
  checkout: Checkout<R>,
  { transfer, isKeySigned, signatureReason }: Named,
  payment: Payment,
): Promise<Response> {
  // A contract's signature has been judged by the chain: here it must be the one that was.
  if (transfer.signature !== payment.transfer.signature && !isKeySigned()) {
    throw Denial.verificationFailed(signatureReason, 'The signature is not of the payer.')
  }
  const replay = await state.product.replay?.(checkout, payment)
  if (replay !== undefined) {
    checkout.hold.release()
    return replay
  }
  await state.product.readmit(checkout, payment)
  return pursue(state, checkout, payment)
}

async function redeem<R, A>(
  state: State<R, A>,
  sale: Sale<R>,
  payment: Payment,
): Promise<Response> {
  const { transfer, purpose } = payment
  const hold = claim(state, transfer)
  try {
    const fingerprint = state.product.fingerprintOf(sale, transfer.payer)
    const { protocol } = purpose
    const presentation = { protocol, transfer, bound: false, credentialHash: undefined }
    const checkout = { sale, by: 'token', presentation, fingerprint, key: undefined, hold } as const
    const current = (await state.options.settlement.findById(payment.id)) ?? payment
    await state.product.readmit(checkout, current)
    return await pursue(state, checkout, current)
  } catch (error) {
    hold.release()
    throw error
  }
}

/** Drives a known payment on from whatever state it is in. */
async function pursue<R, A>(
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
  outcome: Outcome,
): Promise<Response> {
  if (outcome.kind === 'confirmed') return product.fulfil(checkout, outcome)
  if (outcome.kind === 'dead') {
    const { requestId } = checkout.sale
    const { payment, reason } = outcome
    options.log('payment-dead', { requestId, payment: payment?.id, reason })
  }
  const problem = Denial.unpaid(outcome)
  throw (await product.explain?.(checkout, problem)) ?? problem
}
