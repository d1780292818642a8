import type { Address, Hex } from 'viem'
import * as Amount from './Amount'
import type { PaymentMethod, TransferMethod } from './Asset'
import * as Channel from './Channel'
import * as ChannelPayload from './ChannelPayload'
import * as Crypto from './Crypto'
import * as Explanation from './Explanation'
import { base64url, decodeJson } from './Header'
import * as Json from './Json'
import { isCaip2, type Network, ofV1Name } from './Network'
import type { Offer, SignedOffer } from './Offer'
import * as Permit from './Permit'
import { type Fault, fault } from './Problem'
import { readAuthorization, type Transfer } from './Transfer'
import * as Upto from './Upto'

/**
 * x402 version 2, schemes `exact`, `upto` and `batch-settlement` on EVM: offers, and the payloads that
 * pay them.
 */

/**
 * Longest validity in seconds of a payer's signature; also the longest deadline that clients
 * choose.
 */
export const maxTimeoutSeconds = 300

/** An `accepts` entry. */
export type Requirements = {
  scheme: Scheme
  network: Network['id']
  amount: string
  asset: Address
  payTo: Address
  maxTimeoutSeconds: number
  extra: Readonly<Record<string, string | number | Json.JsonObject>>
}

type Scheme = 'exact' | 'upto' | typeof Channel.scheme

/** What an offer states of the channels by which it may be paid. */
export type ChannelTerms = {
  receiverAuthorizer: Address
  /** Seconds. */
  withdrawDelay: number
  minDepositAtomic: bigint
  /** How deposits are made. */
  method: TransferMethod
}

/** The channels by which an offer may be paid now; undefined: by none. */
export type ChannelOf = (offer: Offer) => ChannelTerms | undefined

type Resource = { url: string; description?: string; mimeType?: string }

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
function requirements(offer: Offer, method: TransferMethod): Requirements {
  return entry('exact', offer, {
    assetTransferMethod: method,
    ...(method === 'permit2' ? { spender: Permit.proxyAddress } : {}),
    ...offer.network.asset.eip712,
    // Settle first, then serve. Without it clients prefer any other entry and expect /verify.
    paymentFlow: 'upfront',
  })
}

/** The offer as an `accepts` entry of the scheme `upto`; its amount is a ceiling. */
function uptoRequirements(offer: Offer, facilitatorAddress: Address): Requirements {
  // Without a payment flow: `upto` has only one, which settles after the answer.
  const { eip712 } = offer.network.asset
  return entry('upto', offer, { assetTransferMethod: 'permit2', ...eip712, facilitatorAddress })
}

/** The offer as an `accepts` entry for payment channels. */
function channelRequirements(offer: Offer, terms: ChannelTerms): Requirements {
  const { receiverAuthorizer, withdrawDelay, minDepositAtomic, method } = terms
  return entry(Channel.scheme, offer, {
    ...{ receiverAuthorizer, withdrawDelay, ...offer.network.asset.eip712 },
    ...{ assetTransferMethod: method, minDeposit: minDepositAtomic.toString() },
  })
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
 * A shorter form of an entry. `upto` moves money by Permit2 only, and deposits are made by EIP-3009
 * where the entry names no method, so it may omit that one.
 */
export function brief(accept: Requirements): Requirements {
  const { assetTransferMethod, ...extra } = accept.extra
  const isOmitted =
    accept.scheme === 'upto' ||
    (accept.scheme === Channel.scheme && assetTransferMethod === 'eip3009')
  if (!isOmitted) return accept
  return { ...accept, extra }
}

/** The schemes besides `exact` of which an offer is made. */
export type Making = {
  /** Whether `exact` is offered, too; by default it is. */
  isExact?: boolean
  /** The account that settles `upto`. */
  facilitatorOf?: (offer: Offer) => Address | undefined
  channelOf?: ChannelOf
}

/**
 * `accepts` of offers: every transfer method of every offer, in order. Behind them the offers that may
 * be paid by `upto`, by the account that settles them, and last those that may be paid by channels.
 */
export function accepts(
  offers: readonly Offer[],
  { isExact = true, facilitatorOf, channelOf }: Making = {},
): readonly Requirements[] {
  const exact = offers.flatMap((offer) =>
    isExact ? offer.network.asset.transfer.map((method) => requirements(offer, method)) : [],
  )
  const upto = offers.flatMap((offer) => {
    const facilitator = facilitatorOf?.(offer)
    return facilitator === undefined ? [] : [uptoRequirements(offer, facilitator)]
  })
  const channels = offers.flatMap((offer) => {
    const terms = channelOf?.(offer)
    return terms === undefined ? [] : [channelRequirements(offer, terms)]
  })
  return [...exact, ...upto, ...channels]
}

/** The 402's payload. A pure function of its input, so that routes can cache it. */
export function paymentRequired(input: Omit<PaymentRequired, 'x402Version'>): PaymentRequired {
  const { error, resource, accepts, extensions } = input
  return { x402Version: 2, error, resource, accepts, extensions }
}

/** The payload in the body of a 402, which is a member of its own beside offers of version 1. */
export function inBody(body: Json.JsonObject): Json.JsonObject {
  const whole = Json.member(body, 'x402')
  return Json.isObject(whole) ? whole : body
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

/** A decoded payment payload; it has not been compared with our offers yet. */
export type Parsed = {
  scheme: Scheme
  method: PaymentMethod
  /** The signed fields, without the chain, and for EIP-3009 without the asset. */
  signed: Pick<
    Transfer,
    'payer' | 'payee' | 'amountAtomic' | 'nonce' | 'validAfter' | 'validBefore' | 'signature'
  > & {
    asset?: Address
    spender?: Address
    /** The account that may settle: signed by the scheme `upto`. */
    facilitator?: Address | undefined
  }
  /** Of a channel: the amount is that of `accepted`, and nothing but `voucher` is signed. */
  channel?: ChannelPayload.Read
  /** The network of a payload of version 1 (X402V1.ts), which echoes nothing of the offer. */
  network?: Network['id']
  accepted: Json.JsonObject | undefined
  resource: Json.JsonObject | undefined
  extensions: Json.JsonObject | undefined
  /** `payment-identifier` extension: an idempotency key. */
  identifier: string | undefined
}

/**
 * Decodes `PAYMENT-SIGNATURE`, standard or url-safe base64, or the strictly parsed JSON that
 * facilitators receive. Faults: `invalid_payload`, `invalid_x402_version`.
 */
export function parsePayload(given: string | Json.JsonObject): Parsed | Fault {
  return Json.wellFormed('invalid_payload', 'The payment payload', () =>
    parseObject(typeof given === 'string' ? decodeJson(given, 'either') : given),
  )
}

function parseObject(json: Json.JsonObject): Parsed | Fault {
  if (Json.member(json, 'x402Version') !== 2) {
    return fault('invalid_x402_version', 'x402Version must be 2.')
  }
  const payload = Json.read(json, 'payload', 'object')
  const accepted = Json.optional(json, 'accepted', 'object')
  const isChannel = accepted !== undefined && Json.member(accepted, 'scheme') === Channel.scheme
  if (isChannel || Json.member(payload, 'channelConfig') !== undefined) {
    return { ...ofChannel(ChannelPayload.read(payload), accepted), ...commonOf(json) }
  }
  const authorization = Json.optional(payload, 'authorization', 'object')
  const permit = Json.optional(payload, 'permit2Authorization', 'object')
  const signature = Json.read(payload, 'signature', 'signature')
  const common = commonOf(json)
  if (authorization !== undefined && permit === undefined) {
    const signed = { ...readAuthorization(authorization), signature }
    return { scheme: 'exact', method: 'eip3009', signed, ...common }
  }
  if (permit !== undefined && authorization === undefined) {
    const signed = signedPermit(permit, signature)
    return { scheme: schemeOf(common.accepted, signed), method: 'permit2', signed, ...common }
  }
  throw new Json.JsonError('payload needs either authorization or permit2Authorization')
}

function commonOf(
  json: Json.JsonObject,
): Pick<Parsed, 'accepted' | 'resource' | 'extensions' | 'identifier'> {
  const extensions = Json.optional(json, 'extensions', 'object')
  return {
    accepted: Json.optional(json, 'accepted', 'object'),
    resource: Json.optional(json, 'resource', 'object'),
    extensions,
    identifier: identifier(extensions),
  }
}

/** What a payload of a channel pays: its voucher adds the amount of the offer to what was charged. */
function ofChannel(
  channel: ChannelPayload.Read,
  accepted: Json.JsonObject | undefined,
): Pick<Parsed, 'scheme' | 'method' | 'signed' | 'channel'> {
  const { voucher, signature } = channel
  const { channelId, config, maxAtomic } = voucher
  const amountAtomic = accepted === undefined ? 0n : Json.read(accepted, 'amount', 'uint128')
  const paidAtomic = voucher.kind === 'refund' ? 0n : Amount.least(amountAtomic, maxAtomic)
  const signed = {
    asset: config.token,
    payer: config.payer,
    payee: config.receiver,
    amountAtomic,
    nonce: Channel.nonceOf(channelId, maxAtomic - paidAtomic),
    validAfter: 0n,
    validBefore: Amount.max,
    signature,
  }
  return { scheme: Channel.scheme, method: 'channel', signed, channel }
}

/** The scheme of a Permit2 payload: the one that it accepted, else the one whose proxy may spend. */
function schemeOf(
  accepted: Json.JsonObject | undefined,
  { spender }: Parsed['signed'],
): Parsed['scheme'] {
  const isUpto =
    accepted === undefined
      ? spender === Upto.proxyAddress
      : Json.member(accepted, 'scheme') === 'upto'
  return isUpto ? 'upto' : 'exact'
}

/** The proxy that may spend: that of `upto` where the payer names a facilitator. */
export function spenderOf(isUpto: boolean): Address {
  return isUpto ? Upto.proxyAddress : Permit.proxyAddress
}

/** Specification 2.3 shows fewer members than stock clients send: the signature counts. */
function signedPermit(json: Json.JsonObject, signature: Hex): Parsed['signed'] {
  const permitted = Json.read(json, 'permitted', 'object')
  const witness = Json.read(json, 'witness', 'object')
  const hasFacilitator = Json.member(witness, 'facilitator') !== undefined
  return {
    asset: Json.read(permitted, 'token', 'address'),
    spender: Json.optional(json, 'spender', 'address') ?? spenderOf(hasFacilitator),
    facilitator: Json.optional(witness, 'facilitator', 'address'),
    payer: Json.read(json, 'from', 'address'),
    payee: Json.read(witness, 'to', 'address'),
    amountAtomic: Json.read(permitted, 'amount', 'uint'),
    // Clients write digits, the example of the specification is hex.
    nonce: Json.read(json, 'nonce', 'wordOrUint'),
    validAfter: Json.optional(witness, 'validAfter', 'uint') ?? 0n,
    validBefore: Json.read(json, 'deadline', 'uint'),
    signature,
  }
}

function identifier(extensions: Json.JsonObject | undefined): string | undefined {
  const info = infoOf(extensions, 'payment-identifier')
  const id = info === undefined ? undefined : Json.optional(info, 'id', 'text')
  if (id !== undefined && !/^[A-Za-z0-9_-]{16,128}$/.test(id)) {
    throw new Json.JsonError('payment-identifier id is not 16 to 128 letters, digits, - or _')
  }
  return id
}

/** One of our offers that a payload may be paying. */
export type Match = { offer: Offer; transfer: Transfer }

/** One of our offers that a payload may pay. */
export function matchOffer(
  parsed: Parsed,
  offers: readonly Offer[],
  { takesUpto = false, channelOf }: { takesUpto?: boolean; channelOf?: ChannelOf | undefined } = {},
): readonly Match[] | Fault {
  const { scheme, method, signed, accepted, channel } = parsed
  if (method === 'channel')
    return channel && channelOf ? matchChannel(parsed, channel, { offers, channelOf }) : unsupported
  const isUpto = scheme === 'upto'
  if (isUpto && !takesUpto) return unsupported
  if (isUpto && signed.facilitator === undefined) {
    return fault('invalid_payload', 'The payment payload has no witness.facilitator.')
  }
  const { facilitator } = signed
  let candidates = offers.filter((offer) => isUpto || offer.network.asset.transfer.includes(method))
  if (parsed.network !== undefined) {
    candidates = candidates.filter((offer) => offer.network.id === parsed.network)
    if (candidates.length === 0)
      return fault('invalid_network', 'network is not offered by this route: take one of accepts.')
  }
  if (accepted !== undefined) {
    const refusal = checkAccepted(accepted, offers, scheme)
    if (refusal !== undefined) return refusal
    // Settlement checks whether the facilitator is one of its relayers.
    const termsOf = (offer: Offer) =>
      isUpto && facilitator !== undefined
        ? uptoRequirements(offer, facilitator)
        : requirements(offer, method)
    candidates = candidates.filter((offer) => isCopy(accepted, termsOf(offer)))
    if (candidates.length === 0) return otherRequirements
  }
  const spender = spenderOf(isUpto)
  if (method === 'permit2' && signed.spender !== spender) {
    return fault('invalid_permit2_spender', `spender must be ${spender}.`)
  }
  // The first of them has the terms that a refusal names.
  const [named] = candidates
  candidates = candidates.filter((offer) => offer.payTo === signed.payee)
  if (candidates.length === 0) {
    return otherPayee(method, signed.payee, named?.payTo ?? 'missing')
  }
  candidates = candidates.filter((offer) => offer.amountAtomic === signed.amountAtomic)
  if (candidates.length === 0) {
    return otherAmount(method, signed.amountAtomic, named?.amountAtomic ?? 0n)
  }
  if (method === 'permit2') {
    candidates = candidates.filter((offer) => offer.network.asset.address === signed.asset)
    if (candidates.length === 0) {
      return otherToken(signed.asset, named?.network.asset.address ?? 'missing')
    }
  }
  return candidates.map((offer) => matchOf(parsed, offer))
}

// What is signed and differs from the terms, for us and for a facilitator alike.

export function otherPayee(method: PaymentMethod, signed: Address, payTo: string): Fault {
  const code = method === 'permit2' ? 'invalid_permit2' : 'invalid_exact_evm'
  return fault(`${code}_recipient_mismatch`, Explanation.otherPayee(signed, payTo))
}

export function otherAmount(method: PaymentMethod, signed: bigint, expected: bigint): Fault {
  const code =
    method === 'permit2'
      ? 'permit2_amount_mismatch'
      : 'invalid_exact_evm_payload_authorization_value_mismatch'
  return fault(code, Explanation.otherAmount(signed, expected))
}

export function otherToken(signed: Address | undefined, asset: string): Fault {
  return fault('permit2_token_mismatch', Explanation.otherToken(signed ?? 'missing', asset))
}

function matchOf(parsed: Parsed, offer: Offer): Match {
  const { network } = offer
  return { offer, transfer: transferOf(parsed, network, network.asset.address) }
}

/** The checks of a voucher that need neither its channel nor its signature. */
function matchChannel(
  parsed: Parsed,
  { voucher, depositFault }: ChannelPayload.Read,
  { offers, channelOf }: { offers: readonly Offer[]; channelOf: ChannelOf },
): readonly Match[] | Fault {
  const { accepted } = parsed
  if (accepted === undefined)
    return fault('invalid_payload', 'The payment payload has no accepted.')
  const refusal = checkAccepted(accepted, offers, Channel.scheme)
  if (refusal !== undefined) return refusal
  const uncorrected = withoutState(accepted)
  for (const offer of offers) {
    const terms = channelOf(offer)
    if (terms === undefined) continue
    if (!isCopy(uncorrected, channelRequirements(offer, terms))) continue
    const { chainId, asset } = offer.network
    const expected = { ...terms, chainId, payTo: offer.payTo, asset: asset.address }
    return (
      ChannelPayload.checkConfig(voucher, expected) ??
      ChannelPayload.checkAuthorizer(voucher) ??
      checkBase(voucher, offer.amountAtomic) ??
      ChannelPayload.checkMethod(voucher, terms.method) ??
      depositFault ?? [matchOf(parsed, offer)]
    )
  }
  const isOffered = offers.some((offer) => channelOf(offer) !== undefined)
  return isOffered ? otherRequirements : unsupported
}

/** A refund pays nothing: its voucher is the newest one. */
function checkBase({ kind, maxAtomic }: Channel.Voucher, amountAtomic: bigint): Fault | undefined {
  if (kind === 'refund' || maxAtomic >= amountAtomic) return undefined
  const code = 'invalid_batch_settlement_evm_cumulative_amount_mismatch'
  const detail = `maxClaimableAmount is ${maxAtomic}, and it must be what was charged before and ${amountAtomic}.`
  return fault(code, detail)
}

/** `accepted` without what a 402 adds that corrects a buyer. */
function withoutState(accepted: Json.JsonObject): Json.JsonObject {
  const extra = Json.member(accepted, 'extra')
  if (!Json.isObject(extra)) return accepted
  const { channelState: _, voucherState: __, ...terms } = extra
  return { ...accepted, extra: terms }
}

const otherRequirements = fault(
  'invalid_payment_requirements',
  'accepted is none of the offers of this route: copy one of accepts unchanged.',
)

const unsupported = fault('unsupported_scheme', 'This scheme is not offered.')

function checkAccepted(
  accepted: Json.JsonObject,
  offers: readonly Offer[],
  scheme: Parsed['scheme'],
): Fault | undefined {
  if (Json.member(accepted, 'scheme') !== scheme) return unsupported
  const network = Json.member(accepted, 'network')
  if (!offers.some((offer) => offer.network.id === network)) {
    const ids = [...new Set(offers.map((offer) => offer.network.id))].join(', ')
    return fault(
      'invalid_network',
      `accepted.network is not offered by this route, which offers ${ids}.`,
    )
  }
  return undefined
}

/** Whether `accepted` is an entry of ours, also in its shorter form. */
function isCopy(accepted: Json.JsonObject, ours: Requirements): boolean {
  return equals(accepted, ours) || equals(accepted, brief(ours))
}

/**
 * Whether `accepted` has every member of ours and no other, at both levels. Addresses may differ in
 * case, a safe integer may replace the amount, and null counts as absent.
 */
function equals(accepted: Json.JsonObject, ours: Requirements): boolean {
  const { extra, amount, ...rest } = ours
  const theirs = Json.member(accepted, 'extra')
  if (!Json.isObject(theirs) || !sameMembers(theirs, extra)) return false
  const theirAmount = Json.member(accepted, 'amount')
  const isAmount =
    theirAmount === amount || (Number.isSafeInteger(theirAmount) && String(theirAmount) === amount)
  const { extra: _, amount: __, ...others } = accepted
  return isAmount && sameMembers(others, rest)
}

const addressPattern = /^0x[0-9a-fA-F]{40}$/

function sameMembers(theirs: Json.JsonObject, ours: Requirements['extra']): boolean {
  for (const [name, value] of Object.entries(ours)) {
    const other = Json.member(theirs, name)
    if (other === value) continue
    if (typeof other !== 'string' || typeof value !== 'string') return false
    if (!addressPattern.test(value) || other.toLowerCase() !== value.toLowerCase()) return false
  }
  return Object.keys(theirs).every(
    (name) => Object.hasOwn(ours, name) || Json.member(theirs, name) === undefined,
  )
}

/** What a payload pays on a network, with the ceiling as its amount where the scheme is `upto`. */
export function transferOf(
  { scheme, method, signed, channel }: Pick<Parsed, 'scheme' | 'method' | 'signed' | 'channel'>,
  { id, chainId }: Pick<Network, 'id' | 'chainId'>,
  asset: Address,
): Transfer {
  const { asset: _, spender: __, facilitator, ...fields } = signed
  const voucher = channel?.voucher
  const isUpto = scheme === 'upto' && facilitator !== undefined
  return {
    ...{ method, network: id, chainId, asset, ...fields },
    ...(isUpto ? { upto: { ceilingAtomic: signed.amountAtomic, facilitator } } : {}),
    ...(voucher && { voucher }),
    // Its offer is found by the amount.
    ...(voucher?.kind === 'refund' && { amountAtomic: 0n }),
  }
}

/**
 * Whether the EIP-3009 nonce commits to this resource, as mppx chooses it when `extensions.mppx` is
 * advertised: sha256 over the base64url JCS of accepted, resource and extensions. Such a payment
 * cannot be for another seller.
 */
export function isRouteBound(
  parsed: Parsed,
  expected: { url: string; method?: string | undefined },
): boolean {
  const { accepted, resource, extensions, method, signed } = parsed
  if (method !== 'eip3009' || accepted === undefined || resource === undefined) return false
  const info = infoOf(extensions, 'mppx')
  if (extensions === undefined || info === undefined) return false
  if (Json.member(resource, 'url') !== expected.url) return false
  if (expected.method !== undefined && Json.member(info, 'method') !== expected.method) return false
  return boundNonce(accepted, resource, extensions) === signed.nonce
}

/** The nonce of mppx that commits to these objects. */
export function boundNonce(...objects: readonly Json.JsonObject[]): Hex {
  const text = objects.map((each) => base64url(Json.canonicalize(each))).join('|')
  return `0x${Crypto.sha256(text)}`
}

/** Network that a payload names, even in a malformed one; undefined when there is none. */
export function acceptedNetwork(value: string): string | undefined {
  return Json.readable(() => {
    const json = decodeJson(value, 'either')
    const accepted = Json.optional(json, 'accepted', 'object')
    const network = accepted && Json.member(accepted, 'network')
    if (isCaip2(network)) return network
    const name = Json.text(json, 'network')
    return name === undefined ? undefined : ofV1Name(name)
  })
}

/** `info` of an extension. An extension without an `info` object is ignored. */
export function infoOf(
  extensions: Json.JsonObject | undefined,
  name: string,
): Json.JsonObject | undefined {
  const { info } = Json.child(extensions, name)
  return Json.isObject(info) ? info : undefined
}
