import * as Amount from '../../protocol/Amount'
import { dayMs } from '../../protocol/Time'
import type { Short } from '../buy/funds'
import * as Terms from '../buy/Terms'
import type { Problem } from './Answer'
import type { Tool } from './Listing'
import type { Stored } from './spending'
import * as Text from './Text'

/**
 * The texts that a model gets about a call that was not served. Each says what happened, whether
 * money moved, and what to do next.
 */

export type Limits = {
  perCallMicros: bigint
  perDayMicros: bigint
  /** The limits, as the user wrote them. */
  perCall: string
  perDay: string
}

export function dollars(micros: bigint): string {
  return Amount.toShort(micros, 6)
}

/** The next midnight of UTC. */
export function resetOf(now: number): string {
  return time((Math.floor(now / dayMs) + 1) * dayMs)
}

export function tooDear(offered: readonly Terms.Terms[], { perCall }: Limits): string {
  const prices = [...new Set(offered.map((terms) => priced(terms)))].join(', or ')
  return (
    `The call costs ${prices}. This wallet signs at most ${perCall} USD for one call, so nothing was ` +
    'paid. Make a smaller request, choose a cheaper tool, or ask the user to raise --max-per-call.'
  )
}

export function dayIsSpent(
  terms: Terms.Terms,
  { spentMicros, limits, now }: { spentMicros: bigint; limits: Limits; now: number },
): string {
  const left = limits.perDayMicros - spentMicros
  return (
    `The call costs ${priced(terms)}. Today ${dollars(spentMicros)} of at most ${limits.perDay} USD ` +
    `are spent or signed, so ${dollars(left > 0n ? left : 0n)} USD are left, and nothing was paid. ` +
    `The limit resets at ${resetOf(now)}. Wait until then, choose a cheaper tool, or ask the user to ` +
    'raise --max-per-day.'
  )
}

export function dearerThanListed(terms: Terms.Terms, listedMicros: bigint): string {
  return (
    `The price has changed: the tool was listed for ${dollars(listedMicros)} USD, and the gateway now ` +
    `asks for ${priced(terms)}. Nothing was paid. Call the tool again to accept the new price.`
  )
}

/** `network`: the only one that the user allows. */
export function cannotPay(offered: readonly Terms.Terms[], network: string | undefined): string {
  const next = 'Choose another tool, or ask the user to'
  if (offered.length === 0)
    return (
      'The gateway offers no payment that this wallet knows: it pays only in USDC on eip155:8453 and ' +
      'eip155:84532, and in USDG on eip155:4663. Nothing was paid. Choose another tool.'
    )
  if (network === undefined || offered.some((terms) => terms.network === network))
    return `The gateway sells this only by the scheme upto. Nothing was paid. ${next} allow --scheme upto.`
  const networks = [...new Set(offered.map((terms) => terms.network))].join(', ')
  return (
    `The gateway takes payment on ${networks}, and this wallet pays only on ${network}. Nothing was ` +
    `paid. ${next} change --network.`
  )
}

/** No offer is paid by the wallet: `short` has its balance for each. */
export function hasTooLittle(payer: string, short: readonly Short[]): string {
  const each = short.map(({ terms, balanceAtomic }) => {
    return `${Terms.amountOf(terms, balanceAtomic)} of ${priced(terms)}`
  })
  return (
    `The wallet ${payer} holds too little for every payment that the gateway takes: ` +
    `${[...new Set(each)].join(', ')}. Nothing was paid. Ask the user to send it some.`
  )
}

export function invalidArguments(faults: string): string {
  return `The arguments are wrong, so nothing was paid. Correct them: ${faults}.`
}

export function unreachable(message: string): string {
  return `${message} Nothing was paid. Try again later, and tell the user if that fails, too.`
}

export function stateFails(message: string): string {
  return `${message} Nothing was paid. Ask the user to make the file writable for turnpike mcp.`
}

/** The fate of the presented payment is not known. */
export function unknown(payment: Stored, message: string): string {
  return `${message} ${signed(payment)} It is not known whether it was settled. ${same}`
}

export function pending(payment: Stored, { code, transaction }: Problem): string {
  const named = transaction === undefined ? '' : `, transaction ${transaction}`
  return `The settlement is not finished (${code}${named}). ${signed(payment)} ${same}`
}

/** The gateway cannot sell or settle now, and has not used the payment. */
export function notNow(payment: Stored, problem: Problem): string {
  return `${said(problem)} ${signed(payment)} The gateway has not used it. ${same}`
}

export function redeemable(payment: Stored, problem: Problem): string {
  const { amount, redeem } = payment
  return (
    `The upstream failed after the payment of ${amount}. ${said(problem)} The payment is kept: call ` +
    `the same tool with the same arguments until ${Text.line(redeem?.until ?? '', 40)}, and it costs ` +
    'nothing more.'
  )
}

export function lost(payment: Stored, problem: Problem): string {
  const named = payment.transaction ?? problem.transaction
  return (
    `${payment.amount} were paid${named === undefined ? '' : ` in transaction ${named}`}, the answer ` +
    `was not delivered, and it can no longer be fetched. ${said(problem)} Tell the user to contact ` +
    'the operator of the gateway. Another call of this tool pays again.'
  )
}

export function spent(payment: Stored): string {
  return (
    `The payment of ${payment.amount} for this call was used before, and its answer is no longer ` +
    'kept. Another call of this tool pays again.'
  )
}

/** By `upto`: the answer failed, and the gateway charges nothing. */
export function uncharged(payment: Stored, problem: Problem): string {
  return (
    `${said(problem)} The gateway charges nothing. The signed ceiling of ${payment.amount} counts ` +
    `against the limit of the day until ${validUntil(payment)}. Call the tool again to sign another one.`
  )
}

/** A 402 or another final answer to a payment. */
export function refused(payment: Stored, problem: Problem): string {
  const { reason } = problem
  const { amount, network, payer } = payment
  const why = /insufficient_(balance|funds)$/.test(reason)
    ? `The wallet ${payer} holds less than ${amount} on ${network}. Ask the user to send it some. `
    : reason.includes('allowance')
      ? `The wallet ${payer} has not approved Permit2 on ${network}. Ask the user to pay once with ` +
        'turnpike pay and --transfer permit2, which approves it, or to omit --scheme upto. '
      : ''
  return (
    `${why}${said(problem)} Nothing was delivered. ${signed(payment)} Until then a call with the same ` +
    'arguments presents the same payment. After that a new one is signed.'
  )
}

export function stopping(): string {
  return 'turnpike mcp is stopping. Call again after it was started again.'
}

/** The last sentence of an answer: what it has cost. */
export function cost(
  paid: string,
  transaction: string | undefined,
  { spentMicros, limits, now }: { spentMicros: bigint; limits: Limits; now: number },
): string {
  const settled = transaction === undefined ? '' : `, transaction ${transaction}`
  return (
    `[turnpike] Cost: ${paid}${settled}. Today ${dollars(spentMicros)} of at most ${limits.perDay} USD ` +
    `are spent; the limit resets at ${resetOf(now)}.`
  )
}

/** From a channel: what is left of its deposit. */
export function fromChannel(charged: string, left: string): string {
  return `${charged} from a channel with ${left} left, whose deposit counts as spent`
}

/**
 * A call by a channel that was not served. `isOpen`: the same call presents the same voucher. `taken`: what
 * the gateway has shown as charged for it.
 */
export function notByChannel(
  what: string,
  amount: string,
  isOpen: boolean,
  taken: string | undefined,
): string {
  if (isOpen) return `${what} A voucher of ${amount} is signed. ${same}`
  if (taken === undefined) return `${what} Nothing was charged.`
  return `${what} The gateway has shown ${taken} as charged for this call.`
}

export function disbelieved(fault: string, amount: string): string {
  return `The gateway is not believed: ${fault}. A voucher of ${amount} is signed. Nothing was delivered.`
}

/** A voucher was sent for the call, and what it pays from cannot be used now. */
export function onlyFrom(channel: string, why = 'The gateway does not offer it now.'): string {
  return (
    `${why} A voucher of the channel ${channel} was sent for this call, so nothing else pays for it. ` +
    'Call the same tool with the same arguments later, or ask the user to close that channel with ' +
    'turnpike channels close.'
  )
}

export function depositTooHigh(amount: string): string {
  return `The channel needs a deposit of ${amount}, which is above --deposit.`
}

/** The last sentence of an answer that the wallet has without a payment. `entitlement`: how. */
export function covered(entitlement: string): string {
  return `[turnpike] Nothing was paid: ${entitlement}.`
}

/** `title`: what the tool sells, in the words of the gateway. */
export function passSold({ name, title = '' }: Tool): string {
  return ` For many calls the tool ${name} sells ${Text.quote(title)}: buy it only if the user wants it.`
}

const same =
  'Call the same tool with the same arguments: it presents the same payment, and pays nothing more.'

function signed(payment: Stored): string {
  return `A payment of ${payment.amount} on ${payment.network} is signed, valid until ${validUntil(payment)}.`
}

export function said({
  code,
  detail,
  reason,
}: Pick<Problem, 'code' | 'detail' | 'reason'>): string {
  const because = reason === '' ? '' : `, ${reason}`
  return `The gateway says ${Text.quote(`${code}${because}: ${detail}`)}.`
}

function priced(terms: Terms.Terms): string {
  const most = terms.scheme === 'upto' ? 'up to ' : ''
  return `${most}${Terms.amountOf(terms)} on ${terms.network}`
}

function validUntil({ validBefore }: Stored): string {
  return time(validBefore * 1000)
}

/** `2026-11-29T11:45:00Z`, without the fraction of a whole second. */
export function time(ms: number): string {
  return new Date(ms).toISOString().replace('.000Z', 'Z')
}
