import type { Address } from 'viem'
import type { TransferMethod } from './Asset'
import type { Network } from './Network'
import type { Offer, SignedOffer } from './Offer'
import * as Permit from './Permit'

/** x402 version 2, schemes `exact` and `upto` on EVM: offers. */

/**
 * Longest validity in seconds of a payer's signature; also the longest deadline that clients
 * choose.
 */
export const maxTimeoutSeconds = 300

/** An `accepts` entry. */
export type Requirements = {
  scheme: 'exact' | 'upto'
  network: Network['id']
  amount: string
  asset: Address
  payTo: Address
  maxTimeoutSeconds: number
  extra: Readonly<Record<string, string>>
}

export type Resource = { url: string; description?: string; mimeType?: string }

/**
 * Every extension needs `info` and `schema`: clients drop all of them if one of them lacks either.
 */
export type Extension = { info: object; schema: object; routeTemplate?: string }

export type Extensions = Readonly<Record<string, Extension>>

/** An extension that another part declares. `brief` is a shorter form for a long header. */
export type Declaration = Extension & { name: string; brief?: Extension }

export type PaymentRequired = {
  x402Version: 2
  error: string
  resource: Resource
  accepts: readonly Requirements[]
  extensions: Extensions
}

/** The offer as an `accepts` entry for one of its asset's transfer methods. */
export function requirements(offer: Offer, method: TransferMethod): Requirements {
  const { name, version } = offer.network.asset.eip712
  return entry('exact', offer, {
    assetTransferMethod: method,
    ...(method === 'permit2' ? { spender: Permit.proxyAddress } : {}),
    name,
    version,
    // Settle first, then serve. Without it clients prefer any other entry and expect /verify.
    paymentFlow: 'upfront',
  })
}

/** The offer as an `accepts` entry of the scheme `upto`; its amount is a ceiling. */
export function uptoRequirements(offer: Offer, facilitatorAddress: Address): Requirements {
  const { name, version } = offer.network.asset.eip712
  // Without a payment flow: `upto` has only one, which settles after the answer.
  return entry('upto', offer, { assetTransferMethod: 'permit2', name, version, facilitatorAddress })
}

function entry(
  scheme: Requirements['scheme'],
  { network: { id, asset }, amountAtomic, payTo }: Offer,
  extra: Requirements['extra'],
): Requirements {
  const amount = amountAtomic.toString()
  return { scheme, network: id, amount, asset: asset.address, payTo, maxTimeoutSeconds, extra }
}

/**
 * A shorter form of an entry. `upto` moves money by Permit2 only, so the entry may omit the method.
 */
export function brief(accept: Requirements): Requirements {
  if (accept.scheme === 'exact') return accept
  const { assetTransferMethod: _, ...extra } = accept.extra
  return { ...accept, extra }
}

/**
 * `accepts` of offers: every transfer method of every offer, in order. Behind them the offers that may
 * be paid by `upto`, by the account that settles them.
 */
export function accepts(
  offers: readonly Offer[],
  facilitatorOf: (offer: Offer) => Address | undefined = () => undefined,
): readonly Requirements[] {
  const exact = offers.flatMap((offer) =>
    offer.network.asset.transfer.map((method) => requirements(offer, method)),
  )
  const upto = offers.flatMap((offer) => {
    const facilitator = facilitatorOf(offer)
    return facilitator === undefined ? [] : [uptoRequirements(offer, facilitator)]
  })
  return [...exact, ...upto]
}

/** The 402's payload. A pure function of its input, so that routes can cache it. */
export function paymentRequired(input: Omit<PaymentRequired, 'x402Version'>): PaymentRequired {
  const { error, resource, accepts, extensions } = input
  return { x402Version: 2, error, resource, accepts, extensions }
}

/**
 * Extensions that a 402 advertises. `offers` are in the order of `accepts`; other parts declare
 * `more`. `mppx` comes last: `method` is the HTTP method to which mppx binds its nonce. `salt` is
 * random and of this answer alone. Clients echo it in their payload, so that a reader of the chain
 * cannot rebuild the payload.
 */
export function extensions(input: {
  offers: readonly SignedOffer[]
  method: string
  salt: string
  more?: readonly Declaration[]
}): Extensions {
  const { method, salt } = input
  const offers = input.offers.map((offer, acceptIndex) => ({ ...offer, acceptIndex }))
  const all: Record<string, Extension> = {
    'payment-identifier': { info: { required: false }, schema: identifierSchema },
    'offer-receipt': { info: { offers }, schema: { type: 'object', required: ['offers'] } },
  }
  for (const { name, brief: _, ...extension } of input.more ?? []) all[name] = extension
  all.mppx = { schema: {}, info: { method, salt } }
  return all
}

/** The same without the salt, for documents that several clients read. */
export function unsalted(extensions: Extensions): Extensions {
  const { mppx, ...others } = extensions
  if (mppx === undefined) return extensions
  const { salt: _, ...info } = mppx.info as { salt?: string }
  return { ...others, mppx: { ...mppx, info } }
}

const identifierSchema = {
  type: 'object',
  properties: {
    required: { type: 'boolean' },
    id: { type: 'string', minLength: 16, maxLength: 128 },
  },
  required: ['required'],
}
