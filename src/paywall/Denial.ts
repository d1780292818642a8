import type { Channel } from '../../db/Channel'
import type { Payment } from '../../db/Payment'
import * as Problem from '../protocol/Problem'
import { usedReason } from '../settlement/read/refusals'
import type { Outcome } from '../settlement/send/Outcome'
import * as ChannelState from './ChannelState'

const retry = { headers: { 'retry-after': '5' } }

/** No network of the route can settle, so nothing is charged. `why`: the end of the sentence. */
export function noNetwork(why: string): Problem.ProblemError {
  const detail = 'No network of this route can settle now'
  return Problem.of('not-ready', `${detail}: ${why}. Nothing is charged; try again later.`, retry)
}

/** The network of a credential cannot settle now; the credential is unspent. */
export function networkAway(): Problem.ProblemError {
  const detail = 'Its network cannot settle now; send the same credential again.'
  return Problem.of('not-ready', detail, retry)
}

/** 409: `fault` completes "Idempotency-Key ...". */
export function keyConflict(fault: string): Problem.ProblemError {
  return Problem.of('idempotency-conflict', `Idempotency-Key ${fault}: use another key.`, {
    members: { field: 'Idempotency-Key' },
  })
}

/** 409: another request has claimed the same money or the same key. */
export function inProgress(): Problem.ProblemError {
  const detail = 'This payment is being processed: send the same credential again.'
  return Problem.of('payment-in-progress', detail, { headers: { 'retry-after': '1' } })
}

/**
 * The money of the credential has already bought something; an authorization without a payment has a
 * charge of 0, or one that was never settled.
 */
export function spent(
  { method }: Payment['transfer'],
  members: { transaction?: string } = {},
): Problem.ProblemError {
  const detail = 'This credential has already been used: pay a fresh offer to buy again.'
  const reason = usedReason({ method })
  return Problem.of('invalid-challenge', detail, { members: { reason, ...members } })
}

/** 402 with the x402 reason. A used nonce is `invalid-challenge`. */
export function verificationFailed(reason: string, detail: string): Problem.ProblemError {
  const used =
    reason === 'invalid_exact_evm_nonce_already_used' || reason === 'permit2_invalid_nonce'
  return Problem.of(used ? 'invalid-challenge' : 'verification-failed', detail, {
    members: { reason },
  })
}

/** 402 with the state of a channel, by which its client corrects its voucher. */
function outOfStep(
  { reason, detail, isUnknown }: Extract<Outcome, { kind: 'refused' }>,
  row: Channel,
): Problem.ProblemError {
  const channel = ChannelState.correctionOf(row)
  const code = isUnknown ? 'channel-unknown' : 'verification-failed'
  return Problem.of(code, detail, { members: { reason, channel } })
}

/** 400 before any money moves; 404 when the only fault is that the parameters name nothing. */
export function invalidParameters(
  invalidParams: readonly { name: string; reason: string; status?: 404 }[],
): Problem.ProblemError {
  const names = invalidParams.map((param) => param.name).join(', ')
  const isUnknown = invalidParams.every((param) => param.status === 404)
  const detail = `Not servable: ${names}. The credential is unspent: correct them and send it again.`
  return Problem.of(isUnknown ? 'not-found' : 'invalid-parameter', detail, {
    members: { invalidParams },
  })
}

/** 402: the wallet has signed in, and has nothing to use here. */
export function notEntitled(reason: Unentitled, why: string = unentitled[reason]) {
  const detail = `${why}: pay one of the offers.`
  return Problem.of('not-entitled', detail, { members: { reason } })
}

export type Unentitled = keyof typeof unentitled

/** Why, by the reason. */
export const unentitled = {
  no_entitlement: 'This wallet has no pass, no trial and no earlier payment for this request',
  entitlement_spent: 'All that this wallet has here is used, or will be by requests in progress',
  trial_day_spent: 'The free answers of this route are used for this UTC day',
  trial_balance_too_low: 'The wallet holds too little of the asset for a trial',
  trial_balance_too_young: 'The wallet has not held the asset for long enough for a trial',
  trial_busy: 'Too many wallets begin a trial now, or from this address',
} as const

/**
 * The store of answers, or the payer's share of it, is full. Then a request with a key is not
 * charged.
 */
export function storeFull(): Problem.ProblemError {
  const detail =
    'There is no room to keep an answer for this key; nothing is charged. Try again later.'
  return Problem.of('not-ready', detail, retry)
}

/** No node tells what a wallet holds. */
export function unread(): Problem.ProblemError {
  return Problem.of('not-ready', 'No node answers for this wallet; nothing is counted.', retry)
}

/** The money was paid for another request. */
export function mismatch(detail: string): Problem.ProblemError {
  return Problem.of('payment-mismatch', detail)
}

/** The same of a credential: by use, some headers belong to the request. */
export function otherRequest({ upto }: Payment['transfer']): Problem.ProblemError {
  const own = 'The credential pays for another request: send that request again, with the same body'
  const headers = ', Accept, Accept-Language, Content-Language and Content-Type'
  return mismatch(upto === undefined ? `${own}.` : `${own}${headers}.`)
}

/**
 * 409, not 402: the money has been sent or has arrived, and a client that lost the bytes of its
 * credential must not pay again. The answer contains no more than the chain publishes.
 */
export function otherCredential(): Problem.ProblemError {
  return mismatch(
    'The credential does not continue this payment. Send the PAYMENT-SIGNATURE that started it, or the ' +
      'Idempotency-Key or the Payment-Redeem token that belongs to it. An X-PAYMENT of x402 version 1 ' +
      'needs its key or token, because the chain publishes all of it.',
  )
}

/** What a buyer does whose credential alone does not continue its payment. */
export const continueNext = 'Send redeem.token as Payment-Redeem in place of the credential.'

/**
 * The problem of a transfer that is not confirmed. Every product uses it for outcomes. 402 only
 * when it is proven that the transfer does not pay.
 */
export function unpaid(outcome: Exclude<Outcome, { kind: 'confirmed' }>): Problem.ProblemError {
  switch (outcome.kind) {
    case 'pending': {
      const detail =
        'The transfer is not confirmed yet: send the same credential again, and do not pay again.'
      return Problem.of('settlement-pending', detail, sent(outcome.payment, 'settlement_pending'))
    }
    case 'reverted': {
      const detail =
        'The transfer failed on chain: send the same credential again, which retries it.'
      return Problem.of('settlement-reverted', detail, sent(outcome.payment, outcome.reason))
    }
    case 'refused':
      return outcome.channel
        ? outOfStep(outcome, outcome.channel)
        : verificationFailed(outcome.reason, outcome.detail)
    case 'dead':
      return verificationFailed(outcome.reason, outcome.detail)
    case 'unavailable': {
      const { detail, limit: reason, retryAfterSeconds } = outcome
      return Problem.of(reason === undefined ? 'not-ready' : 'rate-limited', detail, {
        headers: { 'retry-after': String(retryAfterSeconds) },
        ...(reason !== undefined && { members: { reason } }),
      })
    }
  }
}

function sent({ transaction, transfer: { network } }: Payment, reason: string) {
  return { headers: { 'retry-after': '2' }, members: { reason, transaction, network } }
}
