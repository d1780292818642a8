import type { Address, Hex } from 'viem'
import * as Abi from './Abi'
import { zero } from './Address'
import type { Asset, PaymentMethod } from './Asset'
import * as Channel from './Channel'
import * as Explanation from './Explanation'
import * as Json from './Json'
import type * as Network from './Network'
import * as Permit from './Permit'
import type { Fault } from './Problem'
import * as Upto from './Upto'

/**
 * EIP-3009 has `transferWithAuthorization`, and `receiveWithAuthorization`, which only its payee
 * can call. Both use the nonce. https://eips.ethereum.org/EIPS/eip-3009
 */

const parameters = 'address,address,uint256,uint256,uint256,bytes32'
const selectorVrs = Abi.selector(`transferWithAuthorization(${parameters},uint8,bytes32,bytes32)`)
const selectorBytes = Abi.selector(`transferWithAuthorization(${parameters},bytes)`)
const receive = Abi.method<[words: Hex]>(
  `receiveWithAuthorization(${parameters},uint8,bytes32,bytes32)`,
)

const signed =
  '(address from,address to,uint256 value,uint256 validAfter,uint256 validBefore,bytes32 nonce)'
const transferType = Abi.hashOf(`TransferWithAuthorization${signed}`)
const receiveType = Abi.hashOf(`ReceiveWithAuthorization${signed}`)

/**
 * A signed stablecoin transfer from payer to payee, of either protocol: EIP-3009
 * `transferWithAuthorization`, or a Permit2 witness transfer through a proxy of x402: that of `exact`,
 * or with `upto` that of `upto`. With method `channel` money of a payment channel, which moves at a
 * claim: `amountAtomic` is the most that its voucher adds, and `payee` the receiver.
 */
export type Transfer = Permit.Signed & {
  method: PaymentMethod
  network: Network.Id
  /** What a credential presents of a channel; a stored payment has none. */
  voucher?: Channel.Voucher
}

/**
 * The identity of the money: one of these settles at most once. The signature is not part of it,
 * because its bytes can be changed without invalidating it.
 */
export type Money = Pick<Transfer, 'network' | 'asset' | 'payer' | 'nonce'>

/** The transfer that the payer signed; with `upto`, with the whole ceiling. */
export function atCeiling(transfer: Transfer): Transfer {
  const { upto } = transfer
  return upto === undefined ? transfer : { ...transfer, amountAtomic: upto.ceilingAtomic }
}

/**
 * Key of the money for maps, independent of the case of its hex digits. No other function encodes
 * it.
 */
export function moneyKey(money: Money): string {
  const { network, asset, payer, nonce } = money
  return `${network}/${asset}/${payer}/${nonce}`.toLowerCase()
}

/** Reads the signed members of EIP-3009, as both protocols send them. Throws a JsonError. */
export function readAuthorization(json: Json.JsonObject) {
  return {
    payer: Json.read(json, 'from', 'address'),
    payee: Json.read(json, 'to', 'address'),
    amountAtomic: Json.read(json, 'value', 'uint'),
    nonce: Json.read(json, 'nonce', 'word'),
    validAfter: Json.read(json, 'validAfter', 'uint'),
    validBefore: Json.read(json, 'validBefore', 'uint'),
  }
}

/** What is signed of a transfer by EIP-3009. */
type Signing = Omit<Permit.Signed, 'signature'>

/** EIP-712 digest that the payer signed. The asset gives the token's signing domain. */
export function digest(
  transfer: Omit<Transfer, 'signature'>,
  asset: Pick<Asset, 'eip712'>,
): Uint8Array {
  if (transfer.method === 'eip3009') {
    return authorizationDigest(transferType, transfer, asset)
  }
  const { upto, voucher } = transfer
  if (transfer.method === 'channel') {
    if (voucher === undefined) throw new Error('a stored payment of a channel has no digest')
    return Channel.voucherDigest(transfer.chainId, voucher.channelId, voucher.maxAtomic)
  }
  return upto === undefined ? Permit.digest(transfer) : Upto.digest(transfer, upto)
}

/** The only key whose signature counts, if it is one of a key. */
export function signerOf({ payer, voucher }: Pick<Transfer, 'payer' | 'voucher'>): Address {
  return voucher === undefined ? payer : voucher.config.payerAuthorizer
}

/** Reason codes for a signature that is not the signer's. */
export const signatureCodes = {
  eip3009: 'invalid_exact_evm_signature',
  permit2: 'invalid_permit2_signature',
  channel: 'invalid_batch_settlement_evm_voucher_signature',
} as const satisfies Record<PaymentMethod, string>

/** EIP-712 digest that the payer signs for `receiveCall`. */
export function receiveDigest(transfer: Signing, asset: Pick<Asset, 'eip712'>): Uint8Array {
  return authorizationDigest(receiveType, transfer, asset)
}

function authorizationDigest(
  typeHash: string,
  transfer: Signing,
  { eip712 }: Pick<Asset, 'eip712'>,
): Uint8Array {
  const domain = Abi.domainSeparator(transfer.chainId, transfer.asset, eip712)
  return Abi.typedDigest(domain, typeHash + words(transfer))
}

/**
 * The call that settles the transfer: a proxy's for Permit2. For EIP-3009 the token's, by its v, r,
 * s overload for a 65-byte signature, which every such token has, else by the bytes overload.
 */
export function call(transfer: Transfer): { to: Address; data: Hex } {
  const { method, upto, asset, signature } = transfer
  if (method === 'permit2') {
    return upto === undefined ? Permit.call(transfer) : Upto.call(transfer, upto)
  }
  const data =
    signature.length === 132
      ? selectorVrs + words(transfer) + Permit.vrs(signature)
      : selectorBytes + words(transfer) + Abi.uint(7 * 32) + Abi.dynamicBytes(signature)
  return { to: asset, data: `0x${data.toLowerCase()}` }
}

/** The payee's call by EIP-3009; the token refuses any other caller. `signature` has 65 bytes. */
export function receiveCall(transfer: Permit.Signed): { to: Address; data: Hex } {
  return receive(transfer.asset, `0x${words(transfer)}${Permit.vrs(transfer.signature)}`)
}

/** Decodes a settling call, to recognise external settlements. */
export function parseCall(to: Address, data: string): Permit.ParsedCall | undefined {
  const permitted = Permit.parseCall(to, data) ?? Upto.parseCall(to, data)
  if (permitted !== undefined) return permitted
  const selector = data.slice(2, 10).toLowerCase()
  if (selector !== selectorVrs && selector !== selectorBytes) return undefined
  return Permit.parseWords('eip3009', to, data.slice(10).toLowerCase(), members)
}

/** In the order of `words`. */
const members = ['payer', 'payee', 'amountAtomic', 'validAfter', 'validBefore', 'nonce']

function words({ payer, payee, amountAtomic, validAfter, validBefore, nonce }: Signing): string {
  return Abi.encode(payer, payee, amountAtomic, validAfter, validBefore, nonce)
}

/** A wallet that may not be deployed yet: the call that deploys it, and its own signature. */
type Wrapper = { factory: Address; data: Hex; signature: Hex }

const wrapperMagic = '6492'.repeat(16)

/** The ERC-6492 wrapper of a signature by EIP-3009; no other method takes one. */
export function wrapperOf({
  method,
  signature,
}: Pick<Transfer, 'method' | 'signature'>): Wrapper | undefined {
  return method === 'eip3009' ? wrapperIn(signature) : undefined
}

/**
 * The ERC-6492 wrapper of a signature; undefined for one without it, and for one that names no
 * factory. https://eips.ethereum.org/EIPS/eip-6492
 */
export function wrapperIn(signature: Hex): Wrapper | undefined {
  const digits = signature.slice(2).toLowerCase()
  if (!digits.endsWith(wrapperMagic)) return undefined
  const body = digits.slice(0, -wrapperMagic.length)
  const factory = Abi.addressAt(body, 0)
  const data = Abi.bytesAt(body, Abi.numberAt(body, 32))
  const inner = Abi.bytesAt(body, Abi.numberAt(body, 64))
  if (factory === undefined || factory === zero) return undefined
  if (data === undefined || inner === undefined || inner === '0x') return undefined
  return { factory, data, signature: inner }
}

/** Longest time that a signature for us may stay valid from now: specification 8 and a margin. */
export const windowMaxSeconds = 360n

/** Least time in seconds that a settlement needs. */
export const windowMinSeconds = 6n

type Window = Pick<Transfer, 'method' | 'validAfter' | 'validBefore'>

/**
 * Whether a new payment may be settled at `now` (unix ms): a voucher always, another one if not
 * expired or about to expire, not in the future, not valid for longer than `maxSeconds`, if that is
 * given. A stored payment skips this check, so it is separate from parsing. Faults have x402 reason
 * codes.
 */
export function checkWindow(
  transfer: Window,
  now: number,
  maxSeconds?: bigint,
): (Fault & { code: WindowCode }) | undefined {
  if (transfer.method === 'channel') return undefined
  return checkTime(transfer, now, windowCodes[transfer.method], maxSeconds)
}

/** The time of a transfer or of a deposit, with the codes of its faults. */
export function checkTime<Code extends string>(
  transfer: Window,
  now: number,
  [expired, early]: readonly [expired: Code, early: Code],
  maxSeconds?: bigint,
): (Fault & { code: Code }) | undefined {
  const seconds = BigInt(Math.floor(now / 1000))
  if (transfer.validBefore < seconds + windowMinSeconds) {
    return { code: expired, detail: Explanation.expired(transfer, seconds) }
  }
  if (maxSeconds !== undefined && transfer.validBefore > seconds + maxSeconds) {
    const detail =
      `The authorization must expire within ${maxSeconds} seconds: it ends at ` +
      `${transfer.validBefore}, and the time here is ${seconds}.`
    return { code: expired, detail }
  }
  if (transfer.validAfter > seconds) {
    return { code: early, detail: Explanation.early(transfer, seconds) }
  }
  return undefined
}

const windowCodes = {
  eip3009: [
    'invalid_exact_evm_payload_authorization_valid_before',
    'invalid_exact_evm_payload_authorization_valid_after',
  ],
  permit2: ['permit2_deadline_expired', 'permit2_not_yet_valid'],
} as const satisfies Record<
  Exclude<PaymentMethod, 'channel'>,
  readonly [expired: string, early: string]
>

type WindowCode = (typeof windowCodes)[keyof typeof windowCodes][number]
