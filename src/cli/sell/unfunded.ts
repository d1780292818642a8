import type { Address } from 'viem'
import * as Receipt from '../../chain/receipt'
import type { Config, NetworkConfig } from '../../config/Config'
import { usualGasOf } from '../../settlement/state/availability'
import { etherText, isPoor, remedyOf } from '../../settlement/state/relayer-funds'
import { ask } from '../nodes'
import { readHead } from './gas-cost'
import type { Finding } from './models'

/** Addresses of our accounts: `relayers` send on every network, `desk` on that of the stock desk. */
export type Accounts = { relayers: readonly Address[]; desk: Address | undefined }

/**
 * Relayers that cannot pay for gas, each with the amount to send. A network that does not answer has
 * none, because another check reports it. Never rejects.
 */
export async function findUnfunded(config: Config, accounts: Accounts): Promise<Finding[]> {
  const found = await Promise.all(
    config.networks.map((network) => {
      const { desk } = accounts
      const isDesk = desk !== undefined && config.stock?.network === network.id
      return ofNetwork(network, isDesk ? [...accounts.relayers, desk] : accounts.relayers)
    }),
  )
  return found.flat()
}

async function ofNetwork(
  network: NetworkConfig,
  addresses: readonly Address[],
): Promise<Finding[]> {
  if (addresses.length === 0) return []
  const head = await readHead(network)
  if (head === undefined) return []
  const balances = await ask(network.rpcUrls, (client) =>
    Promise.all(
      addresses.map((address) =>
        client.call('eth_getBalance', [address, 'latest']).catch(() => undefined),
      ),
    ),
  )
  return addresses.flatMap((address, index): Finding[] => {
    const balance = balances?.[index]
    if (!Receipt.isHex(balance)) return []
    const balanceWei = BigInt(balance)
    if (!isPoor(balanceWei, head, network.feeCapWei)) return []
    const remedy = remedyOf({ address, balanceWei }, network, head, usualGasOf(network))
    const held = etherText(balanceWei, network)
    const message = `relayer ${address} holds ${held}, too little for gas: ${remedy}`
    return [{ path: ['networks', network.id], message }]
  })
}
