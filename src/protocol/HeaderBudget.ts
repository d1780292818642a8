import { encodeJson } from './Header'
import type { SignedOffer } from './Offer'
import type { Declaration, Extension, PaymentRequired } from './X402'

/** `PAYMENT-REQUIRED` within what clients and proxies take as a header. */

/** Shorter forms of extensions, in the order in which they are taken. */
export type Briefs = readonly (readonly [name: string, extension: Extension])[]

/** What is left out of the header first when it is still too long. */
const dropOrder = ['bazaar', 'payment-identifier', 'erc20ApprovalGasSponsoring', 'offer-receipt']

/**
 * `PAYMENT-REQUIRED` value of at most `maxBytes`, as long as leaving out extensions can reach that,
 * and the whole payload for the body. `briefs` are tried before.
 */
export function fit(
  full: PaymentRequired,
  maxBytes: number,
  briefs: Briefs = [],
): { header: string; body: PaymentRequired } {
  const kept = { ...full.extensions }
  let header = encodeJson(full)
  for (const [name, shorter] of briefs) {
    if (header.length <= maxBytes) break
    kept[name] = shorter
    header = encodeJson({ ...full, extensions: kept })
  }
  for (const name of dropOrder) {
    if (header.length <= maxBytes) break
    delete kept[name]
    header = encodeJson({ ...full, extensions: kept })
  }
  return { header, body: full }
}

/**
 * What stands in for extensions in a header that is too long, before any is left out: only such signed
 * offers as say something of their own (transfer methods of one asset share their terms) about real
 * money, the shorter forms of what others declare, and at last only the first of the signed offers.
 * `accepts` as in `extensions`.
 */
export function briefsOf(input: {
  offers: readonly SignedOffer[]
  more?: readonly Declaration[]
  isTestnet: (network: string) => boolean
}): Briefs {
  const stated = new Set<string>()
  const offers = input.offers.flatMap((offer, acceptIndex) => {
    if (stated.has(offer.signature) || input.isTestnet(offer.payload.network)) return []
    stated.add(offer.signature)
    return [{ ...offer, acceptIndex }]
  })
  const schema = { type: 'object' }
  const signed = (some: typeof offers): Briefs =>
    some.length === 0 ? [] : [['offer-receipt', { info: { offers: some }, schema }]]
  return [
    ...signed(offers),
    ['payment-identifier', { info: { required: false }, schema }],
    ...(input.more ?? []).flatMap(({ name, brief }): Briefs => (brief ? [[name, brief]] : [])),
    ...signed(offers.slice(0, 1)),
  ]
}
