import type { Address, Hex } from 'viem'
import type { Asset, TransferMethod } from './Asset'
import * as Authorization from './Authorization'
import * as Explanation from './Explanation'
import type * as Network from './Network'
import * as Permit from './Permit'
import type { Fault } from './Problem'
import * as Upto from './Upto'

/**
 * A signed stablecoin transfer from payer to payee, of either protocol: EIP-3009
 * `transferWithAuthorization`, or a Permit2 witness transfer through a proxy of x402: that of `exact`,
 * or with `upto` that of `upto`.
 */
export type Transfer = Permit.Signed & { method: TransferMethod; network: Network.Id }

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
export function moneyKey({ network, asset, payer, nonce }: Money): string {
  return `${network}/${asset}/${payer}/${nonce}`.toLowerCase()
}

/** EIP-712 digest that the payer signed. The asset gives the token's signing domain. */
export function digest(
  transfer: Omit<Transfer, 'signature'>,
  asset: Pick<Asset, 'eip712'>,
): Uint8Array {
  if (transfer.method === 'eip3009') return Authorization.digest(transfer, asset)
  const { upto } = transfer
  return upto === undefined ? Permit.digest(transfer) : Upto.digest(transfer, upto)
}

/** The call that settles the transfer: the token's for EIP-3009, a proxy's for Permit2. */
export function call(transfer: Transfer): { to: Address; data: Hex } {
  if (transfer.method === 'eip3009') return Authorization.call(transfer)
  return transfer.upto === undefined ? Permit.call(transfer) : Upto.call(transfer, transfer.upto)
}

/** Decodes a settling call, to recognise external settlements. */
export function parseCall(to: Address, data: string): Authorization.ParsedCall | undefined {
  return Permit.parseCall(to, data) ?? Upto.parseCall(to, data) ?? Authorization.parseCall(to, data)
}

/** Longest time that a signature for us may stay valid from now: specification 8 and a margin. */
export const windowMaxSeconds = 360n

/** Least time in seconds that a settlement needs. */
export const windowMinSeconds = 6n

/**
 * Whether a new payment may be settled at `now` (unix ms): not expired or about to expire, not in
 * the future, not valid for longer than `maxSeconds`, if that is given. A stored payment skips this
 * check, so it is separate from parsing. Faults have x402 reason codes.
 */
export function checkWindow(
  transfer: Pick<Transfer, 'method' | 'validAfter' | 'validBefore'>,
  now: number,
  maxSeconds?: bigint,
): (Fault & { code: WindowCode }) | undefined {
  const seconds = BigInt(Math.floor(now / 1000))
  const [expired, early] = windowCodes[transfer.method]
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
} as const satisfies Record<TransferMethod, readonly [expired: string, early: string]>

type WindowCode = (typeof windowCodes)[TransferMethod][number]
