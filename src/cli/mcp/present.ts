import * as PaymentMeta from '../../gateway/mcp/Payment'
import { encodeJson } from '../../protocol/Header'
import * as Json from '../../protocol/Json'
import * as Charge from '../buy/Charge'
import * as Answer from './Answer'
import type { BuyerOptions, Result, Wanted } from './context'
import { GatewayError } from './gateway'
import * as Sentences from './Sentences'
import type { Stored } from './spending'

/** Presents a signed payment, in the one form that was stored, until its end is known. */

export type Presented =
  | { kind: 'answer'; result: Result }
  | { kind: 'refused'; text: string }
  /** It can no longer be settled, so another one may be signed. */
  | { kind: 'expired'; text: string }

type Context = Pick<BuyerOptions, 'gateway' | 'spending' | 'limits' | 'patienceMs' | 'now'>

/** Clocks of chains differ from ours by less. */
const expiryMarginMs = 30_000
const waits = { firstMs: 250, mostMs: 2_000 }

const pendingCodes = ['settlement-pending', 'payment-in-progress', 'settlement-reverted']
const laterCodes = ['not-ready', 'paused', 'budget-spent', 'rate-limited', 'internal-error']
const lostCodes = [
  'redeem-exhausted',
  'invalid-redeem-token',
  'payment-mismatch',
  'idempotency-conflict',
]
const usedReasons = ['invalid_exact_evm_nonce_already_used', 'permit2_invalid_nonce']

export async function present(
  context: Context,
  wanted: Wanted,
  payment: Stored,
  signal: AbortSignal,
): Promise<Presented> {
  const answer = await ask(context, wanted, payment, signal)
  if (answer instanceof GatewayError) return failed(context, payment, answer)
  switch (answer.kind) {
    case 'delivered':
      return delivered(context, payment, answer)
    case 'offers': {
      const { code, reason } = answer.problem
      if (code === 'invalid-challenge' && usedReasons.includes(reason))
        return end(context, payment, Sentences.spent(payment))
      return refused(context, payment, answer.problem)
    }
    case 'problem':
      return ofProblem(context, payment, answer.problem)
    case 'free': {
      const text = Json.member(answer.result, 'isError') === true && firstText(answer.result)
      if (text === false) return delivered(context, payment, answer)
      return refused(context, payment, problemOf(text))
    }
  }
}

/** Repeats the same message while the settlement is pending, and when the connection breaks. */
async function ask(
  { gateway, patienceMs, now }: Context,
  { name, args }: Wanted,
  { credential, redeem, id }: Stored,
  signal: AbortSignal,
): Promise<Answer.Answer | GatewayError> {
  const _meta = redeem
    ? { [PaymentMeta.redeemKey]: redeem.token }
    : {
        [PaymentMeta.x402PaymentKey]: JSON.parse(credential) as Json.JsonObject,
        // With the key, a lost answer is sent again instead of being refused as spent.
        [PaymentMeta.idempotencyKey]: id,
      }
  const until = now() + patienceMs
  for (let waitMs = waits.firstMs; ; waitMs = Math.min(2 * waitMs, waits.mostMs)) {
    let answer: Answer.Answer | GatewayError
    try {
      const params = { name, arguments: args, _meta }
      answer = Answer.of(await gateway.request('tools/call', params, signal))
    } catch (error) {
      if (!(error instanceof GatewayError)) throw error
      answer = error
    }
    const isOpen =
      answer instanceof GatewayError
        ? answer.kind === 'lost'
        : answer.kind === 'problem' && pendingCodes.includes(answer.problem.code)
    if (!isOpen || signal.aborted || now() + waitMs >= until) return answer
    await Bun.sleep(waitMs)
  }
}

function failed(context: Context, payment: Stored, error: GatewayError): Presented {
  if (error.kind === 'refused') return refused(context, payment, problemOf(error.message))
  const text = Sentences.unknown(payment, error.message)
  // Otherwise an answer that can never be read would block this call forever.
  if (error.kind === 'unusable' && isExpired(context, payment)) return end(context, payment, text)
  return { kind: 'refused', text }
}

function ofProblem(context: Context, payment: Stored, problem: Answer.Problem): Presented {
  const { code, redeem, transaction, reason } = problem
  if (redeem !== undefined && redeem.attempts > 0) {
    const { token, until } = redeem
    const kept = { token, until }
    context.spending.update(payment.id, { state: 'redeemable', transaction, redeem: kept })
    return { kind: 'refused', text: Sentences.redeemable({ ...payment, redeem: kept }, problem) }
  }
  if (redeem !== undefined || lostCodes.includes(code)) {
    return end(context, payment, Sentences.lost(payment, problem), transaction)
  }
  if (pendingCodes.includes(code))
    return { kind: 'refused', text: Sentences.pending(payment, problem) }
  if (laterCodes.includes(code))
    return { kind: 'refused', text: Sentences.notNow(payment, problem) }
  if (payment.scheme === 'upto' && reason === 'delivery_failed')
    return end(context, payment, Sentences.uncharged(payment, problem))
  return refused(context, payment, problem)
}

/** Gives the payment up for its call. It counts until the chain proves that it is void. */
function end(
  { spending }: Context,
  { id }: Stored,
  text: string,
  transaction?: string | undefined,
): Presented {
  spending.update(id, { state: 'over', transaction })
  return { kind: 'refused', text }
}

/** A payment that was refused may still be settled until it expires: no other is signed before. */
function refused(context: Context, payment: Stored, problem: Answer.Problem): Presented {
  const text = Sentences.refused(payment, problem)
  if (payment.redeem !== undefined || !isExpired(context, payment)) return { kind: 'refused', text }
  context.spending.update(payment.id, { state: 'over' })
  return { kind: 'expired', text }
}

function isExpired({ now }: Context, { validBefore }: Stored): boolean {
  return now() > validBefore * 1000 + expiryMarginMs
}

function delivered(
  { spending, limits, now }: Context,
  payment: Stored,
  answer: { result: Json.JsonObject; settled?: Json.JsonObject | undefined },
): Presented {
  const { result, settled } = answer
  const transaction = Answer.transactionOf(settled)
  spending.update(payment.id, { state: 'delivered', transaction })
  const { spentMicros } = spending.today()
  const paid = paidOf(payment, settled)
  const cost = Sentences.cost(paid, transaction, { spentMicros, limits, now: now() })
  const isError = Json.member(result, 'isError') === true
  const content = [...Answer.contentOf(result), Answer.note(cost)]
  return { kind: 'answer', result: { content, ...(isError && { isError }) } }
}

/** The cost of a call: with `upto`, the charge that the gateway names, within the ceiling. */
function paidOf(payment: Stored, settled: Json.JsonObject | undefined): string {
  const { scheme, amount, network, signedMicros } = payment
  if (scheme === 'exact') return `${amount} on ${network}`
  const charge = settled && Charge.ofResponse(encodeJson(settled))
  if (charge === undefined || charge.amountAtomic > signedMicros)
    return `up to ${amount} on ${network}`
  const symbol = amount.split(' ').at(-1)
  const charged = Sentences.dollars(charge.amountAtomic)
  return `${charged} ${symbol} of at most ${amount} on ${network}`
}

function firstText(result: Json.JsonObject): string {
  const [first] = Answer.contentOf(result)
  return typeof first?.text === 'string' ? first.text : ''
}

function problemOf(detail: string): Answer.Problem {
  return { code: 'refused', detail, reason: '', transaction: undefined, redeem: undefined }
}
