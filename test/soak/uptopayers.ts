import { settlementOf } from '../harness/buyer'
import { payUpto, uptoOffer } from '../harness/upto'
import type { ByUse, Purchase } from './purchase'
import type { Random } from './random'
import type { Payer, Site } from './setup'

/**
 * Buyers of the scheme `upto`: each signs one ceiling per request, for a whole answer or a stream.
 * Some leave in the middle. One that has nothing presents the same credential again, until it has
 * the answer or a final refusal.
 */

/** A share of the purchases of payers that have approved Permit2. */
export const byUseShare = 0.6

export function planByUse(
  { payer, site, serial, url }: { payer: Payer; site: Site; serial: string; url: string },
  random: Random,
): Purchase {
  const isStream = random.chance(0.5)
  const body = JSON.stringify({
    model: 'm',
    max_tokens: random.pick([500, 1_000, 2_000]),
    ...(isStream ? { stream: true } : {}),
    messages: [{ role: 'user', content: serial }],
  })
  return {
    serial,
    payer,
    site,
    scheme: 'upto',
    url: `${url}/m/model/chat?n=${serial}`,
    init: {
      method: 'POST',
      body,
      headers: {
        'content-type': 'application/json',
        ...(random.chance(0.2) ? { 'idempotency-key': `key-${serial}` } : {}),
      },
    },
    amountAtomic: 0n,
    nonce: undefined,
    signedAt: undefined,
    said: [],
    received: [],
    redeems: false,
    end: 'open',
    byUse: {
      isStream,
      leaveAfterMs: random.chance(0.2) ? random.between(5, 700) : undefined,
      hasLeft: false,
      bytes: 0,
    },
  }
}

/** The credential for the offered ceiling, which becomes the purchase's amount. */
export async function signByUse(
  purchase: Purchase,
  required: Parameters<typeof payUpto>[0],
  random: Random,
): Promise<{ nonce: `0x${string}`; headers: Record<string, string> } | undefined> {
  const { site, payer } = purchase
  const offer = uptoOffer(required, site.id)
  if (offer === undefined) return undefined
  purchase.amountAtomic = BigInt(offer.amount)
  const nonce = random.bytes32()
  const value = await payUpto(required, payer.account, { network: site.id, nonce })
  return { nonce, headers: { 'payment-signature': value } }
}

export type Shown =
  | { kind: 'whole'; response: Response; text: string }
  /** The buyer left, and has this many bytes. */
  | { kind: 'left'; bytes: number }

/** Sends the request once; rejects when the connection broke. */
export async function fetchByUse(
  { url, init }: Purchase,
  byUse: ByUse,
  headers: Record<string, string>,
  limitMs: number,
): Promise<Shown> {
  const leaving = new AbortController()
  const leaveAfterMs = byUse.hasLeft ? undefined : byUse.leaveAfterMs
  const timer =
    leaveAfterMs === undefined ? undefined : setTimeout(() => leaving.abort(), leaveAfterMs)
  let bytes = 0
  try {
    const signal = AbortSignal.any([leaving.signal, AbortSignal.timeout(limitMs)])
    const response = await fetch(url, { ...init, headers: { ...init.headers, ...headers }, signal })
    const decoder = new TextDecoder()
    let text = ''
    for await (const chunk of response.body ?? []) {
      bytes += chunk.byteLength
      if (response.status === 200) byUse.bytes = Math.max(byUse.bytes, bytes)
      text += decoder.decode(chunk, { stream: true })
    }
    return { kind: 'whole', response, text }
  } catch (error) {
    if (!leaving.signal.aborted) throw error
    byUse.hasLeft = true
    return { kind: 'left', bytes }
  } finally {
    clearTimeout(timer)
  }
}

/** The members of an answer: those of its first event for a stream. */
export function membersOf(text: string): Record<string, unknown> {
  const [, first] = /^data: (.*)$/m.exec(text) ?? []
  return JSON.parse(first ?? text)
}

/** What the head of an answer says was settled; undefined for a stream that is settled at its end. */
export function settledOf(response: Response): { amount: string; transaction: string } | undefined {
  const { amount, transaction } = settlementOf(response)
  return amount === undefined
    ? undefined
    : { amount: String(amount), transaction: String(transaction) }
}
