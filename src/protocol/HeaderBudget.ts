import { encodeJson } from './Header'
import type { SignedOffer } from './Offer'
import type { PaymentRequired } from './X402'
import { type Declaration, type Extension, type Extensions, offersSchema } from './X402'

/** `PAYMENT-REQUIRED` within what clients and proxies take as a header. */

/** What is said more briefly first when the header is too long. */
const briefOrder = ['offer-receipt', 'payment-identifier', 'bazaar']

/** What is left out of the header first when it is still too long. */
const dropOrder = ['bazaar', 'payment-identifier', 'erc20ApprovalGasSponsoring', 'offer-receipt']

/**
 * `PAYMENT-REQUIRED` value of at most `maxBytes`, as long as leaving out extensions can reach that,
 * and the whole payload for the body. `brief` are shorter forms that are tried before.
 */
export function fit(
  full: PaymentRequired,
  maxBytes: number,
  brief: Extensions = {},
): { header: string; body: PaymentRequired } {
  const kept = { ...full.extensions }
  let header = encodeJson(full)
  for (const name of briefOrder) {
    const shorter = brief[name]
    if (header.length <= maxBytes) break
    if (shorter === undefined) continue
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
 * What stands in for extensions in a header that is too long, before any is left out: the shorter
 * forms of what others declare, and only such signed offers as say something of their own (transfer
 * methods of one asset share their terms) about real money. `accepts` as in `extensions`.
 */
export function briefs(input: {
  offers: readonly SignedOffer[]
  more?: readonly Declaration[]
  isTestnet: (network: string) => boolean
}): Extensions {
  const stated = new Set<string>()
  const offers = input.offers.flatMap((offer, acceptIndex) => {
    if (stated.has(offer.signature) || input.isTestnet(offer.payload.network)) return []
    stated.add(offer.signature)
    return [{ ...offer, acceptIndex }]
  })
  const all: Record<string, Extension> = {
    'payment-identifier': { info: { required: false }, schema: { type: 'object' } },
  }
  if (offers.length > 0) all['offer-receipt'] = { info: { offers }, schema: offersSchema }
  for (const { name, brief } of input.more ?? []) if (brief !== undefined) all[name] = brief
  return all
}
