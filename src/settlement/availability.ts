import { priceOf } from '../chain/head'
import type { NetworkConfig } from '../config/Config'
import type { TransferMethod } from '../protocol/Asset'
import * as Budget from './budget'
import type { Context, Rail } from './context'
import * as Lane from './lane'
import type { Product } from './Payment'

/** What is to be sold, and by which product. */
export type Sale = { product: Product; amountAtomic: bigint }

/** Gas of a lone payment until one was seen. */
const usualGas: Readonly<Record<TransferMethod, bigint>> = { eip3009: 80_000n, permit2: 110_000n }

/** What a lone payment costs now. */
export type SaleCost = { gas: bigint; priceWei: bigint }

/**
 * Why a network is left out of a 402 now, as the end of a sentence; undefined when it is offered. What
 * would be refused, or cost more than it is worth, is not asked for. No I/O.
 */
export function whyNot(context: Context, rail: Rail, sale: Sale): string | undefined {
  if (context.isStopping || !Lane.isReady(rail)) return 'it cannot send transactions'
  if (context.db.storage.fault() !== undefined) return 'the database cannot be written'
  if (Budget.isSpent(context, rail, sale.product)) return 'the gas budget of today is spent'
  const { gasRatioMax } = rail.network
  if (gasRatioMax === 0) return undefined
  const most = gasRatioMax * Number(sale.amountAtomic)
  return microUsdOf(costOf(rail), rail.network) > most
    ? 'gas costs too much for this price'
    : undefined
}

/** Gas and its price of a lone payment by the preferred method, as the newest ones were. */
export function costOf({ network, loneGas, head }: Rail): SaleCost {
  const [method] = network.asset.transfer
  const seen = method && loneGas.get(method)
  return { gas: seen ?? usualGasOf(network), priceWei: priceOf(head) }
}

/** The same where none was seen. */
export function usualGasOf({ asset }: Pick<NetworkConfig, 'asset'>): bigint {
  return usualGas[asset.transfer[0] ?? 'permit2']
}

/** Millionths of a dollar, which are atomic units of the asset. */
export function microUsdOf(
  { gas, priceWei }: SaleCost,
  { ethPriceUsd }: Pick<NetworkConfig, 'ethPriceUsd'>,
): number {
  return (Number(gas * priceWei) / 1e18) * ethPriceUsd * 1e6
}
