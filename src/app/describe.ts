import type { Address } from 'viem'
import type { Ledger } from '../../db/Ledger'
import type { Config } from '../config/Config'
import { zeroAddress } from '../config/values'

/**
 * Keeps the accounts and assets of a configuration in the database, so that the figures of sales can
 * be read beside the service and from a copy, without the file and its secrets.
 */
export function describe(
  { sales }: Pick<Ledger, 'sales'>,
  config: Config,
  { accounts, now }: { accounts: readonly Address[]; now: number },
): Promise<void> {
  const payouts = [config.service.payout, ...config.merchants.map(({ payout }) => payout)]
  return sales.describe({
    // A merchant that is out of service may have no payout.
    accounts: [...new Set([...accounts, ...payouts])].filter((each) => each !== zeroAddress),
    assets: config.networks.map(({ id, name, asset, ethPriceUsd }) => ({
      network: id,
      address: asset.address,
      networkName: name,
      symbol: asset.symbol,
      decimals: asset.decimals,
      coinUsd: decimalOf(ethPriceUsd),
    })),
    now,
  })
}

/** A positive number as a plain decimal such as `4000`: small ones have an exponent otherwise. */
function decimalOf(value: number): string {
  return value.toFixed(6).replace(/\.?0+$/, '')
}
