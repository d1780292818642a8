import type { Address, Hex } from 'viem'
import * as Channel from '../../protocol/Channel'
import * as ChannelPayload from '../../protocol/ChannelPayload'
import * as Crypto from '../../protocol/Crypto'
import * as Json from '../../protocol/Json'
import * as Network from '../../protocol/Network'
import { envelope } from './Credential'
import * as Terms from './Terms'

/**
 * The buyer's side of a payment channel: what it knows, what it signs, and what it believes of an
 * answer. A voucher is never above what was charged so far and the price of the request.
 */

/** A channel as its buyer keeps it. Losing it costs nothing: chain and merchant have it, too. */
export type State = {
  network: Network.Id
  config: Channel.Config
  /** A paid URL of the merchant, where a refund is asked for. */
  url: string
  /** What was charged in all, as far as the answers are right. */
  chargedAtomic: bigint
  balanceAtomic: bigint
  /** It signs no more vouchers: a withdrawal has begun, or calls of it were given up. */
  isClosing: boolean
  /** A signed deposit that has not been seen to arrive. */
  deposit: Deposit | undefined
  /** Payments whose vouchers may be charged and are not counted yet, the newest last. */
  sent: readonly Sent[]
  /** The request that its user is at, while one has it. */
  current?: string | undefined
}

export type Deposit = {
  method: Terms.Terms['method']
  amountAtomic: bigint
  /** Of the signed transfer. */
  nonce: Hex
  /** Unix seconds after which it cannot arrive. */
  until: number
  authorization: Json.JsonObject
}

export type Sent = {
  /** Identifies the request that it pays. */
  request: string
  idempotencyKey: string
  /** JSON of the x402 payment: the only form in which it is sent. */
  payment: string
  amountAtomic: bigint
  hasDeposit: boolean
  /** The highest sum that vouchers of the request have signed. */
  signedAtomic: bigint
  /** What corrections showed as charged for the request. */
  takenAtomic: bigint
  /** Another one may take its place. */
  isRefused: boolean
}

/** What an answer says about a payment. */
export type Reply = {
  /** The content of `PAYMENT-RESPONSE`. */
  settled: Json.JsonObject | undefined
  /** The `PaymentRequired` object of a 402. */
  required: Json.JsonObject | undefined
  /** `served`: with an answer. `refused`: not charged. Else the end is unknown. */
  end: 'served' | 'refused' | 'unknown'
}

/** The channel of terms; `index` tells channels with the same merchant apart. */
export function configOf(terms: Terms.Terms, payer: Address, index: number): Channel.Config {
  const { receiverAuthorizer, withdrawDelay } = terms.channel ?? noChannel()
  const [receiver, token] = [terms.payTo, terms.asset.address]
  const salt: Hex = `0x${index.toString(16).padStart(64, '0')}`
  return { payer, payerAuthorizer: payer, receiver, receiverAuthorizer, token, withdrawDelay, salt }
}

function noChannel(): never {
  throw new Error('the terms have no channel')
}

export function idOf({ config, network }: Pick<State, 'config' | 'network'>): Hex {
  return Channel.idOf(config, Network.chainIdOf(network) ?? 0)
}

type Sums = Pick<State, 'balanceAtomic' | 'chargedAtomic'>

/** What is left for further requests. */
export function restOf({ balanceAtomic, chargedAtomic }: Sums): bigint {
  return balanceAtomic > chargedAtomic ? balanceAtomic - chargedAtomic : 0n
}

/** Signs a deposit. `now` in unix ms; `random` are 32 bytes that were never used before. */
export function signDeposit(
  { config, network }: Pick<State, 'config' | 'network'>,
  { method, chainId, asset, source }: Terms.Terms,
  amountAtomic: bigint,
  { privateKey, now, random }: { privateKey: Uint8Array; now: number; random: Uint8Array },
): Deposit {
  const seconds = source.kind === 'x402' ? source.timeoutSeconds : Terms.timeoutSecondsMax
  const until = Math.floor(now / 1000) + seconds
  const [salt, validBefore] = [Crypto.hex(random), BigInt(until)]
  const by: Channel.Deposit['by'] =
    method === 'permit2'
      ? { method, nonce: salt, deadline: validBefore, signature: '0x' }
      : { method, validAfter: 0n, validBefore, salt, signature: '0x' }
  const digest = ChannelPayload.depositDigest({ config, chainId }, { amountAtomic, by }, asset)
  const signature = Crypto.sign(digest, privateKey)
  const channelId = idOf({ config, network })
  const signed = { method, amountAtomic, until }
  if (method === 'eip3009') {
    const erc3009Authorization = { validAfter: '0', validBefore: String(until), salt, signature }
    const nonce = Channel.depositNonce(channelId, salt)
    return { ...signed, nonce, authorization: { erc3009Authorization } }
  }
  const permit2Authorization = {
    ...{ from: config.payer, spender: Channel.permit2CollectorAddress },
    permitted: { token: config.token, amount: String(amountAtomic) },
    ...{ nonce: String(BigInt(salt)), deadline: String(until), witness: { channelId }, signature },
  }
  return { ...signed, nonce: salt, authorization: { permit2Authorization } }
}

/** The part that is asked for; undefined: all that is left. */
type Refund = { amountAtomic: bigint | undefined }

/** Signs the x402 payment of a request, or with `refund` the request for what is left. */
export function sign(
  state: State,
  { source, amountAtomic, chainId }: Terms.Terms,
  privateKey: Uint8Array,
  { deposit, refund }: { deposit?: Deposit | undefined; refund?: Refund },
): Json.JsonObject {
  if (source.kind !== 'x402') return noChannel()
  const { config, chargedAtomic } = state
  const maxAtomic = chargedAtomic + (refund ? 0n : amountAtomic)
  const channelId = idOf(state)
  const signature = Crypto.sign(Channel.voucherDigest(chainId, channelId, maxAtomic), privateKey)
  const part = refund?.amountAtomic
  return envelope(source, {
    type: refund ? 'refund' : deposit ? 'deposit' : 'voucher',
    channelConfig: config,
    voucher: { channelId, maxClaimableAmount: String(maxAtomic), signature },
    ...(deposit && {
      deposit: { amount: String(deposit.amountAtomic), authorization: deposit.authorization },
    }),
    ...(part !== undefined && { amount: String(part) }),
  })
}

/** What an answer changes. */
export type Judged = {
  next: State
  /** What was charged; undefined: the answer does not say. */
  chargedAtomic?: bigint
  /** What is wrong with the answer. */
  fault?: string | undefined
  /** Another voucher may be signed. */
  isCorrected?: boolean
}

/** The channel after a payment was refused. Its voucher may be charged all the same. */
export function refuse(state: State, sent: Sent | undefined): State {
  const mark = (each: Sent) =>
    each.request === sent?.request ? { ...each, isRefused: true } : each
  return { ...state, sent: state.sent.map(mark) }
}

/** The channel without a payment whose charge is counted. */
function without(state: State, sent: Sent): State {
  return { ...state, sent: state.sent.filter(({ request }) => request !== sent.request) }
}

/** The channel after an answer whose charge is not known. The same request may be bought again. */
export function serve(state: State, sent: Sent): State {
  const { sent: others } = without(state, sent)
  return { ...state, sent: [{ ...sent, request: sent.idempotencyKey }, ...others] }
}

/**
 * The channel after a correction. What was charged more counts for a request whose voucher covers it, and
 * for that of the answer only where no other one explains it.
 */
export function charge(state: State, sent: Sent | undefined, chargedAtomic: bigint): State {
  const moreAtomic = chargedAtomic - state.chargedAtomic
  const covering = state.sent.filter(({ signedAtomic }) => signedAtomic >= chargedAtomic)
  const others = covering.filter(({ request }) => request !== sent?.request)
  const [taken] = moreAtomic > 0n ? [...others, ...covering] : []
  const count = (each: Sent) =>
    each === taken ? { ...each, takenAtomic: each.takenAtomic + moreAtomic } : each
  return { ...state, chargedAtomic, sent: state.sent.map(count) }
}

/** The channel after an answer and its charge. Nothing else of the answer is believed. */
export function settle(state: State, sent: Sent, settled: Json.JsonObject): Judged {
  const { amountAtomic, hasDeposit, signedAtomic } = sent
  const next = without(state, sent)
  const doubt = (fault: string): Judged => ({ next: serve(state, sent), fault })
  const judged = Json.readable((): Judged => {
    const extra = Json.optional(settled, 'extra', 'object') ?? {}
    const charge = Json.optional(extra, 'chargedAmount', 'uint') ?? 0n
    const after = Json.optional(extra, 'channelState', 'object') ?? {}
    const stated = Json.optional(after, 'chargedCumulativeAmount', 'uint')
    const chargedAtomic = state.chargedAtomic + charge
    if (charge > amountAtomic)
      return doubt(`it says that it charged ${charge} of at most ${amountAtomic}`)
    // An answer that is repeated is counted already.
    if (stated !== undefined && stated <= state.chargedAtomic) return { next, chargedAtomic: 0n }
    if (stated !== undefined && stated !== chargedAtomic)
      return doubt(`it says that ${stated} are charged in all, and not ${chargedAtomic}`)
    if (chargedAtomic > signedAtomic)
      return doubt(`it says that it charged ${chargedAtomic} by a voucher of ${signedAtomic}`)
    // The deposit itself is kept: only the chain shows that it has arrived.
    const arrived = (hasDeposit && state.deposit?.amountAtomic) || 0n
    const balanceAtomic = state.balanceAtomic + arrived
    return { next: { ...next, chargedAtomic, balanceAtomic }, chargedAtomic: charge }
  })
  return judged ?? doubt('its PAYMENT-RESPONSE cannot be read')
}

/** Codes of the 402 that shows the server's state of the channel. */
const corrective = [
  'invalid_batch_settlement_evm_cumulative_amount_mismatch',
  'invalid_batch_settlement_evm_cumulative_below_claimed',
]
/** Codes after which the chain may show another balance than the buyer knows. */
const unfunded = [
  'invalid_batch_settlement_evm_channel_not_found',
  'invalid_batch_settlement_evm_cumulative_exceeds_balance',
]

/**
 * What a 402 says about a voucher: another balance, or the server's state of the channel. Undefined when
 * another voucher would be refused, too.
 */
export function correctionOf(state: State, { required = {} }: Reply) {
  const code = Json.text(required, 'error') ?? ''
  if (unfunded.includes(code)) return 'balance'
  return corrective.includes(code) ? termsOf(state, required)?.channel?.extra : undefined
}

/** The entry of a 402 for this very channel. */
export function termsOf(state: State, required: Json.JsonObject): Terms.Terms | undefined {
  const id = idOf(state)
  const { payer, salt } = state.config
  return Terms.ofRequired(required).find((terms) => {
    if (terms.scheme !== 'channel' || terms.network !== state.network) return false
    return idOf({ network: terms.network, config: configOf(terms, payer, Number(salt)) }) === id
  })
}

/**
 * What was charged by the server's state of the channel, or what is wrong with that. It counts only with a
 * voucher of our own, and above what is claimed; without one, what is claimed counts.
 */
export function correct(
  state: State,
  extra: Json.JsonObject,
  claimedAtomic: bigint,
): bigint | string {
  const shown = Json.readable(() => {
    const voucher = Json.optional(extra, 'voucherState', 'object') ?? {}
    const channel = Json.optional(extra, 'channelState', 'object') ?? {}
    return {
      charged: Json.optional(channel, 'chargedCumulativeAmount', 'uint'),
      signed: Json.optional(voucher, 'signedMaxClaimable', 'uint'),
      signature: Json.optional(voucher, 'signature', 'text'),
    }
  })
  if (shown === undefined) return 'its state of the channel cannot be read'
  const { charged, signed, signature } = shown
  if (charged === undefined || signed === undefined || signature === undefined) return claimedAtomic
  if (charged > signed || signed > Channel.amountMax)
    return `it shows a charge of ${charged} by a voucher of ${signed}`
  if (charged < claimedAtomic)
    return `it shows a charge of ${charged}, and ${claimedAtomic} are claimed`
  const chainId = Network.chainIdOf(state.network) ?? 0
  const signer = Crypto.recover(Channel.voucherDigest(chainId, idOf(state), signed), signature)
  if (signer !== state.config.payerAuthorizer)
    return 'it shows a voucher that this wallet has not signed'
  return charged
}

/** Texts of amounts in the JSON of a state. */
export function encode(state: State): string {
  return JSON.stringify(state, (_, value) => (typeof value === 'bigint' ? String(value) : value))
}

/** The state of the channel with this id; undefined for any other text: it can be had again. */
export function decode(text: string, id: Hex): State | undefined {
  try {
    const state: State = JSON.parse(text, (name, value) =>
      name.endsWith('Atomic') ? BigInt(value) : value,
    )
    return idOf(state) === id ? state : undefined
  } catch {
    return undefined
  }
}
