import { priceOf } from '../chain/head'
import type { NetworkConfig } from '../config/Config'
import type { TransferMethod } from '../protocol/Asset'
import * as Budget from './budget'
import type { ChainState, Context } from './context'
import type { Product } from './Payment'
import * as Relayers from './relayer'

/** What is to be sold, and by which product. */
export type Sale = { product: Product; amountAtomic: bigint }

/** Gas of a lone payment until one was seen. */
const usualGas: Readonly<Record<TransferMethod, bigint>> = { eip3009: 80_000n, permit2: 110_000n }

/** What a lone payment costs now. */
export type SaleCost = { gas: bigint; priceWei: bigint }

/**
 * Why a network is left out of a 402 now, as the end of a sentence; undefined when it is offered. A
 * 402 offers no payment that would be refused or whose gas costs too much. No I/O.
 */
export function whyNot(context: Context, chain: ChainState, sale: Sale): string | undefined {
  if (context.isStopping || !Relayers.isReady(chain)) return 'it cannot send transactions'
  if (context.db.storage.fault() !== undefined) return 'the database cannot be written'
  if (Budget.isSpent(context, chain, sale.product)) return 'the gas budget of today is spent'
  const { gasRatioMax } = chain.network
  if (gasRatioMax === 0) return undefined
  const most = gasRatioMax * Number(sale.amountAtomic)
  return microUsdOf(costOf(chain), chain.network) > most
    ? 'gas costs too much for this price'
    : undefined
}

/** Gas of the newest lone payment by the preferred method, and the gas price now. */
export function costOf({ network, loneGas, head }: ChainState): SaleCost {
  const [method] = network.asset.transfer
  const seen = method && loneGas.get(method)
  return { gas: seen ?? usualGasOf(network), priceWei: priceOf(head) }
}

/** Typical gas by the preferred method, used until a payment was seen. */
export function usualGasOf({ asset }: Pick<NetworkConfig, 'asset'>): bigint {
  return usualGas[asset.transfer[0] ?? 'permit2']
}

/** A cost in millionths of a dollar, the atomic units of the assets. */
export function microUsdOf(
  { gas, priceWei }: SaleCost,
  { ethPriceUsd }: Pick<NetworkConfig, 'ethPriceUsd'>,
): number {
  return (Number(gas * priceWei) / 1e18) * ethPriceUsd * 1e6
}
