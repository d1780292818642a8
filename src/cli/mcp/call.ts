import type { Address } from 'viem'
import * as PaymentMeta from '../../gateway/mcp/Payment'
import * as Json from '../../protocol/Json'
import type { ChannelFiles } from '../buy/channel-files'
import type * as Terms from '../buy/Terms'
import * as Answer from './Answer'
import type { Catalogue } from './catalogue'
import type { Entitlements } from './entitlements'
import { type GatewayClient, GatewayError } from './gateway'
import * as Sentences from './Sentences'
import type { Spending, Stored } from './spending'

/** Calls of tools that are paid for: what they share, and how they are sent. */

export type CallResult = {
  content: readonly Answer.Content[]
  isError?: boolean
  /** The payment can no longer be settled, so another one may be signed. */
  isExpired?: boolean
}

export type Wanted = { name: string; args: Json.JsonObject }

/** What the calls of one client share. */
export type BuyerOptions = {
  gateway: GatewayClient
  catalogue: Catalogue
  spending: Spending
  privateKey: Uint8Array
  payer: Address
  limits: Sentences.Limits
  /** Preferred where it is offered; undefined: a channel where the limits allow its deposit. */
  scheme: Terms.Scheme | undefined
  files: ChannelFiles
  /** The most to deposit into a channel, in millionths of a dollar. */
  depositMicros: bigint
  /** The only network that is paid on; undefined: any. */
  network: string | undefined
  /** Node for the facts of the chain; undefined: the public one of the network. */
  rpc: string | undefined
  /** How long a pending payment is presented again, ms. */
  patienceMs: number
  /** Unix ms. */
  now: () => number
}

export type Context = BuyerOptions & { reconcile: () => Promise<void>; entitlements: Entitlements }

/** The amount in millionths of a dollar, rounded up. */
export function microsOf({
  amountAtomic,
  asset: { decimals },
}: Pick<Terms.Terms, 'amountAtomic' | 'asset'>): bigint {
  if (decimals <= 6) return amountAtomic * 10n ** BigInt(6 - decimals)
  const unit = 10n ** BigInt(decimals - 6)
  return (amountAtomic + unit - 1n) / unit
}

export function refusal(text: string): CallResult {
  return { isError: true, content: [Answer.note(text)] }
}

const waits = { firstMs: 250, mostMs: 2_000 }

export const pendingCodes = ['settlement-pending', 'payment-in-progress', 'settlement-reverted']

/** Repeats the same message while the settlement is pending, and when the connection breaks. */
export async function ask(
  { gateway, patienceMs, now }: Context,
  { name, args }: Wanted,
  { credential, redeem, id }: Pick<Stored, 'credential' | 'redeem' | 'id'>,
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

/** An answer that was paid for, with what it has cost. */
export function served(
  { spending, limits, now, entitlements, catalogue }: Context,
  { tool, call: id }: Pick<Stored, 'tool' | 'call'>,
  result: Json.JsonObject,
  { paid, transaction }: { paid: string; transaction: string | undefined },
): CallResult {
  entitlements.noteBought(tool, id)
  const { spentMicros } = spending.today()
  const pass = catalogue.passOf(tool)
  const cost = Sentences.cost(paid, transaction, { spentMicros, limits, now: now() })
  return withNote(result, cost + (pass === undefined ? '' : Sentences.passSold(pass)))
}

/** A result of the gateway with a last sentence of ours. */
export function withNote(result: Json.JsonObject, note: string): CallResult {
  const isError = Json.member(result, 'isError') === true
  const content = [...Answer.contentOf(result), Answer.note(note)]
  return { content, ...(isError && { isError }) }
}
