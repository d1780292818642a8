import type { Hex } from 'viem'
import * as Json from '../../protocol/Json'
import { buyByChannel, depositOf, hasChannel } from '../buy/by-channel'
import { readBalance } from '../buy/funds'
import * as Terms from '../buy/Terms'
import * as Voucher from '../buy/Voucher'
import { CommandError } from '../Command'
import * as Answer from './Answer'
import {
  ask,
  type CallResult,
  type Context,
  microsOf,
  pendingCodes,
  refusal,
  served,
  type Wanted,
} from './call'
import { GatewayError } from './gateway'
import * as Sentences from './Sentences'

/** Calls that are paid by a payment channel. Its deposit counts as spent until it is refunded. */

/** Whether a channel has enough left, or limits and wallet allow the deposit. Never rejects. */
export async function mayUseChannel(context: Context, terms: Terms.Terms): Promise<boolean> {
  const { privateKey, payer, files, scheme, spending, limits, depositMicros, rpc } = context
  if (hasChannel({ terms, files, privateKey })) return true
  const amountAtomic = depositOf(terms, terms.amountAtomic)
  const micros = microsOf({ ...terms, amountAtomic })
  const leftMicros = limits.perDayMicros - spending.today().spentMicros
  if (micros > depositMicros || micros > leftMicros) return false
  if (scheme === 'channel') return true
  // By itself it never needs an approve, and never a balance that may be missing.
  if (terms.method !== 'eip3009') return false
  return ((await readBalance(terms.asset, payer, rpc)) ?? 0n) >= amountAtomic
}

/** Pays a call by a channel. Throws a CommandError when that cannot be done. */
export function callByChannel(
  context: Context,
  wanted: Wanted,
  { id, terms, signal }: { id: string; terms: Terms.Terms; signal: AbortSignal },
): Promise<CallResult> {
  const { gateway, spending, now, files, rpc, privateKey } = context
  const purchase = {
    ...{ terms, request: id, privateKey, rpc, now, files, depositAtomic: undefined },
    url: urlOf(terms, gateway.origin),
    allow: (deposit: Voucher.Deposit, channel: Hex) =>
      reserve(context, { wanted, terms, deposit, channel }),
  }
  return buyByChannel<Answer.Answer | GatewayError, CallResult>(purchase, {
    send: async (payment, key) => {
      const stored = { credential: JSON.stringify(payment), redeem: undefined, id: key }
      const answer = await ask(context, wanted, stored, signal)
      return { answer, reply: replyOf(answer) }
    },
    finish: async (answer, { state, chargedAtomic, fault }) => {
      const { settled, end } = replyOf(answer)
      const [amount, transaction] = [Terms.amountOf(terms), Answer.transactionOf(settled)]
      const deposit = spending.findUnfinished(Voucher.idOf(state))
      if (deposit && state.deposit === undefined)
        spending.update(deposit.id, { state: 'delivered', transaction })
      const isOpen = end === 'unknown'
      if (answer instanceof GatewayError)
        return refusal(Sentences.notByChannel(answer.message, amount, isOpen))
      if (answer.kind === 'offers' || answer.kind === 'problem') {
        const said = fault
          ? `The gateway is not believed: ${fault}.`
          : Sentences.said(answer.problem)
        return refusal(Sentences.notByChannel(said, amount, isOpen))
      }
      const charged =
        chargedAtomic === undefined ? `up to ${amount}` : Terms.amountOf(terms, chargedAtomic)
      const left = Terms.amountOf(terms, Voucher.restOf(state))
      const paid = Sentences.fromChannel(`${charged} on ${terms.network}`, left)
      return served(context, { tool: wanted.name, call: id }, answer.result, { paid, transaction })
    },
  })
}

/** The address of a tool over HTTP, where the rest of a channel is asked for. */
function urlOf({ source }: Terms.Terms, origin: string): string {
  const named = source.kind === 'x402' && source.resource && Json.member(source.resource, 'url')
  const url = URL.parse(String(named))
  return url === null ? origin : new URL(url.pathname + url.search, origin).href
}

function replyOf(answer: Answer.Answer | GatewayError): Voucher.Reply {
  const reply = { settled: undefined, required: undefined }
  if (answer instanceof GatewayError)
    return { ...reply, end: answer.kind === 'refused' ? 'refused' : 'unknown' }
  switch (answer.kind) {
    case 'delivered':
      return { ...reply, settled: answer.settled, end: 'served' }
    case 'offers':
      return { ...reply, required: answer.required, end: 'refused' }
    case 'problem':
      return { ...reply, end: pendingCodes.includes(answer.problem.code) ? 'unknown' : 'refused' }
    case 'free':
      return { ...reply, end: 'served' }
  }
}

/** Counts a deposit against the limit of the day. Throws a CommandError when it is too much. */
async function reserve(
  { spending, limits, payer, now, reconcile }: Context,
  of: { wanted: Wanted; terms: Terms.Terms; deposit: Voucher.Deposit; channel: Hex },
): Promise<void> {
  const { wanted, terms, deposit, channel } = of
  const { method, amountAtomic, nonce, until: validBefore } = deposit
  const payment = {
    ...{ id: crypto.randomUUID(), call: channel, tool: wanted.name, args: '', credential: '' },
    ...{ network: terms.network, asset: terms.asset.address, method, scheme: 'channel' as const },
    ...{
      payer,
      payee: terms.payTo,
      nonce,
      validBefore,
      amount: Terms.amountOf(terms, amountAtomic),
    },
    signedMicros: microsOf({ ...terms, amountAtomic }),
  }
  // An earlier one that has not arrived in its time counts until the chain shows that.
  const earlier = spending.findUnfinished(channel)
  if (earlier) spending.update(earlier.id, { state: 'over' })
  let reserved = spending.reserve(payment, limits.perDayMicros)
  if (reserved.kind === 'limit') {
    await reconcile()
    reserved = spending.reserve(payment, limits.perDayMicros)
  }
  if (reserved.kind === 'limit') {
    const { spentMicros } = reserved
    throw new CommandError(Sentences.dayIsSpent(terms, { spentMicros, limits, now: now() }))
  }
}
