import type { Address } from 'viem'
import * as Amount from './Amount'
import type { Asset, PaymentMethod } from './Asset'
import * as Channel from './Channel'
import type * as Network from './Network'
import * as Permit from './Permit'

/**
 * Texts of refusals, with what was expected and what was found. They contain only what the payer
 * sent and what the chain publishes.
 */

type Unit = Pick<Asset, 'symbol' | 'decimals'>
type Time = { method: PaymentMethod; validAfter: bigint; validBefore: bigint }
type Signing = { method: PaymentMethod; chainId: number; asset: Address }
type Moving = { payer: Address; network: Network.Id; asset: Address; amountAtomic: bigint }

/** `0.005 USDC (5000)`: decimal, and atomic as it is signed. */
export function amount(atomic: bigint, { symbol, decimals }: Unit): string {
  const decimal = Amount.toDecimal(atomic, decimals)
  const short = decimals === 0 ? decimal : decimal.replace(/\.?0+$/, '')
  return `${short} ${symbol} (${atomic})`
}

/** The EIP-712 domain in which a payer must sign. `eip712`: of the token, for EIP-3009. */
export function domain(
  { method, chainId, asset }: Signing,
  { name, version }: Asset['eip712'],
): string {
  const ofToken = `name ${JSON.stringify(name)}, version ${JSON.stringify(version)}`
  const [named, contract] = {
    eip3009: [ofToken, asset],
    permit2: ['name "Permit2"', Permit.permit2Address],
    channel: ['name "x402 Batch Settlement", version "1"', Channel.settlementAddress],
  }[method]
  return `${named}, chainId ${chainId}, verifyingContract ${contract}`
}

export function otherSigner(
  transfer: Signing & { payer: Address; voucher?: Channel.Voucher },
  eip712: Asset['eip712'],
): string {
  const { payer, voucher } = transfer
  const signer = voucher
    ? `payerAuthorizer ${voucher.config.payerAuthorizer}`
    : `the payer ${payer}`
  return (
    `The signature is not of ${signer}. Its EIP-712 domain must be ` +
    `${domain(transfer, eip712)}; sign every member as it was sent.`
  )
}

/** `seconds`: our time, unix seconds. */
export function expired(
  { method, validBefore }: Omit<Time, 'validAfter'>,
  seconds: bigint,
): string {
  const until = method === 'permit2' ? 'deadline' : 'validBefore'
  return (
    `The authorization has expired or is about to: ${until} is ${validBefore}, and the time here ` +
    `is ${seconds}. Sign a new one; if that fails, too, set your clock.`
  )
}

export function early({ validAfter }: Pick<Time, 'validAfter'>, seconds: bigint): string {
  return (
    `The authorization is not valid yet: validAfter is ${validAfter}, and the time here is ` +
    `${seconds}. Set your clock, or wait.`
  )
}

export function lowBalance(
  { payer, network, amountAtomic }: Moving,
  balanceAtomic: bigint,
  unit: Unit,
): string {
  return (
    `The payer ${payer} has ${amount(balanceAtomic, unit)} on ${network}, and the payment is ` +
    `${amount(amountAtomic, unit)}.`
  )
}

/** A transfer by Permit2 whose owner has not approved enough. */
export function lowAllowance(
  { payer, network, amountAtomic, asset }: Moving,
  allowanceAtomic: bigint,
  unit: Unit,
): string {
  return (
    `Permit2 ${Permit.permit2Address} may move ${amount(allowanceAtomic, unit)} of the payer ` +
    `${payer} on ${network}, and the payment is ${amount(amountAtomic, unit)}: approve Permit2 at ` +
    `the token ${asset} for at least that.`
  )
}

export function otherAmount(signed: bigint, expected: bigint): string {
  return `The signed amount is ${signed}, and it must be exactly ${expected}.`
}

export function otherPayee(signed: string, expected: string): string {
  return `The signed payee is ${signed}, and payTo is ${expected}.`
}

export function otherToken(signed: string, expected: string): string {
  return `The signed token is ${signed}, and the asset is ${expected}.`
}
