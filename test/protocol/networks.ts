import type { Network } from '../../src/protocol/Network'
import type { Offer } from '../../src/protocol/Offer'

export const payTo = '0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC'
export const payer = '0x70997970C51812dc3A010C7d01b50e0d17dc79C8'

/** The network of USDG, which has both transfer methods. */
export const chainB: Network = {
  id: 'eip155:4663',
  chainId: 4663,
  name: 'Robinhood Chain',
  testnet: false,
  asset: {
    symbol: 'USDG',
    address: '0x5fc5360D0400a0Fd4f2af552ADD042D716F1d168',
    decimals: 6,
    transfer: ['permit2', 'eip3009'],
    eip712: { name: 'Global Dollar', version: '1' },
    revertsOnUsedNonce: false,
    eip2612: true,
  },
}

export const chainA: Network = {
  id: 'eip155:8453',
  chainId: 8453,
  name: 'Base',
  testnet: false,
  asset: {
    symbol: 'USDC',
    address: '0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913',
    decimals: 6,
    transfer: ['eip3009'],
    eip712: { name: 'USD Coin', version: '2' },
    revertsOnUsedNonce: true,
    eip2612: true,
  },
}

/** Another network with the same asset address. */
export function otherChain(network: Network, chainId: number): Network {
  return { ...network, id: `eip155:${chainId}`, chainId }
}

export function offer(network: Network, amountAtomic = 10000n): Offer {
  return { network, payTo, amountAtomic }
}
