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
  /** A withdrawal has begun, so the merchant takes no more vouchers. */
  isClosing: boolean
  /** A signed deposit that has not been seen to arrive. */
  deposit: Deposit | undefined
  /** Signed payments whose ends are not known, the newest last. */
  sent: readonly Sent[]
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
}

/** What an answer says about a payment. */
export type Reply = {
  /** The content of `PAYMENT-RESPONSE`. */
  settled: Json.JsonObject | undefined
  /** The payload of a 402, and further entries of its body. */
  required: Json.JsonObject | undefined
  further?: Json.JsonObject | undefined
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

/** What is left for further requests. */
export function restOf({
  balanceAtomic,
  chargedAtomic,
}: Pick<State, 'balanceAtomic' | 'chargedAtomic'>) {
  return balanceAtomic > chargedAtomic ? balanceAtomic - chargedAtomic : 0n
}

type Signing = { privateKey: Uint8Array; now: number; random: Uint8Array }

/** Signs a deposit. `now` in unix ms; `random` are 32 bytes that were never used before. */
export function signDeposit(
  { config, network }: Pick<State, 'config' | 'network'>,
  { method, chainId, asset, source }: Terms.Terms,
  amountAtomic: bigint,
  { privateKey, now, random }: Signing,
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
  const common = { method, amountAtomic, until }
  if (method === 'permit2') {
    const permit2Authorization = {
      ...{ from: config.payer, spender: Channel.permit2CollectorAddress },
      permitted: { token: config.token, amount: String(amountAtomic) },
      ...{ nonce: String(BigInt(salt)), deadline: String(until) },
      ...{ witness: { channelId }, signature },
    }
    return { ...common, nonce: salt, authorization: { permit2Authorization } }
  }
  const erc3009Authorization = { validAfter: '0', validBefore: String(until), salt, signature }
  const nonce = Channel.depositNonce(channelId, salt)
  return { ...common, nonce, authorization: { erc3009Authorization } }
}

/** Signs the x402 payment of a request, or with `refund` the request for what is left. */
export function sign(
  state: State,
  { source, amountAtomic, chainId }: Terms.Terms,
  privateKey: Uint8Array,
  { deposit, refund }: { deposit?: Deposit | undefined; refund?: { amountAtomic?: bigint } },
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

/** The channel without a payment whose end is known. */
export function without(state: State, { request }: Pick<Sent, 'request'>): State {
  return { ...state, sent: state.sent.filter((each) => each.request !== request) }
}

/** The channel after a charge, or what is wrong with it. Nothing else of the answer is believed. */
export function settle(state: State, sent: Sent, settled: Json.JsonObject) {
  const { amountAtomic, hasDeposit } = sent
  return Terms.readable((): State | { fault: string } => {
    const extra = Json.optional(settled, 'extra', 'object') ?? {}
    const charge = Json.optional(extra, 'chargedAmount', 'uint') ?? 0n
    const after = Json.optional(extra, 'channelState', 'object') ?? {}
    const stated = Json.optional(after, 'chargedCumulativeAmount', 'uint')
    const chargedAtomic = state.chargedAtomic + charge
    if (charge > amountAtomic)
      return { fault: `it says that it charged ${charge} of at most ${amountAtomic}` }
    // An answer that is repeated is counted already.
    if (stated === state.chargedAtomic) return without(state, sent)
    if (stated !== undefined && stated !== chargedAtomic)
      return { fault: `it says that ${stated} are charged in all, and not ${chargedAtomic}` }
    const arrived = (hasDeposit && state.deposit?.amountAtomic) || 0n
    const balanceAtomic = state.balanceAtomic + arrived
    const deposit = hasDeposit ? undefined : state.deposit
    return { ...without(state, sent), chargedAtomic, balanceAtomic, deposit }
  })
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

/** What a 402 says about a voucher; undefined when another one would be refused, too. */
export function correctionOf(state: State, { required, further }: Reply) {
  const code = required && Json.member(required, 'error')
  if (required === undefined || typeof code !== 'string') return undefined
  if (unfunded.includes(code)) return { kind: 'balance' } as const
  if (!corrective.includes(code)) return undefined
  const terms = termsOf(state, required, further)
  return terms && ({ kind: 'charged', extra: extraOf(terms) } as const)
}

/** The entry of a 402 for this very channel. */
export function termsOf(state: State, required: Json.JsonObject, further?: Json.JsonObject) {
  const id = idOf(state)
  const { payer, salt } = state.config
  return Terms.ofRequired(required, further).find((terms) => {
    if (terms.scheme !== 'channel' || terms.network !== state.network) return false
    return idOf({ network: terms.network, config: configOf(terms, payer, Number(salt)) }) === id
  })
}

function extraOf({ source }: Terms.Terms): Json.JsonObject {
  const { extra } = source.kind === 'x402' ? source.accepted : {}
  return Json.isObject(extra) ? extra : {}
}

/**
 * The channel by the server's state of it, or what is wrong with that. It counts only with a voucher of
 * our own, and above what is claimed; without one, what is claimed counts.
 */
export function correct(
  state: State,
  extra: Json.JsonObject,
  { balanceAtomic, claimedAtomic }: Pick<Channel.OnChain, 'balanceAtomic' | 'claimedAtomic'>,
): State | { fault: string } {
  const shown = Terms.readable(() => {
    const voucher = Json.optional(extra, 'voucherState', 'object') ?? {}
    const channel = Json.optional(extra, 'channelState', 'object') ?? {}
    return {
      charged: Json.optional(channel, 'chargedCumulativeAmount', 'uint'),
      signed: Json.optional(voucher, 'signedMaxClaimable', 'uint'),
      signature: Json.optional(voucher, 'signature', 'text'),
    }
  })
  if (shown === undefined) return { fault: 'its state of the channel cannot be read' }
  const { charged, signed, signature } = shown
  const known = { ...state, balanceAtomic }
  if (charged === undefined || signed === undefined || signature === undefined)
    return { ...known, chargedAtomic: claimedAtomic }
  if (charged > signed || signed > Channel.amountMax)
    return { fault: `it shows a charge of ${charged} by a voucher of ${signed}` }
  if (charged < claimedAtomic)
    return { fault: `it shows a charge of ${charged}, and ${claimedAtomic} are claimed` }
  const chainId = Network.chainIdOf(state.network) ?? 0
  const signer = Crypto.recover(Channel.voucherDigest(chainId, idOf(state), signed), signature)
  if (signer !== state.config.payerAuthorizer)
    return { fault: 'it shows a voucher that this wallet has not signed' }
  return { ...known, chargedAtomic: charged }
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
