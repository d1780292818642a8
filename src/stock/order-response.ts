import type { Order } from '../../db/Order'
import type { Payment, Protocol } from '../../db/Payment'
import {
  failureHeaders,
  type Issuer,
  signReceipt,
  successHeaders,
} from '../paywall/answer/receipts'
import * as Denial from '../paywall/Denial'
import * as Problem from '../protocol/Problem'
import * as Instrument from './Instrument'
import * as Orders from './Order'

/** Answers with the state of an order. */
export type OrderResponse = {
  /** The public fields of the order. */
  toJson(order: Order): Readonly<Record<string, unknown>>
  /**
   * The answer to the buyer: 200 when delivered, 202 while it is not decided. Throws ProblemError:
   * 502 with the refund, 503 while the payment is not confirmed, 402 when it never was.
   */
  respond(order: Order, payment: Payment, protocol: Protocol): Response
  /** Adds the state of the order to a problem. */
  withOrder(problem: Problem.ProblemError, order: Order): Problem.ProblemError
}

export type OrderResponseOptions = {
  /** Absolute, without a trailing slash. */
  baseUrl: string
  assetDecimals: number
  issuer: Issuer
  now: () => number
}

export const buyPath = '/api/stock/buy'
export const orderPath = '/api/stock/order'

export function createOrderResponse(options: OrderResponseOptions): OrderResponse {
  const { baseUrl, assetDecimals, issuer, now } = options
  const units = { assetDecimals, tokenDecimals: Instrument.shareDecimals }
  return { toJson, respond, withOrder }

  function toJson(order: Order): Readonly<Record<string, unknown>> {
    return Orders.toJson(order, units)
  }

  function respond(order: Order, payment: Payment, protocol: Protocol): Response {
    const { refundTx, state } = order
    if (refundTx !== undefined) throw undelivered(order, refundTx, payment, protocol)
    if (state === 'failed') {
      throw Denial.verificationFailed('settlement_failed', 'The transfer did not happen.')
    }
    // Sign no receipt for money that only one of two nodes shows.
    if (state === 'settling' || order.heldReason === 'settlement-disputed') {
      throw withOrder(Denial.unpaid({ kind: 'pending', payment }), order)
    }
    const isDelivered = state === 'delivered'
    const receipt = signReceipt(payment, issuer, now(), { order: order.id })
    const headers = {
      'cache-control': 'private, no-store',
      location: urlOf(order),
      ...(isDelivered ? {} : { 'retry-after': '2' }),
      ...successHeaders(payment, { protocol }, issuer, receipt),
    }
    return Response.json(toJson(order), { status: isDelivered ? 200 : 202, headers })
  }

  /** The refund is open or confirmed: the answer names its transaction. */
  function undelivered(
    order: Order,
    refundTx: string,
    payment: Payment,
    protocol: Protocol,
  ): Problem.ProblemError {
    const detail =
      order.state === 'refunded'
        ? 'The shares could not be delivered; the payment was refunded.'
        : 'The shares could not be delivered; the refund is not confirmed yet. Read orderUrl until it is.'
    const { transaction, transfer } = payment
    const failure = { code: 'delivery-failed', members: { reason: 'delivery_failed', transaction } }
    const headers = protocol === 'x402' ? failureHeaders(failure, transfer) : {}
    const members = { reason: order.refundReason, transaction, refundTx }
    return withOrder(Problem.of('delivery-failed', detail, { headers, members }), order)
  }

  /** RFC 9457 uses `status` itself, so the state of the order is `orderStatus`. */
  function withOrder(problem: Problem.ProblemError, order: Order): Problem.ProblemError {
    const members = {
      ...problem.members,
      orderStatus: order.state,
      orderUrl: urlOf(order),
      order: toJson(order),
    }
    return new Problem.ProblemError({ ...problem, members, cause: problem.cause })
  }

  function urlOf({ id }: Order): string {
    return `${baseUrl}${orderPath}/${id}`
  }
}
