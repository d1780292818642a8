import type { Rows } from '../../db/Ledger'
import type { Payment } from '../../db/Payment'
import * as Problem from '../protocol/Problem'
import type { Transfer } from '../protocol/Transfer'
import type { Reason } from '../settlement/send/Outcome'
import { chargeMs } from '../settlement/upto/ceilings'
import { answeredBy, createPaidDeliveries, type Deliveries } from './answer/delivery'
import { transactionOf } from './answer/receipts'
import { ownerOf } from './answer/store'
import { gone } from './answer/undelivered'
import {
  assertContinues,
  buy,
  type Checkout,
  type CheckoutOptions,
  continuePayment,
  type Product,
  type RequestClaim,
  redeem,
  refuseUnpaid,
  type Shop,
} from './checkout'
import { fingerprint } from './credential'
import * as Denial from './Denial'
import { passOf } from './entitlement/pass'
import { assertSameRequest, createUses, type Uses, type UsesOptions } from './entitlement/uses'
import type { GatewaySale } from './GatewaySale'
import { withoutUse } from './offer/Item'
import { createUsageDeliveries, type UsageDeliveries, type UsageOptions } from './usage/usage'

type PaywallOptions = CheckoutOptions & UsageOptions & UsesOptions

export type Paywall = ReturnType<typeof createPaywall>

/** Sells the merchants' resources: each payment buys one answer of the upstream. */
export function createPaywall(options: PaywallOptions) {
  const deliveries = createPaidDeliveries(options)
  const byUse = createUsageDeliveries(options, deliveries)
  const running = { requests: 0, deliveries: 0 }
  const reserve = (sale: GatewaySale, claim: RequestClaim) => {
    claim.add(sale.reserve())
    running.deliveries++
    claim.add(() => running.deliveries--)
  }
  const uses = createUses({
    ...options,
    deliveries,
    reserve,
    fingerprintOf: ({ method, path, search, digest }) =>
      fingerprint(method, path, search, { digest }),
    resume: (sale, payment) => continuePayment(shop, sale, payment),
  })
  const product = createGatewayProduct({ ...options, deliveries, byUse, uses, reserve })
  const shop: Shop<GatewaySale> = { ...options, product, keys: new Set() }
  const answerOf = (sale: GatewaySale): Promise<Response> => {
    const { presented } = sale
    if (presented.kind === 'redeem') return redeem(shop, sale, presented.token)
    if (presented.kind !== 'sign-in') return buy(shop, sale)
    return uses.bySignIn(sale).catch((error: unknown) => refuseUnpaid(shop, sale, error))
  }
  return {
    /** Running answers and settlements. */
    inFlight: () => running.requests + running.deliveries,
    /** Cancels what is still read for buyers that have left; resolves when that is recorded. */
    stop() {
      uses.stop()
      return deliveries.stop()
    },
    /** The 402 for a request without a credential. Throws ProblemError when nothing can settle. */
    ask: options.quoter,
    /** Sells to a request with a credential. Throws ProblemError. */
    serve(sale: GatewaySale): Promise<Response> {
      running.requests++
      return answerOf(sale).finally(() => running.requests--)
    },
  }
}

/** A longer body is checked for the payer only, which a forged credential does not prove to be. */
const costlyMinBytes = 16 * 1024

type Context = PaywallOptions & {
  deliveries: Deliveries
  byUse: UsageDeliveries
  uses: Uses
  /** Reserves a place at the upstream, until the claim is released. Throws ProblemError. */
  reserve(sale: GatewaySale, claim: RequestClaim): void
}

function createGatewayProduct(context: Context): Product<GatewaySale> {
  const { settlement, quoter, answers, receipts, now, deliveries, byUse, uses, reserve } = context
  return {
    challenge(sale, details) {
      const unavailable = sale.unavailable()
      // A 402 does not wait for the lookup.
      if (unavailable instanceof Problem.ProblemError) throw unavailable
      const { url, requestId, clientKind, presented } = sale
      const priced = sale.priced?.() ?? sale.item
      const { code, reason } = details.refusal?.problem ?? {}
      if (code === 'not-entitled' && presented.kind === 'sign-in') presented.isUnentitled ??= true
      // Another signature by use would be refused for the same reason.
      const item = reason !== undefined && exactOnly.has(reason) ? withoutUse(priced) : priced
      return quoter({ item, url, requestId, clientKind }, { ...details, signIn: signInOf(sale) })
    },
    fingerprintOf(sale, transfer) {
      const { method, path, search, digest } = sale
      const headers = isByUse(sale, transfer) ? sale.selecting() : undefined
      return fingerprint(method, path, search, { digest, headers })
    },
    waitMs: context.settleWaitMs,
    answerMs: ({ timeoutMs }) => timeoutMs + chargeMs,
    prepareByUse: ({ sale }) => sale.prepare(),
    fulfilByUse({ sale, claim, endTurn }, authorization) {
      const { opens } = sale.item
      // The answer of a pass needs its payment only for its time, which is now.
      const own = opens && { fulfil: async () => passOf(sale.item, opens, now()) }
      return byUse.deliver(own ? answeredBy(sale, own) : sale, authorization, {
        ...{ release: claim.release, endTurn },
        isFixed: !isByUse(sale, authorization.transfer),
      })
    },
    isCostly: ({ body }) => body.byteLength > costlyMinBytes,
    // Read them once, because each read parses the whole body.
    assertServable({ invalidParams }) {
      if (invalidParams.length > 0) throw Denial.invalidParameters(invalidParams)
    },
    again: uses.byToken,
    async replay({ sale, presentation, fingerprint, key }, payment) {
      const { purpose } = payment
      if (key === undefined || key !== purpose.idempotencyKey) return undefined
      if (purpose.fingerprint !== fingerprint) {
        throw Denial.keyConflict('was used for another request')
      }
      // The bytes of a charge are kept before it is confirmed, for `byUse.repeating`.
      const isHeld = isByUse(sale, payment.transfer) && payment.delivery !== 'delivered'
      if (isHeld) return undefined
      const stored = await answers.find(payment.id, now())
      const { search, isAgain } = sale
      return stored && deliveries.replay(stored, payment, { ...presentation, search, isAgain })
    },
    async readmit(checkout, payment) {
      await assertUndelivered(checkout, payment, deliveries)
      reserve(checkout.sale, checkout.claim)
    },
    // Reserves room for the answer of a key, and a place at the upstream.
    async admit(checkout) {
      const { sale, presentation, key, claim } = checkout
      const { transfer, bound } = presentation
      if (key !== undefined) {
        const free = await answers.reserve(ownerOf(transfer), now())
        if (free === undefined) throw Denial.storeFull()
        claim.add(free)
      }
      const state = sale.unavailable()
      // A voucher needs no node, as long as the withdrawals of its channel can be seen.
      const isReady = transfer.voucher !== undefined || settlement.isReady(transfer.network)
      const away = isReady ? undefined : Denial.networkAway()
      const unavailable = (state instanceof Promise ? await state : state) ?? away
      if (unavailable !== undefined) {
        if (bound) settlement.noteUnsettled(transfer)
        throw unavailable
      }
      reserve(sale, claim)
      return entitledBy(checkout)
    },
    settling: ({ sale, presentation: { transfer } }, purpose) => ({
      onSent: receipts.expecting(sale.search),
      // A payment that needs a second node is not delivered after one node confirms it.
      deliverOnConfirm: () =>
        !sale.signal.aborted && !settlement.needsSecond({ transfer, purpose }),
    }),
    async fulfil(checkout, outcome) {
      const { sale, presentation, claim } = checkout
      const { payment } = outcome
      if (settlement.needsSecond(payment) && !(await settlement.confirmTwice(payment))) {
        throw Denial.unpaid({ kind: 'pending', payment })
      }
      const { opens } = sale.item
      const own = opens && { fulfil: async () => passOf(sale.item, opens, now(), payment) }
      const given = own ? answeredBy(sale, own) : sale
      const isUsage = isByUse(sale, payment.transfer)
      const request = isUsage ? await byUse.repeating(sale, payment) : given
      return deliveries
        .deliver(request, outcome, presentation.protocol, claim.release)
        .catch((error: unknown) => explainGone(settlement, checkout, { payment, error }))
    },
  }
}

/** Whether an answer is charged by what it uses. */
function isByUse(
  { item }: GatewaySale,
  { upto, method }: Pick<Transfer, 'upto' | 'method'>,
): boolean {
  return upto !== undefined || (method === 'channel' && item.mostAtomic !== undefined)
}

/** The fingerprint of a request for which a wallet may sign in. */
function signInOf({ item, envelope, method, path, search, digest }: GatewaySale) {
  const mayIn = item.signIn !== undefined && envelope === undefined
  return mayIn ? fingerprint(method, path, search, { digest }) : undefined
}

/** What a payment gives besides its answer, or as its answer. */
function entitledBy({ sale, fingerprint }: Checkout<GatewaySale>): Rows | undefined {
  const { merchant, route, again, opens } = sale.item
  if (again !== undefined) {
    const { max: usesMax, forMs: periodMs } = again
    return { entitles: { kind: 'again', merchant, route, fingerprint, usesMax, periodMs } }
  }
  if (opens === undefined) return undefined
  const { requests: usesMax, periodMs } = opens
  const pass = { merchant, route: opens.route, fingerprint: undefined, usesMax, periodMs }
  return { entitles: { kind: 'pass', ...pass } }
}

/** Refusals of payers that may pay by `exact`. */
const exactOnly: ReadonlySet<string> = new Set<Reason>([
  'upto_credit_exceeded',
  'upto_losses_spent',
  'unsupported_scheme',
])

/**
 * Another gateway may have delivered the answer after this one had read the payment. The answer may
 * then be stored for the buyer's key, so this request gets 409, and the next one gets that answer.
 */
async function explainGone(
  settlement: Pick<CheckoutOptions['settlement'], 'findById'>,
  { key }: Pick<Checkout, 'key'>,
  { payment, error }: { payment: Payment; error: unknown },
): Promise<never> {
  const isKeyed = key !== undefined && key === payment.purpose.idempotencyKey
  const isGone = error instanceof Problem.ProblemError && error.code === 'redeem-exhausted'
  const current = isKeyed && isGone ? await settlement.findById(payment.id) : undefined
  throw current?.delivery === 'delivered' ? Denial.inProgress() : error
}

/** Checks that a payment is used once, and for the request that it was made for. */
async function assertUndelivered(
  { by, sale, presentation, fingerprint, key }: Checkout,
  payment: Payment,
  deliveries: Deliveries,
): Promise<void> {
  const { fingerprint: paidFor, protocol } = payment.purpose
  const { idempotencyKey: ownKey, credentialHash: paidBy } = payment.purpose
  switch (by) {
    case 'token':
      assertSameRequest(sale, payment, fingerprint)
      if (payment.delivery === 'delivered') throw gone(payment, 'This payment has been delivered.')
      return
    case 'key':
      if (payment.delivery === 'delivered') {
        throw Denial.keyConflict('has an answer that is no longer stored')
      }
      return
    case 'credential':
      if (payment.delivery === 'delivered')
        throw Denial.spent(payment.transfer, { transaction: transactionOf(payment) })
      // Not 402: the money has been sent or has arrived, and still pays for its own request.
      if (paidFor !== fingerprint || protocol !== presentation.protocol) {
        throw Denial.otherRequest(payment.transfer)
      }
      assertContinues(payment, { presentation, key })
      // The answer with the redeem token may have been lost. Key and credential together prove the
      // buyer, because the chain publishes neither of them whole.
      if (key !== undefined && key === ownKey && presentation.credentialHash === paidBy) return
      // The buyer got a redeem token, so the credential does not continue this payment.
      if (protocol === 'x402' && payment.attempts > 0 && (await deliveries.wasAnswered(payment))) {
        throw Denial.spent(payment.transfer, { transaction: transactionOf(payment) })
      }
  }
}
