import type { Charge } from '../../../db/Authorization'
import type { Payment, Protocol } from '../../../db/Payment'
import type { Refund } from '../../../db/Refund'
import * as Crypto from '../../protocol/Crypto'
import { type Code, of, type ProblemError } from '../../protocol/Problem'
import { dayMs } from '../../protocol/Time'
import * as Refunds from '../../refunds/Refund'
import type { Delivered } from '../../settlement/send/delivery'
import type { Settlement } from '../../settlement/settlement'
import { failureHeaders, transactionOf } from './receipts'

/** Problems for buyers of answers that were not delivered, and their redeem tokens. */

/** First forward and five redemptions. */
export const attemptsMax = 6
/** Attempts in which an answer by use is made again without credit. */
export const remadeMax = 2
/** Most attempts where a crash of ours ended the last one: the buyer did not cause it. */
export const cutAttemptsMax = 12

/**
 * Whether a paid answer may not be fetched again. Call it while no delivery of the payment is
 * running: then `delivering` means that the process stopped in the last attempt.
 */
export function isExhausted({
  delivery,
  attempts,
}: Pick<Payment, 'delivery' | 'attempts'>): boolean {
  return attempts >= (delivery === 'delivering' ? cutAttemptsMax : attemptsMax)
}

export type Undelivered = {
  delivered: false
  /** Status of the upstream, if it answered. */
  upstreamStatus: number | undefined
  code: Extract<Code, 'upstream-unreachable' | 'upstream-failed' | 'upstream-timeout'>
  detail: string
  /** What it costs by `upto` all the same. */
  cost?: (Charge & { by: string }) | undefined
}

/** Tokens that show the receipt of a payment, and redeem nothing: one of each secret. */
export function receiptTokens(secrets: readonly Uint8Array[], paymentId: string): string[] {
  return secrets.map((secret) =>
    new Bun.CryptoHasher('sha256', secret).update(`receipt|${paymentId}`).digest('base64url'),
  )
}

/**
 * Tokens that continue a payment whose credential alone does not, before an answer has failed, and that
 * fetch an answer again where the route permits it: one of each secret. They contain the id, so that
 * no further write is needed.
 */
export function continuationTokens(secrets: readonly Uint8Array[], paymentId: string): string[] {
  return secrets.map((secret) => {
    const hash = new Bun.CryptoHasher('sha256', secret).update(`continue|${paymentId}`)
    return `${paymentId}.${hash.digest('base64url')}`
  })
}

/** The payment of a token of either kind; undefined: it is none of ours. */
export async function findByToken(
  options: {
    settlement: Pick<Settlement, 'findById' | 'findByRedeemToken'>
    challengeSecrets: readonly Uint8Array[]
  },
  token: string,
): Promise<Payment | undefined> {
  const { settlement, challengeSecrets } = options
  const [id = '', mac] = token.split('.')
  if (mac === undefined) return settlement.findByRedeemToken(Crypto.sha256(token))
  const own = continuationTokens(challengeSecrets, id)
  return own.some((each) => Crypto.equal(each, token)) ? settlement.findById(id) : undefined
}

/** The instruction for a buyer whose answer failed. */
const redeemNext = 'Send the same request with redeem.token as Payment-Redeem; do not pay again.'

/**
 * Tokens that redeem payments, derived from `secret`; `now` is unix ms. `isRefunded`: whether the money
 * of a payment is sent back by itself when its answer is never fetched.
 */
export function createRedeeming(
  secret: Uint8Array,
  now: () => number,
  isRefunded: (payment: Payment) => boolean = () => false,
) {
  /** The same for all attempts of a payment, so that a lost answer does not lose the token. */
  const tokenOf = (paymentId: string): string =>
    new Bun.CryptoHasher('sha256', secret).update(`redeem|${paymentId}`).digest('base64url')
  const untilOf = (payment: Payment): number => payment.redeemUntil ?? now() + dayMs

  return {
    /** Unix ms until which a payment may be redeemed. */
    untilOf,
    undelivered: (payment: Payment, upstreamStatus: number | undefined): Delivered => ({
      delivered: false,
      upstreamStatus,
      redeemTokenHash: Crypto.sha256(tokenOf(payment.id)),
      redeemUntil: untilOf(payment),
    }),
    /** The problem of a failed delivery, with the redeem token. */
    problem(payment: Payment, fulfilled: Undelivered, protocol: Protocol): ProblemError {
      const { code, upstreamStatus } = fulfilled
      const { transfer, attempts } = payment
      const transaction = transactionOf(payment)
      const failure = { code, members: { reason: 'delivery_failed', transaction } }
      const until = new Date(untilOf(payment)).toISOString()
      const isBack = isRefunded(payment)
      const back = isBack ? ` If you do not fetch it by ${until}, the money is sent back.` : ''
      return of(code, `${fulfilled.detail} ${redeemNext}${back}`, {
        ...(protocol === 'x402' ? { headers: failureHeaders(failure, transfer) } : {}),
        members: {
          transaction,
          network: transfer.network,
          ...(upstreamStatus === undefined ? {} : { upstreamStatus }),
          redeem: {
            token: tokenOf(payment.id),
            until,
            attempts: Math.max(0, attemptsMax - attempts),
          },
          // `GET /api/payments/{payment}` with the token shows the refund.
          ...(isBack && {
            refund: {
              after: until,
              payment: payment.id,
              token: receiptTokens([secret], payment.id)[0],
            },
          }),
        },
      })
    },
  }
}

/** An answer that ended too early and of which the buyer got nothing. */
export function brokenOff(upstreamStatus: number): Undelivered {
  const detail = 'The upstream broke its answer off.'
  return { delivered: false, upstreamStatus, code: 'upstream-failed', detail }
}

/** The buyer has left and cannot read this: the payment stays undelivered and can be continued. */
export function left(): ProblemError {
  return of('payment-in-progress', 'The buyer has left.')
}

/** The problem of a payment that cannot be redeemed; it has the refund, where there is one. */
export function gone(payment: Payment, detail: string, refund?: Refund): ProblemError {
  const transaction = transactionOf(payment)
  const { transfer } = payment
  const found = refund && Refunds.toJson(refund)
  const back =
    found?.status === 'refunded'
      ? `This payment was refunded: ${found.amount} went back to the payer.`
      : `This payment is to be refunded: ${found?.amount} go back to the payer.`
  return of('redeem-exhausted', found ? back : detail, {
    members: { transaction, network: transfer.network, ...(found && { refund: found }) },
  })
}
