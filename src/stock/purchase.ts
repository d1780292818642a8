import type { Address } from 'viem'
import type { NetworkConfig, Stock } from '../config/Config'
import { mayContinue } from '../paywall/continuation'
import { isProvenIn, type Named, type Presentation, peek, present } from '../paywall/credential'
import * as Denial from '../paywall/Denial'
import type { Presented } from '../paywall/extract'
import type { Item } from '../paywall/Item'
import { idempotencyKey } from '../paywall/idempotency'
import type { Quoter } from '../paywall/quote'
import { failingOf, failureHeaders } from '../paywall/receipts'
import * as Amount from '../protocol/Amount'
import * as Problem from '../protocol/Problem'
import { moneyKey, type Transfer } from '../protocol/Transfer'
import type { Outcome, Payment, Protocol, Purpose } from '../settlement/Payment'
import type { ApprovalSponsor } from '../settlement/Sponsorship'
import type { Settlement } from '../settlement/settle'
import { settleSponsored } from '../settlement/sponsored'
import * as Agreement from './Agreement'
import { createAdmission } from './admission'
import type { Desk } from './desk'
import * as Instrument from './Instrument'
import { createItems } from './items'
import type { Market } from './market'
import { quoteOf } from './market-routes'
import type { Order } from './Order'
import * as Orders from './Order'
import { buyPath, type OrderResponse } from './order-response'

/** A request to `POST /api/stock/buy`. */
export type Visit = {
  terms: Instrument.Terms
  /** Absolute, with its query, as it was asked for. */
  url: string
  headers: Headers
  presented: Presented
  requestId: string
}

export type PurchaseOptions = {
  desk: Desk
  /** For unpaid requests, which may share a look. */
  market: Market
  /** For paid ones: nobody's free requests stand before them. */
  paidMarket: Market
  settlement: Settlement
  quoter: Quoter
  stock: Stock
  network: NetworkConfig
  /** Accounts of this service, which receive nothing. */
  own: readonly Address[]
  /** Absolute, without a trailing slash. */
  baseUrl: string
  challengeSecrets: readonly Uint8Array[]
  realm: string
  orderResponse: OrderResponse
  /** Refunds that a payer may have in an hour. */
  refundsMax?: number | undefined
  /** Sends approves that payers have signed; undefined when nobody does. */
  sponsor: ApprovalSponsor | undefined
  /** Longest wait of a buyer, for settlement and swap together. */
  waitMs: () => number
  now: () => number
}

export type Purchase = {
  /** The 402, the order's end, or how far it is. Throws ProblemError. */
  buy(visit: Visit): Promise<Response>
  /** Buyers who wait. */
  inFlight(): number
}

/** Takes orders: checks everything before money moves, and answers with what became of it. */
export function createPurchase(options: PurchaseOptions): Purchase {
  const { desk, settlement, stock, network, orderResponse, now } = options
  const { asset } = network
  const items = createItems({ network, payTo: desk.address, baseUrl: options.baseUrl })
  const admission = createAdmission(options)
  /** Credentials that are being settled, so that the same one at the same time waits for its order. */
  const settling = new Map<string, Promise<unknown>>()
  const reservations = new Set<string>()
  let active = 0

  return {
    inFlight: () => active,
    async buy(visit) {
      active++
      try {
        return await (visit.presented.kind === 'none' ? ask(visit) : pay(visit))
      } finally {
        active--
      }
    },
  }

  /** The 402 with its quote; what would be refused after payment is refused now. */
  async function ask(visit: Visit): Promise<Response> {
    const { terms } = visit
    const { recipient } = terms
    if (recipient !== undefined) admission.assertRecipient(recipient)
    admission.assertReady()
    const { market } = options
    const { look, floorAtomic } = await admission.look(market, terms, { recipient, fresh: false })
    const minimum = {
      minimumShares: Amount.toDecimal(floorAtomic, Instrument.shareDecimals),
      minimumSharesAtomic: String(floorAtomic),
    }
    const quote = { ...quoteOf(look, market, asset), ...minimum }
    return challenge(visit, { members: { quote } })
  }

  function challenge(visit: Visit, details: Parameters<Quoter['challenge']>[3]): Response {
    const item = itemOf(visit)
    const response = options.quoter.challenge(item, visit.url, visit.requestId, details)
    if (response === undefined) throw Denial.noNetwork(options.quoter.whyNone(item))
    return response
  }

  function itemOf({ terms }: Visit): Item {
    return items.of(terms, Instrument.totalOf(stock, terms.usdgAtomic))
  }

  async function pay(visit: Visit): Promise<Response> {
    const { presented } = visit
    if (presented.kind === 'redeem') {
      throw Problem.of('invalid-redeem-token', 'Orders are not redeemed: look at the order.')
    }
    const deadline = now() + options.waitMs()
    const named = peek(presented, network)
    try {
      // Money that is known is its order's, before anything else is said about the request.
      const known = await find(named?.transfer)
      if (known !== undefined) return await join(visit, named, known, deadline)
      const presentation = present(presented, {
        ...options,
        ...visit,
        item: itemOf(visit),
        digest: undefined,
        takesApprovals: options.sponsor !== undefined,
      })
      return await payNow(visit, presentation, deadline)
    } catch (error) {
      if (!(error instanceof Problem.ProblemError)) throw error
      const isTold = error.headers['payment-response'] !== undefined
      const failing = named?.transfer ?? failingOf(presented, [{ network }])
      const headers = presented.kind === 'x402' && !isTold ? failureHeaders(error, failing) : {}
      if (error.status === 402) return challenge(visit, { refusal: { problem: error, headers } })
      throw Problem.withHeaders(error, headers)
    }
  }

  /** The payment of this money; one that is being settled is waited for. */
  async function find(transfer: Transfer | undefined): Promise<Payment | undefined> {
    if (transfer === undefined) return undefined
    const known = settlement.find(transfer)
    if (known !== undefined) return known
    await settling.get(moneyKey(transfer))
    return settlement.find(transfer)
  }

  /** Comes back to an order: the same request finds it, another one is refused. */
  async function join(
    visit: Visit,
    named: Named | undefined,
    payment: Payment,
    deadline: number,
  ): Promise<Response> {
    const order = desk.findByPayment(payment.id)
    if (order === undefined || payment.purpose.product !== 'desk') {
      throw Denial.mismatch('The credential has paid for something else.')
    }
    const { protocol, fingerprint: paidFor } = payment.purpose
    if (paidFor !== Agreement.fingerprintOf(visit.terms, payment.transfer.payer)) {
      throw Denial.mismatch('The credential has paid for another order.')
    }
    if (visit.presented.kind !== protocol) {
      throw Denial.mismatch('The credential has paid in the other protocol.')
    }
    const isPayers =
      named !== undefined &&
      (named.transfer.signature === payment.transfer.signature || isProvenIn(named.transfer, asset))
    if (!isPayers) {
      const reason = payment.transfer.method === 'permit2' ? 'invalid_permit2' : 'invalid_exact_evm'
      throw Denial.verificationFailed(`${reason}_signature`, 'The signature is not of the payer.')
    }
    const { credentialHash, identifier } = named
    const key = idempotencyKey(visit.headers, identifier)
    if (!mayContinue(payment, { credentialHash, bound: false, key })) {
      throw Denial.otherCredential()
    }
    return pursue(visit, payment, order, deadline)
  }

  async function pursue(
    visit: Visit,
    payment: Payment,
    order: Order,
    deadline: number,
  ): Promise<Response> {
    const outcome: Outcome =
      payment.state === 'confirmed'
        ? { kind: 'confirmed', payment }
        : await settlement.resume(payment, payment.transfer, {
            waitMs: Math.max(0, deadline - now()),
            requestId: visit.requestId,
          })
    return conclude(order.id, payment.purpose.protocol, outcome, deadline)
  }

  async function payNow(
    visit: Visit,
    presentation: Presentation,
    deadline: number,
  ): Promise<Response> {
    const { transfer } = presentation
    if (presentation.window !== undefined) {
      throw Problem.ofFault(presentation.window, 'payment-expired')
    }
    const key = idempotencyKey(visit.headers, presentation.identifier)
    const money = moneyKey(transfer)
    if (settling.has(money)) {
      const known = await find(transfer)
      if (known !== undefined) return join(visit, presentation, known, deadline)
    }
    const claim = settling.has(money) ? undefined : settlement.claim(transfer)
    if (claim === undefined) throw Denial.inProgress()
    const work = reserve(visit, presentation, key, () =>
      take(visit, presentation, key, deadline),
    ).finally(() => {
      settling.delete(money)
      claim.release()
    })
    settling.set(
      money,
      work.catch(() => undefined),
    )
    const taken = await work
    if ('payment' in taken) return pursueEarlier(visit, taken.payment, deadline)
    const { orderId, outcome } = taken
    return conclude(orderId, presentation.protocol, outcome, deadline)
  }

  type Taken = { orderId: string; outcome: Outcome } | { payment: Payment }

  /** Runs `go` unless the buyer's own key has bought something already. */
  async function reserve(
    visit: Visit,
    presentation: Presentation,
    key: string | undefined,
    go: () => Promise<Taken>,
  ): Promise<Taken> {
    if (key === undefined) return go()
    const { transfer } = presentation
    const { payer } = transfer
    // Only the payer itself may find or hold its key.
    if (!presentation.isProven()) {
      const verdict = await settlement.verify(transfer)
      if (!('ok' in verdict) && verdict.kind !== 'confirmed') {
        throw Denial.unpaid(verdict, transfer.network)
      }
    }
    const scope = `${payer}\n${key}`
    if (reservations.has(scope)) throw Denial.inProgress()
    reservations.add(scope)
    try {
      const payment = settlement.findByIdempotencyKey({
        merchant: '',
        route: buyPath,
        payer,
        key,
      })
      if (payment === undefined) return await go()
      if (payment.purpose.fingerprint !== Agreement.fingerprintOf(visit.terms, payer)) {
        throw Denial.keyConflict('was used for another order')
      }
      return { payment }
    } finally {
      reservations.delete(scope)
    }
  }

  /** The credential just presented stays unspent: the earlier one paid. */
  async function pursueEarlier(
    visit: Visit,
    payment: Payment,
    deadline: number,
  ): Promise<Response> {
    const order = desk.findByPayment(payment.id)
    if (order === undefined) throw new Error(`payment ${payment.id} has no order`)
    const response = await pursue(visit, payment, order, deadline)
    response.headers.set('idempotency-replayed', 'true')
    return response
  }

  /** Everything that must hold before money moves; then payment and order in one write. */
  async function take(
    visit: Visit,
    presentation: Presentation,
    key: string | undefined,
    deadline: number,
  ): Promise<{ orderId: string; outcome: Outcome }> {
    const { terms } = visit
    const { transfer, protocol } = presentation
    const recipient = terms.recipient ?? transfer.payer
    admission.assertRecipient(recipient)
    admission.assertRecipient(transfer.payer)
    admission.assertRefundQuota(transfer.payer)
    admission.assertReady()
    const market = options.paidMarket
    const admitted = await admission.look(market, terms, { recipient, fresh: true })
    const purpose: Purpose = {
      product: 'desk',
      protocol,
      merchant: '',
      route: buyPath,
      fingerprint: Agreement.fingerprintOf(terms, transfer.payer),
      resource: `${options.baseUrl}${buyPath}`,
      idempotencyKey: key,
      challengeId: presentation.challengeId,
      credentialHash: presentation.credentialHash,
      bound: presentation.bound,
    }
    admission.assertOpenOrderQuota(transfer.payer, terms)
    const id = Orders.newId(now(), crypto.getRandomValues(new Uint8Array(10)))
    const outcome = await settleSponsored(options, transfer, presentation.approval, purpose, {
      waitMs: Math.max(0, deadline - now()),
      receivedAt: now(),
      proven: presentation.isProven,
      requestId: visit.requestId,
      write(paymentId) {
        // Again: only here it is the payer's own, whatever others have shown in its name.
        admission.assertOpenOrderQuota(transfer.payer, terms)
        const payment = settlement.findById(paymentId)
        if (payment === undefined) throw new Error(`payment ${paymentId} is not written`)
        const agreed = { ...terms, ...admitted, recipient, network: network.id }
        desk.insert(Agreement.orderOf(id, payment, agreed, now()))
      },
    })
    return { orderId: id, outcome }
  }

  async function conclude(
    orderId: string,
    protocol: Protocol,
    outcome: Outcome,
    deadline: number,
  ): Promise<Response> {
    if (outcome.kind === 'confirmed') {
      desk.drive(orderId)
      const order = await desk.wait(orderId, isOver, Math.max(0, deadline - now()))
      const payment = settlement.findById(order.paymentId) ?? outcome.payment
      return orderResponse.respond(order, payment, protocol)
    }
    const problem = Denial.unpaid(outcome, network.id)
    const order = desk.find(orderId)
    throw order === undefined || problem.status === 402
      ? problem
      : orderResponse.withOrder(problem, order)
  }
}

/** Nothing more will happen by itself. */
function isOver({ state }: Order): boolean {
  return state === 'delivered' || state === 'refunded' || state === 'failed' || state === 'held'
}
