import type { Address } from 'viem'
import { zero } from './Address'
import type { TransferMethod } from './Asset'
import * as Channel from './Channel'
import * as ChannelPayload from './ChannelPayload'
import * as Facilitation from './Facilitation'
import * as Json from './Json'
import { checkNetwork } from './PaymentTerms'
import { type Fault, fault, isFault } from './Problem'

/**
 * The request of a resource server to a facilitator about a payment channel, for `/verify` and `/settle`
 * alike. Its checks that need no chain are in the order of the reference facilitator.
 */

export type ChannelRequest = Exclude<ReturnType<typeof read>, Fault>

type Asked =
  | ({ type: 'presented'; refund: Refund | undefined } & Presented)
  | { type: 'claim'; claim: Claim }
  | { type: 'settle'; receiver: Address; token: Address }
  | { type: 'other' }

/** What a buyer presented to the resource server. */
export type Presented = ChannelPayload.Read & {
  /** As it was sent, because callers compare it as text. */
  payer: string
}

export type Claim = ReturnType<typeof readClaim>
export type Refund = ReturnType<typeof readRefund>

/** The reference claims as many at once. */
const rowsMax = 100

/** Reads what `Facilitation.parse` found to be about a channel. Faults are those of `parse`. */
export function read({ payload, terms }: Facilitation.OfChannel) {
  if (Json.member(payload, 'x402Version') !== 2) {
    return { code: 'invalid_x402_version', detail: 'x402Version must be 2.' }
  }
  const of = Json.wellFormed('invalid_payload', 'The payment payload', () => ({
    accepted: Facilitation.readAccepted(Json.read(payload, 'accepted', 'object')),
    asked: readAsked(Json.read(payload, 'payload', 'object')),
    extensions: Json.optional(payload, 'extensions', 'object'),
  }))
  if (isFault(of)) return of
  const required = Json.wellFormed('invalid_payment_requirements', 'paymentRequirements', () => ({
    requirements: Facilitation.readRequirements('exact', terms),
    terms: readTerms(Json.optional(terms, 'extra', 'object') ?? {}),
  }))
  return isFault(required) ? required : { ...of, ...required }
}

function readTerms(extra: Json.JsonObject) {
  const authorizer = Json.optional(extra, 'receiverAuthorizer', 'address')
  const delay = Json.optional(extra, 'withdrawDelay', 'uint')
  const method = Json.optional(extra, 'assetTransferMethod', 'text')
  // Any other text means EIP-3009 for the reference, too.
  const by: TransferMethod = method === 'permit2' ? method : 'eip3009'
  return {
    receiverAuthorizer: authorizer === zero ? undefined : authorizer,
    withdrawDelay: delay === undefined ? undefined : Number(delay),
    /** Of deposits; undefined: any. */
    method: method ? by : undefined,
  }
}

function readAsked(inner: Json.JsonObject): Asked {
  switch (Json.member(inner, 'type')) {
    case 'deposit':
    case 'voucher':
    case 'refund': {
      const payer = Json.read(Json.read(inner, 'channelConfig', 'object'), 'payer', 'text')
      const isOrder = ['amount', 'refundNonce', 'claims'].every((name) =>
        Object.hasOwn(inner, name),
      )
      const read = ChannelPayload.read(inner)
      const refund = read.voucher.kind === 'refund' && isOrder ? readRefund(inner) : undefined
      return { type: 'presented', ...read, payer, refund }
    }
    case 'claim':
      return { type: 'claim', claim: readClaim(inner) }
    case 'settle': {
      const receiver = Json.read(inner, 'receiver', 'address')
      return { type: 'settle', receiver, token: Json.read(inner, 'token', 'address') }
    }
    default:
      return { type: 'other' }
  }
}

function readRefund(inner: Json.JsonObject) {
  return {
    /** The most. */
    amountAtomic: Json.read(inner, 'amount', 'uint128'),
    nonce: Json.read(inner, 'refundNonce', 'uint'),
    signature: Json.optional(inner, 'refundAuthorizerSignature', 'signature'),
    /** Goes before it, where that has rows. */
    claim: readClaim(inner),
  }
}

/** `signature`: of the receiver's authorizer, if the resource server had it. */
function readClaim(inner: Json.JsonObject) {
  const list = Json.member(inner, 'claims')
  if (!Array.isArray(list) || list.length > rowsMax || !list.every(Json.isObject)) {
    throw new Json.JsonError(`claims is not an array of at most ${rowsMax} objects`)
  }
  const rows = list.map((entry): Channel.ClaimRow => {
    const voucher = Json.read(entry, 'voucher', 'object')
    return {
      config: ChannelPayload.readConfig(Json.read(voucher, 'channel', 'object')),
      maxAtomic: Json.read(voucher, 'maxClaimableAmount', 'uint128'),
      signature: Json.read(entry, 'signature', 'signature'),
      chargedAtomic: Json.read(entry, 'totalClaimed', 'uint128'),
    }
  })
  return { rows, signature: Json.optional(inner, 'claimAuthorizerSignature', 'signature') }
}

/** The checks of `/verify` that precede all others. */
export function checkScheme(request: ChannelRequest): Fault | undefined {
  if (request.accepted.scheme !== Channel.scheme) {
    const detail = `accepted.scheme is not "${Channel.scheme}".`
    return fault('invalid_batch_settlement_evm_scheme', detail)
  }
  return checkNetwork(request, 'invalid_batch_settlement_evm_network_mismatch')
}

/** Whether a channel is the one that its resource server requires. */
export function checkChannel(
  { requirements: { payTo, asset }, terms }: ChannelRequest,
  { voucher }: Presented,
  chainId: number,
): Fault | undefined {
  return ChannelPayload.checkConfig(voucher, { ...terms, chainId, payTo, asset })
}

/** As `checkChannel`, and whether its deposit is well made. */
export function checkTerms(
  request: ChannelRequest,
  presented: Presented,
  { chainId, now }: { chainId: number; now: number },
): Fault | undefined {
  const { requirements, terms } = request
  const { name, version } = requirements
  const { voucher, depositFault } = presented
  const { deposit } = voucher
  const other = checkChannel(request, presented, chainId)
  if (other !== undefined || deposit === undefined) return other
  const method = terms.method ?? deposit.by.method
  const unlike = ChannelPayload.checkMethod(voucher, method) ?? depositFault
  if (unlike !== undefined) return unlike
  if (method === 'eip3009' && (name === undefined || version === undefined)) {
    return fault(
      'invalid_batch_settlement_evm_missing_eip712_domain',
      'extra.name and extra.version of the token are missing.',
    )
  }
  return ChannelPayload.checkWindow(deposit, now)
}
