import type { Authorization } from '../../db/Authorization'
import type { Rows, RowsRefusal } from '../../db/Ledger'
import type { KeyScope, Payment, Purpose } from '../../db/Payment'
import type { Tally } from '../books/tally'
import type { WriteEvent } from '../log'
import * as Amount from '../protocol/Amount'
import type * as Client from '../protocol/Client'
import * as Explanation from '../protocol/Explanation'
import * as Problem from '../protocol/Problem'
import { type Money, moneyKey, signatureCodes, signerOf, type Transfer } from '../protocol/Transfer'
import { isPresented, type Presented } from '../settlement/channels/state'
import { busyDetail } from '../settlement/channels/voucher'
import { usedReason } from '../settlement/read/refusals'
import { type Outcome, RowsRefusedError } from '../settlement/send/Outcome'
import type { Settlement } from '../settlement/settlement'
import { withApproval } from '../settlement/sponsorship'
import type { PaymentRequest } from '../settlement/state/state'
import type { Authorized } from '../settlement/upto/authorize'
import { failingOf, failureHeaders, refundHeaders } from './answer/receipts'
import { continuationTokens, findByToken } from './answer/undelivered'
import {
  type Asked,
  assertSigned,
  type CredentialOptions,
  legacyResponse,
  type Named,
  type Presentation,
  present,
} from './credential'
import * as Denial from './Denial'
import type { ChallengeDetails, Quoter } from './offer/quote'

/** Sells a product, and continues what was bought. */

/** A request for something that is sold, in terms common to all products. */
export type Sale = Asked & {
  headers: Headers
  requestId: string
  /** Address of the client (http/client.ts). */
  readonly client: string
  clientKind: Client.Kind
  /** The stored purpose of its payment. */
  purpose: Pick<Purpose, 'product' | 'merchant' | 'route' | 'resource'>
}

/** One purchase, from the credential to the answer. */
export type Checkout<S extends Sale = Sale> = {
  sale: S
  /** What the request presents: the money, the key of a purchase, or a token. */
  by: 'credential' | 'key' | 'token'
  presentation: Pick<Presentation, 'protocol' | 'transfer' | 'bound' | 'credentialHash'>
  /** What is bought, as `Product.fingerprintOf` computes it. */
  fingerprint: string
  /** The buyer's `Idempotency-Key` or payment-identifier. */
  key: string | undefined
  /** The claim on the money, with what is released with it; `fulfil` releases it. */
  claim: RequestClaim
  /** Ends the turn of its channel, which may be before the claim ends. */
  endTurn?: (() => void) | undefined
}

type Confirmed = Extract<Outcome, { kind: 'confirmed' }>

/** The part of a product in the checkout: its policy and its answer. */
export type Product<S extends Sale = Sale> = {
  /** The 402. Throws ProblemError when nothing can be sold. */
  challenge(sale: S, details: ChallengeDetails): Response
  /** Distinguishes purchases: hex of what is bought with this money. */
  fingerprintOf(sale: S, transfer: Pick<Transfer, 'payer' | 'upto' | 'method'>): string
  /** Longest time (ms) that the buyer waits for the settlement from now on. */
  waitMs(sale: S): number
  /**
   * Throws ProblemError when the item is not for sale now. Called before the signature check, which
   * costs time.
   */
  assertServable?(sale: S): void
  /** Whether that check costs more than a signature check. */
  isCostly?(sale: S): boolean
  /**
   * The money that a credential names. Only for a product that records every purchase, so that any
   * number of requests may wait for it and read it. Without it a purchase has one answer: while one
   * request has claimed its money, the others are refused.
   */
  peek?(sale: S): Named | undefined
  /**
   * The answer of a delivered payment, for a buyer that may fetch it again. Undefined: it may not.
   * Throws ProblemError.
   */
  again?(sale: S, payment: Payment): Promise<Response | undefined>
  /** The stored answer of a purchase, if the request shows its key. Throws ProblemError. */
  replay?(checkout: Checkout<S>, payment: Payment): Promise<Response | undefined>
  /** Whether the request may continue a known payment. Throws ProblemError. */
  readmit(checkout: Checkout<S>, payment: Payment): Promise<void>
  /**
   * Whether it may be sold now, with the rows that are written with the payment, atomically. Throws
   * ProblemError; no money has moved and nothing is written.
   */
  admit(checkout: Checkout<S>): Promise<Rows | undefined>
  /** The problem when those rows were refused and no money moved; undefined: an internal fault. */
  refusalOf?(reason: RowsRefusal): Problem.ProblemError | undefined
  /** Callbacks of the product while its payment settles. */
  settling?(
    checkout: Checkout<S>,
    purpose: Purpose,
  ): Pick<PaymentRequest, 'onSent' | 'deliverOnConfirm'>
  /** Longest time (ms) that an answer which is charged by its use takes, with its settlement. */
  answerMs?(sale: S): number
  /**
   * Prepares that answer while a node verifies the authorization, which it may refuse. So it has no
   * effect outside of this process. May be called again. Must not throw.
   */
  prepareByUse?(checkout: Checkout<S>): void
  /** The answer of an authorization, whose charge is settled after it was made. Throws ProblemError. */
  fulfilByUse?(checkout: Checkout<S>, authorization: Authorization): Promise<Response>
  /** The answer for a confirmed payment. Throws ProblemError. */
  fulfil(checkout: Checkout<S>, outcome: Confirmed): Promise<Response>
  /** Adds the state of the purchase to the problem of a settlement. */
  explain?(checkout: Checkout<S>, problem: Problem.ProblemError): Promise<Problem.ProblemError>
}

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
      return await resumeKnown(shop, open(shop, sale, named, createClaim()), known)
    }
    const presented = present(sale, shop)
    const isClear = presented.alternatives.length === 0
    const presentation = isClear ? presented : await chooseAlternative(settlement, presented)
    named = presentation
    const response = await spend(shop, sale, presentation)
    const legacy = legacyResponse(sale.presented, response.headers.get('payment-response'))
    if (legacy !== undefined) response.headers.set('x-payment-response', legacy)
    return response
  } catch (error) {
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
  for (const { transfer, asset, refusal } of [presentation, ...presentation.alternatives]) {
    const candidate = { ...presentation, transfer, asset, refusal }
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
  // Clients correct their voucher by the 402 only where it has no `PAYMENT-RESPONSE`.
  const isCorrective = problem.members.channel !== undefined
  if (presented.kind === 'x402' && isCorrective) presented.isCorrected = true
  const headers =
    presented.kind === 'x402' && !isCorrective && problem.headers['payment-response'] === undefined
      ? failureHeaders(problem, named?.transfer ?? failingOf(presented.value, item.offers))
      : {}
  if (problem.status === 402) {
    return product.challenge(sale, { digest, refusal: { problem, headers } })
  }
  const all: Readonly<Record<string, string>> = { ...problem.headers, ...headers }
  const legacy = legacyResponse(presented, all['payment-response'])
  throw Problem.withHeaders(
    problem,
    legacy ? { ...headers, 'x-payment-response': legacy } : headers,
  )
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

function open<P extends Named>(
  { product }: Shop,
  sale: Sale,
  presentation: P,
  claim: RequestClaim,
): Checkout & { presentation: P } {
  return {
    sale,
    by: 'credential',
    presentation,
    fingerprint: product.fingerprintOf(sale, presentation.transfer),
    key: idempotencyKey(sale.headers, presentation.identifier),
    claim,
  }
}

/** A checkout by a credential, whose money is known. */
type Returning = Checkout & { presentation: Named }
/** A checkout by a credential that pays an offer. */
type Paying = Checkout & { presentation: Presentation }

async function spend(shop: Shop, sale: Sale, presentation: Presentation): Promise<Response> {
  const { transfer } = presentation
  if (isPresented(transfer)) return spendVoucher(shop, sale, { ...presentation, transfer })
  // Another request that waited for the same claim may have taken it first.
  while (otherClaim(shop, transfer) !== undefined) {
    const known = await findReleased(shop, transfer)
    if (known !== undefined) {
      return resumeKnown(shop, open(shop, sale, presentation, createClaim()), known)
    }
  }
  const claim = claimNow(shop, transfer)
  try {
    const checkout = open(shop, sale, presentation, claim)
    // Read under the claim: an earlier read may be outdated.
    const known = await shop.settlement.find(transfer)
    if (known !== undefined) return await resumeKnown(shop, checkout, known)
    const authorized = transfer.upto && (await shop.settlement.authorizations.find(transfer))
    if (authorized !== undefined) return await resumeAuthorized(shop, checkout, authorized)
    return await pay(shop, checkout)
  } catch (error) {
    claim.release()
    throw error
  }
}

/**
 * Pays by a channel, which has one request at a time. The signature is checked first, so that no stranger
 * takes the turn of a channel.
 */
async function spendVoucher(
  shop: Shop,
  sale: Sale,
  presentation: Presentation & { transfer: Presented },
): Promise<Response> {
  const { claims, settlement } = shop
  const { transfer } = presentation
  const { channelId, kind } = transfer.voucher
  assertVoucher(presentation, sale)
  const endTurn = await settlement.channels.takeTurn(channelId)
  const correct = async (detail: string) =>
    Denial.unpaid(await settlement.channels.outOfStep(channelId, detail))
  if (endTurn === undefined) {
    // A correction would have the buyer pay twice for a request whose answer is being made.
    const known = await settlement.channels.findCharged(transfer)
    const fingerprint = shop.product.fingerprintOf(sale, transfer)
    const isUnderWay = known?.purpose.fingerprint === fingerprint && known.delivery !== 'delivered'
    throw isUnderWay ? Denial.inProgress() : await correct(busyDetail)
  }
  const claim = kind === 'refund' ? createClaim() : claimMoney(claims, transfer)
  // What it paid for is still being delivered.
  if (claim === undefined) {
    endTurn()
    throw await correct(usedDetail)
  }
  claim.add(endTurn)
  try {
    if (kind === 'refund') return await refundChannel(shop, sale, transfer).finally(claim.release)
    const checkout = { ...open(shop, sale, presentation, claim), endTurn }
    const known = await settlement.channels.findCharged(transfer)
    if (known === undefined) return await pay(shop, checkout)
    return await resumeKnown(shop, checkout, known)
  } catch (error) {
    claim.release()
    throw isUsed(error) ? await correct(usedDetail) : error
  }
}

/** Pays back what a channel has left. */
async function refundChannel(
  { product, settlement }: Shop,
  sale: Sale,
  transfer: Presented,
): Promise<Response> {
  const refunded = await settlement.channels.refund(transfer, { waitMs: product.waitMs(sale) })
  if (refunded.kind !== 'refunded') throw Denial.unpaid(refunded)
  const { transaction, amountAtomic, channel } = refunded
  const { id: channelId, network } = channel
  const amount = Amount.toDecimal(amountAtomic, 6)
  const refund = { channelId, network, transaction, amount, amountAtomic: String(amountAtomic) }
  return Response.json({ refund }, { headers: refundHeaders(refunded) })
}

const usedDetail = 'The voucher has paid for a request: sign one above what was charged.'

/** Whether money was found to have paid for something else, or for what was delivered. */
function isUsed(error: unknown): boolean {
  if (!(error instanceof Problem.ProblemError)) return false
  const { code } = error
  return code === 'invalid-challenge' || code === 'payment-mismatch' || code === 'redeem-exhausted'
}

/**
 * Throws ProblemError unless its key signed a voucher. The payer of a channel whose vouchers another key
 * signs is proven by nothing here: every account may pay a deposit into it. So it gets no key and no
 * entitlement of the payer.
 */
function assertVoucher(
  { transfer, isKeySigned, asset, identifier }: Presentation & { transfer: Presented },
  { item, headers }: Sale,
): void {
  if (!isKeySigned()) {
    const detail = Explanation.otherSigner(transfer, asset.eip712)
    throw Denial.verificationFailed(signatureCodes[transfer.method], detail)
  }
  if (signerOf(transfer) === transfer.payer || transfer.voucher.kind === 'refund') return
  if (item.again !== undefined || item.opens !== undefined) {
    const reason = 'invalid_batch_settlement_evm_authorizer_address_mismatch'
    const detail = 'What is bought here belongs to the payer: payerAuthorizer must be the payer.'
    throw Denial.verificationFailed(reason, detail)
  }
  if (idempotencyKey(headers, identifier) !== undefined)
    throw badKey(
      'Idempotency-Key needs a channel whose payerAuthorizer is the payer: leave it out.',
    )
}

async function pay(shop: Shop, checkout: Paying): Promise<Response> {
  const { key, presentation } = checkout
  const forged = shop.product.isCostly?.(checkout.sale)
    ? await refusalOfForged(shop, presentation)
    : undefined
  if (forged !== undefined) return conclude(shop, checkout, forged)
  // Without a key, the ceiling goes to a node first, and the body is examined during that call.
  if (presentation.transfer.upto === undefined || key !== undefined) {
    assertSellable(shop, checkout)
  }
  const taken =
    key === undefined
      ? { outcome: await settle(shop, checkout) }
      : await reserve(shop, checkout, key)
  if ('previous' in taken) return repeat(shop, checkout, taken.previous)
  const known = await findSince(shop, presentation, taken.outcome)
  if (known) return resumeKnown(shop, checkout, known)
  try {
    return await conclude(shop, checkout, taken.outcome)
  } catch (error) {
    throw withToken(shop, checkout, { outcome: taken.outcome, error })
  }
}

/**
 * Adds a token to the problem of a payment that this request made and that its credential alone does
 * not continue. Only here: any other request with that credential may be that of a reader of the chain.
 */
function withToken(
  { challengeSecrets }: Shop,
  checkout: Paying,
  { outcome, error }: { outcome: Outcome | Authorized; error: unknown },
): unknown {
  if (!(error instanceof Problem.ProblemError) || error.status === 402) return error
  const payment = 'payment' in outcome ? outcome.payment : undefined
  const { purpose = purposeOf(checkout) } = payment ?? {}
  if (payment === undefined || 'redeem' in error.members) return error
  if (mayContinue({ purpose, state: 'broadcast' }, checkout)) return error
  const [token] = continuationTokens(challengeSecrets, payment.id)
  const detail = `${error.detail} ${Denial.continueNext}`
  const members = { ...error.members, redeem: { token } }
  return new Problem.ProblemError({ ...error, detail, members, cause: error.cause })
}

/** Throws ProblemError when the request cannot be sold, or not for this price. May be called again. */
function assertSellable({ product }: Shop, { sale, presentation }: Paying): void {
  const fault = presentation.refusal()
  if (fault !== undefined) throw Problem.ofFault(fault, 'payment-expired')
  product.assertServable?.(sale)
}

/**
 * A nonce is used. Another gateway may have used it for the same credential. Then the buyer must
 * present that credential again, because a new one would pay twice. What it has charged by a voucher is
 * done: resolves with that payment.
 */
async function findSince(
  { settlement }: Shop,
  { transfer }: Presentation,
  outcome: Outcome | Authorized,
): Promise<Payment | undefined> {
  if (outcome.kind !== 'refused' || outcome.reason !== usedReason(transfer)) return undefined
  if (isPresented(transfer)) return settlement.channels.findCharged(transfer)
  const authorizations = transfer.upto && settlement.authorizations
  if ((await settlement.find(transfer)) ?? (await authorizations?.find(transfer)))
    throw Denial.inProgress()
  return undefined
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
  checkout: Paying,
  key: string,
): Promise<{ outcome: Outcome | Authorized } | { previous: Payment }> {
  const { settlement } = shop
  const { presentation } = checkout
  // Only the payer itself may read or reserve its key: otherwise any client could occupy it.
  const forged = await refusalOfForged(shop, presentation)
  if (forged !== undefined) return { outcome: forged }
  const { merchant, route } = checkout.sale.purpose
  const scope = { merchant, route, payer: presentation.transfer.payer, key }
  const reserved = scopeKey(scope)
  if (shop.keys.has(reserved)) throw Denial.inProgress()
  shop.keys.add(reserved)
  const free = () => void shop.keys.delete(reserved)
  let isHeld = false
  try {
    const previous = await settlement.findByIdempotencyKey(scope)
    if (previous !== undefined) return { previous }
    if (checkout.sale.item.isByUse && (await settlement.authorizations.findByIdempotencyKey(scope)))
      throw Denial.inProgress()
    const outcome = await settle(shop, checkout)
    // A voucher has no row before its charge by which a request of another channel finds the key.
    isHeld = outcome.kind === 'authorized' && presentation.transfer.voucher !== undefined
    return { outcome }
  } finally {
    if (isHeld) checkout.claim.add(free)
    else free()
  }
}

async function settle(shop: Shop, checkout: Paying): Promise<Outcome | Authorized> {
  const { product, settlement } = shop
  const { sale } = checkout
  const { transfer, approval, isKeySigned } = checkout.presentation
  try {
    if (transfer.upto ?? transfer.voucher) return await authorize(shop, checkout)
    const rows = await product.admit(checkout)
    const purpose = purposeOf(checkout)
    const waitMs = product.waitMs(sale)
    const request: PaymentRequest = {
      transfer,
      purpose,
      receivedAt: shop.now(),
      isKeySigned,
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
    if (outcome.kind === 'confirmed') countPaid(shop, { sale })
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
async function authorize(shop: Shop, checkout: Paying): Promise<Outcome | Authorized> {
  const { product, settlement } = shop
  const { sale } = checkout
  const { transfer, approval } = checkout.presentation
  let isAsserted = transfer.upto === undefined
  const assertOnce = () => {
    if (isAsserted) return
    isAsserted = true
    assertSellable(shop, checkout)
  }
  try {
    const rows = await product.admit(checkout)
    const purpose = purposeOf(checkout)
    const waitMs = product.waitMs(sale)
    const validUntil = shop.now() + (product.answerMs?.(sale) ?? 0)
    const client = sale.client
    const onAsked = () => {
      assertOnce()
      product.prepareByUse?.(checkout)
    }
    const attempt = () => {
      const own = { id: settlement.createId(), receivedAt: shop.now() }
      const { requestId } = sale
      const terms = { ...own, client, validUntil, onAsked, requestId, waitMs, rows }
      return settlement.authorizations.authorize(transfer, purpose, terms)
    }
    return approval === undefined
      ? await attempt()
      : await withApproval(shop, { transfer, approval, client, waitMs }, attempt)
  } finally {
    assertOnce()
  }
}

function purposeOf({ sale, presentation, fingerprint, key }: Paying): Purpose {
  const { protocol, challengeId, credentialHash, bound } = presentation
  const own = { protocol, challengeId, credentialHash, client: sale.clientKind, bound }
  return { ...sale.purpose, ...own, fingerprint, idempotencyKey: key }
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
async function resumeKnown(shop: Shop, checkout: Returning, payment: Payment): Promise<Response> {
  const { method } = checkout.presentation.transfer
  // A payer may use the nonce of a charge of its channel, which no other credential continues.
  if ((method === 'channel') !== (payment.transfer.method === 'channel'))
    throw Denial.spent(checkout.presentation.transfer)
  assertSigned(checkout.presentation, payment.transfer)
  return proceed(shop, checkout, payment)
}

/** A credential of a known authorization: only a charge whose answer is lost is continued. */
async function resumeAuthorized(
  shop: Shop,
  checkout: Returning,
  authorization: Authorization,
): Promise<Response> {
  const { product, settlement } = shop
  const { purpose, transfer, delivered } = authorization
  assertSigned(checkout.presentation, transfer)
  if (authorization.state === 'authorized') throw Denial.inProgress()
  // Another gateway has settled the charge since this process read its payment.
  const settled = authorization.state === 'sent' && (await settlement.find(transfer))
  if (settled) return resumeKnown(shop, checkout, settled)
  if (authorization.state !== 'metered' || delivered !== undefined) throw Denial.spent(transfer)
  if (purpose.fingerprint !== checkout.fingerprint) throw Denial.otherRequest(transfer)
  assertContinues({ purpose, state: 'broadcast' }, checkout)
  const options = waitOf(shop, checkout)
  const outcome = await settlement.authorizations.settleCharge(authorization, options)
  if (outcome.kind === 'confirmed') {
    countPaid(shop, checkout)
    await product.readmit(checkout, outcome.payment)
  }
  return conclude(shop, checkout, outcome)
}

/** Continues the payment of a redeem token, or fetches its answer again. Throws ProblemError. */
export async function redeem<S extends Sale>(
  shop: Shop<S>,
  sale: S,
  token: string,
): Promise<Response> {
  const payment = await findByToken(shop, token)
  if (payment === undefined)
    throw Problem.of(
      'invalid-redeem-token',
      'Payment-Redeem is not a token of this service: send redeem.token of the failed answer.',
    )
  const isDelivered = payment.delivery === 'delivered'
  const again = isDelivered ? await shop.product.again?.(sale, payment) : undefined
  return again ?? continuePayment(shop, sale, payment)
}

/** Continues a payment for its buyer. Throws ProblemError. */
export async function continuePayment<S extends Sale>(
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
    // A payment that was pending did not arrive: the buyer needs fresh offers.
    return refuseUnpaid(shop, sale, error)
  }
}

/** Fresh offers for a request that presents no money, where its problem is a 402. Throws others. */
export function refuseUnpaid<S extends Sale>(shop: Shop<S>, sale: S, error: unknown): Response {
  if (!(error instanceof Problem.ProblemError) || error.status !== 402) throw error
  return refuse(shop, sale, undefined, error)
}

/**
 * Continues a known payment: repeats its answer where that is stored for the buyer's key, which may
 * have been lost on its way, or drives the payment on from any state.
 */
async function proceed(shop: Shop, checkout: Checkout, payment: Payment): Promise<Response> {
  const { product, settlement } = shop
  const replay = await product.replay?.(checkout, payment)
  if (replay !== undefined) {
    checkout.claim.release()
    return replay
  }
  await product.readmit(checkout, payment)
  if (payment.state === 'confirmed') return conclude(shop, checkout, { kind: 'confirmed', payment })
  const options = waitOf(shop, checkout)
  const outcome = await settlement.resume(payment, payment.transfer, options)
  if (outcome.kind === 'confirmed') countPaid(shop, checkout)
  return conclude(shop, checkout, outcome)
}

function waitOf({ product }: Shop, { sale }: Checkout) {
  return { waitMs: product.waitMs(sale), requestId: sale.requestId }
}

function countPaid({ tally }: Pick<Shop, 'tally'>, { sale }: Pick<Checkout, 'sale'>): void {
  tally.of(sale.item, sale.clientKind).paid++
}

async function conclude(
  shop: Shop,
  checkout: Checkout,
  outcome: Outcome | Authorized,
): Promise<Response> {
  const { product, log } = shop
  if (outcome.kind === 'confirmed') return product.fulfil(checkout, outcome)
  if (outcome.kind === 'authorized' && product.fulfilByUse) {
    const response = await product.fulfilByUse(checkout, outcome.authorization)
    countPaid(shop, checkout)
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

/**
 * Whether a request may wait for a payment, fetch its answer or use its claim. The calldata of an
 * x402 payment contains payer, nonce and signature, so a reader of the chain can rebuild an
 * equivalent credential. Therefore only the bytes that started the payment continue it, or the key
 * reserved with it. Payments without stored bytes continue only with an mppx nonce. That commits to
 * a random value of the buyer that the chain does not have. An MPP credential always continues: it
 * contains the id of its challenge, and the chain has only a hash of that id.
 */
function mayContinue(
  { purpose, state }: Pick<Payment, 'purpose' | 'state'>,
  { presentation, key }: Pick<Checkout, 'presentation' | 'key'>,
): boolean {
  // An expired payment has no answer that another client could take.
  if (state === 'expired' || purpose.protocol === 'mpp') return true
  if (key !== undefined && key === purpose.idempotencyKey) return true
  if (purpose.credentialHash === undefined) return presentation.bound
  return presentation.credentialHash === purpose.credentialHash
}

/** Throws ProblemError 409 where a request may not continue a payment. */
export function assertContinues(
  payment: Pick<Payment, 'purpose' | 'state'>,
  shown: Pick<Checkout, 'presentation' | 'key'>,
): void {
  if (!mayContinue(payment, shown)) throw Denial.otherCredential()
}

/** The money that requests of this process have claimed, by its key. */
export type Claims = Map<string, RequestClaim>

export type RequestClaim = ReturnType<typeof createClaim>

/** The claim of one request while it pays: its money, and what is released with it. */
export function createClaim(waiting?: object) {
  let frees: (() => void)[] | undefined = []
  return {
    /** The product whose other requests wait for the release; undefined where they are refused. */
    waiting,
    /** Adds what ends with the claim. `free` is called at once if the claim has ended. */
    add(free: () => void): void {
      if (frees === undefined) free()
      else frees.push(free)
    },
    /** Releases everything, once, in the order in which it was added. */
    release(): void {
      const all = frees ?? []
      frees = undefined
      for (const free of all) free()
    },
  }
}

/** Claims money for one request of any product. Undefined while another request has claimed it. */
export function claimMoney(
  claims: Claims,
  money: Money,
  waiting?: object,
): RequestClaim | undefined {
  const key = moneyKey(money)
  if (claims.has(key)) return undefined
  const claim = createClaim(waiting)
  claims.set(key, claim)
  claim.add(() => claims.delete(key))
  return claim
}

/** The scope of a buyer's own key, as a key for maps. No part of it contains a line feed. */
export function scopeKey({ merchant, route, payer, key }: KeyScope): string {
  return `${merchant}\n${route}\n${payer}\n${key}`
}
