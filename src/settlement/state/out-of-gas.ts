import type { Address } from 'viem'
import { fees, type Head, priceOf } from '../../chain/head'
import type { NetworkConfig } from '../../config/Config'
import * as Amount from '../../protocol/Amount'

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
 * What an operator must do for a relayer without gas: `send about 0.02 ETH (80 USD) to 0x... on Base
 * (eip155:8453): it pays for 1,000 sales at the current fee`. `gas`: of one sale.
 */
export function remedyOf(
  { address, balanceWei }: { address: Address; balanceWei: bigint },
  network: Pick<NetworkConfig, 'id' | 'name' | 'feeCapWei' | 'ethPriceUsd'>,
  head: Head,
  gas: bigint,
): string {
  const amount = etherText(amountOf(balanceWei, network, head, gas), network)
  return (
    `send about ${amount} to ${address} on ${network.name} ` +
    `(${network.id}): it pays for ${salesFunded.toLocaleString('en')} sales at the current fee`
  )
}

/** The wei to send: about a thousand sales, and at least what ends the pause. */
export function amountOf(
  balanceWei: bigint,
  network: Pick<NetworkConfig, 'feeCapWei'>,
  head: Head,
  gas: bigint,
): bigint {
  const wanted = Amount.greatest(
    salesFunded * gas * priceOf(head),
    2n * leastWei(head, network.feeCapWei),
  )
  return rounded(Amount.greatest(wanted - balanceWei, sendMinWei))
}

function leastWei(head: Head, feeCapWei: bigint): bigint {
  return transfersMin * transferGas * fees(head, feeCapWei).maxFeeWei
}

/** `0.02 ETH (80.00 USD)`; USD without the parts of a cent, except where that would be nothing. */
export function etherText(
  wei: bigint,
  { ethPriceUsd }: Pick<NetworkConfig, 'ethPriceUsd'>,
): string {
  const ether = Amount.toDecimal(wei, 18).replace(/\.?0+$/, '')
  const usd = (Number(wei) / 1e18) * ethPriceUsd
  return `${ether} ETH (${usd === 0 || usd >= 0.01 ? usd.toFixed(2) : usd.toPrecision(2)} USD)`
}

/** Two significant digits, rounded up. */
function rounded(wei: bigint): bigint {
  const unit = 10n ** BigInt(Math.max(0, wei.toString().length - 2))
  return ((wei + unit - 1n) / unit) * unit
}
