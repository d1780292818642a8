import type { Asset } from '../protocol/Asset'
import type * as Network from '../protocol/Network'

/** A network that the executable knows, as `merchants.toml` would describe it. */
type BuiltIn = {
  /** The word that the file may write for it. */
  word: string
  id: Network.Id
  /** The table `[networks."ID"]`. A test compares it with the file that ships. */
  table: Readonly<Record<string, unknown>> & {
    rpc_urls: readonly [string, ...string[]]
    asset: Pick<Asset, 'symbol' | 'address' | 'decimals' | 'eip712'> &
      Readonly<Record<string, unknown>>
  }
}

const common = {
  ws_url: '',
  confirmations: 1,
  reorg_depth: 16,
  batch_max: 64,
  batch_gas_max: 12_000_000,
  replace_after_seconds: 20,
}

const usdc = {
  symbol: 'USDC',
  decimals: 6,
  transfer: ['eip3009'],
  reverts_on_used_nonce: true,
  eip2612: true,
}

/** Of a network without stock and sponsor. */
function gasOf(gateway: string, facilitator: string, channels: string) {
  return { gateway, facilitator, desk: '0', sponsor: '0', channels }
}

/** The public nodes are rate limited: in production a block of the file names others. */
export const builtIns: readonly BuiltIn[] = [
  {
    word: 'base',
    id: 'eip155:8453',
    table: {
      ...common,
      name: 'Base',
      rpc_urls: ['https://mainnet.base.org', 'https://base-rpc.publicnode.com'],
      testnet: false,
      fee_cap_gwei: '2',
      gas_per_day_wei: gasOf('20000000000000000', '10000000000000000', '10000000000000000'),
      asset: {
        ...usdc,
        address: '0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913',
        eip712: { name: 'USD Coin', version: '2' },
      },
    },
  },
  {
    word: 'base-sepolia',
    id: 'eip155:84532',
    table: {
      ...common,
      name: 'Base Sepolia',
      rpc_urls: ['https://sepolia.base.org', 'https://base-sepolia-rpc.publicnode.com'],
      testnet: true,
      fee_cap_gwei: '2',
      gas_per_day_wei: gasOf('50000000000000000', '50000000000000000', '25000000000000000'),
      asset: {
        ...usdc,
        address: '0x036CbD53842c5426634e7929541eC2318f3dCF7e',
        eip712: { name: 'USDC', version: '2' },
      },
    },
  },
  {
    word: 'robinhood',
    id: 'eip155:4663',
    table: {
      ...common,
      name: 'Robinhood Chain',
      rpc_urls: ['https://rpc.mainnet.chain.robinhood.com', 'https://robinhood-rpc.publicnode.com'],
      testnet: false,
      fee_cap_gwei: '5',
      gas_ratio_max: 0,
      eth_price_usd: 4000,
      gas_per_day_wei: {
        gateway: '50000000000000000',
        facilitator: '20000000000000000',
        desk: '50000000000000000',
        sponsor: '10000000000000000',
        channels: '25000000000000000',
      },
      asset: {
        symbol: 'USDG',
        address: '0x5fc5360D0400a0Fd4f2af552ADD042D716F1d168',
        decimals: 6,
        transfer: ['permit2', 'eip3009'],
        eip712: { name: 'Global Dollar', version: '1' },
        reverts_on_used_nonce: false,
        eip2612: true,
      },
      sponsor: {
        min_balance: '0.25',
        min_balance_age_blocks: 50,
        grants_per_day: 200,
        max_grant_wei: '62500000000000',
        eth_price_usd: 4000,
      },
    },
  },
]

/** The built-in network of a word or a CAIP-2 id. */
export function findBuiltIn(name: string): BuiltIn | undefined {
  return builtIns.find(({ word, id }) => word === name || id === name)
}

/** The CAIP-2 id that a command line names by its word or by itself; undefined for other text. */
export function networkNamed(name: string): string | undefined {
  return findBuiltIn(name)?.id ?? (/^eip155:[1-9]\d*$/.test(name) ? name : undefined)
}

/** What `networkNamed` reads, for a message. */
export const networkNames = `${builtIns.map(({ word }) => word).join(', ')} or a CAIP-2 id such as eip155:8453`

/** A public node of a built-in network; undefined for other networks. */
export function publicRpcOf(network: string): string | undefined {
  return findBuiltIn(network)?.table.rpc_urls[0]
}
