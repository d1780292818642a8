import type { Address } from 'viem'
import { fees, type Head, priceOf } from '../chain/head'
import type { NetworkConfig } from '../config/Config'
import * as Amount from '../protocol/Amount'

/** The relayer must be able to pay for this many transfers. */
const transfersMin = 3n
/** Gas limit of the most expensive transfer of a payer without code. */
const transferGas = 300_000n
/** Sales that the amount to send pays for. */
const salesFunded = 1_000n
/** Sent at least, wei: where gas is free now, it may have a price tomorrow. */
const sendMinWei = 100_000_000_000_000n

/** Whether a relayer cannot pay for a few transfers at the highest fee that it would bid now. */
export function isPoor(balanceWei: bigint, head: Head, feeCapWei: bigint): boolean {
  return balanceWei === 0n || balanceWei < leastWei(head, feeCapWei)
}

/**
 * What an operator must do for a relayer without gas: `send about 0.02 native coin to 0x... on Base
 * (eip155:8453): it pays for 1,000 sales at the current fee`. `gas`: of one sale.
 */
export function remedyOf(
  { address, balanceWei }: { address: Address; balanceWei: bigint },
  network: Pick<NetworkConfig, 'id' | 'name' | 'feeCapWei'>,
  head: Head,
  gas: bigint,
): string {
  const wanted = most(salesFunded * gas * priceOf(head), 2n * leastWei(head, network.feeCapWei))
  const amount = Amount.toDecimal(rounded(most(wanted - balanceWei, sendMinWei)), 18)
  return (
    `send about ${amount.replace(/\.?0+$/, '')} native coin to ${address} on ${network.name} ` +
    `(${network.id}): it pays for ${salesFunded.toLocaleString('en')} sales at the current fee`
  )
}

function leastWei(head: Head, feeCapWei: bigint): bigint {
  return transfersMin * transferGas * fees(head, feeCapWei).maxFeeWei
}

/** Two significant digits, rounded up. */
function rounded(wei: bigint): bigint {
  const unit = 10n ** BigInt(Math.max(0, wei.toString().length - 2))
  return ((wei + unit - 1n) / unit) * unit
}

function most(left: bigint, right: bigint): bigint {
  return left > right ? left : right
}
