import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Address } from 'viem'
import type { Database } from '../../db/Database'
import * as App from '../app'
import type { ServerContext } from '../app/options'
import type { Config, NetworkConfig, Stock } from '../config/Config'
import { loadSecrets, type Secrets } from '../config/env'
import { format, type Overrides, parseConfig } from '../config/merchants'
import type { Log } from '../log'
import type * as Network from '../protocol/Network'
import { account, type DemoAccount } from './accounts'
import { type Chain, mine, startPrepared } from './chains'
import { MissingExchangeError, openExchange } from './exchange'
import { baseFees, type ChainFees, robinhoodFees, withFees } from './fees'
import { startUpstreams } from './upstreams'

export type World = Awaited<ReturnType<typeof startWorld>>

type WorldOptions = {
  /** Text of merchants.toml and its name for messages. */
  text: string
  file: string
  log: Log
  /**
   * The gateway's port. The chains listen on the next three, the upstreams on the fourth. 0: any.
   */
  port: number
  /** Unix ms; the clock of the gateway. */
  now?: () => number
  /** Called with the name of each finished step. */
  progress?: (step: string) => void
  /** A prepared chain for a network in place of a new one; `stop()` gives it back. */
  chainOf?: (network: NetworkConfig) => Promise<Chain>
  /** Longest read of a stock's price from the chain, ms; that of the service by default. */
  marketTimeoutMs?: number
  /** As buyers see it; by default the port on localhost. */
  baseUrl?: string
  /** Opens a server in place of the file in the data directory. */
  openServer?: ((context: ServerContext, secrets: Secrets) => Promise<Database>) | undefined
  /** The account that pays refunds, which has stablecoins already; by default none is paid. */
  refunds?: DemoAccount
  /** Also starts the Uniswap pools, stock tokens and price feeds of `[stock]`: about 60 ms more. */
  exchange?: boolean
}

/** Account that receives the payments of the demo's merchants. */
const payoutAccount = account(7)

/**
 * Runs a configuration on local chains with sample upstreams. Only RPC URLs, upstream hosts, payout
 * and base_url are replaced. When a part does not start, it stops the others and throws.
 */
export async function startWorld(options: WorldOptions) {
  const { port, log, progress = () => undefined } = options
  const endings: (() => void | Promise<void>)[] = []
  /** Ends everything it started and removes the data directory. */
  const stop = async () => {
    const failures: unknown[] = []
    // A part that fails to stop must not prevent the others from stopping.
    for (const end of endings.splice(0).reverse())
      await Promise.try(end).catch((error) => failures.push(error))
    if (failures.length > 0) throw failures[0]
  }
  try {
    let upstreamsUrl = 'http://127.0.0.1:1'
    const overrides = {
      payout: payoutAccount.address,
      // With port 0 the port is not known yet; only the text of URLs depends on it.
      baseUrl: options.baseUrl ?? (port === 0 ? 'http://localhost' : `http://localhost:${port}`),
      listen: `127.0.0.1:${port}`,
      upstream: (url: URL) => new URL(url.pathname + url.search, upstreamsUrl),
    }
    const before = configure(options, { ...overrides, rpcUrls: anyLoopback })
    const { networks, stock, merchants } = before
    const upstreams = await startUpstreams({ merchants, stock, port: port === 0 ? 0 : port + 4 })
    endings.push(() => upstreams.stop())
    upstreamsUrl = upstreams.url
    progress(`sample upstreams on ${upstreams.url}`)
    // Wait for all of them, also after a failure: a part that starts later would not be stopped.
    const starting = await Promise.allSettled(
      networks.map(async (network) => {
        const own = port === 0 ? 0 : port + 1 + Math.max(0, chainOrder.indexOf(network.chainId))
        const node = await (options.chainOf?.(network) ?? startPrepared(network))
        endings.push(() => node.stop())
        // No wallet is sponsored until the balances are old enough.
        if (network.sponsor) await mine(node, network.sponsor.minBalanceAgeBlocks)
        const withStock = options.exchange === true && stock?.network === network.id
        const exchange = withStock && (await tryExchange(node, network.asset.address, stock))
        const fees = feesOf(network, options.chainOf !== undefined)
        const chain = fees === undefined ? node : await withFees(node, fees, own)
        if (chain !== node) endings.push(() => chain.stop())
        progress(`chain ${network.chainId} on ${chain.url}`)
        if (exchange) progress(exchange)
        return [network.id, chain] as const
      }),
    )
    const started = starting.map((result) => {
      if (result.status === 'rejected') throw result.reason
      return result.value
    })
    const chains: Record<Network.Id, Chain> = Object.fromEntries(started)
    const rpcUrls = Object.fromEntries(started.map(([id, chain]) => [id, chain.url]))
    const config = configure(options, { ...overrides, rpcUrls })
    const dataDir = mkdtempSync(join(tmpdir(), 'turnpike-demo-'))
    endings.push(() => rmSync(dataDir, { recursive: true, force: true }))
    const { now, marketTimeoutMs, openServer, refunds } = options
    const env = { ...demoEnvironment, ...(refunds && { REFUND_KEY: refunds.privateKey }) }
    const hasChannels = config.networks.some(({ channels }) => channels !== undefined)
    const secrets = loadSecrets({ dataDir, env, hasChannels })
    const app = await App.start({
      config,
      secrets,
      dataDir,
      log,
      ...(openServer && { openServer: (context) => openServer(context, secrets) }),
      ...(now && { now }),
      ...(marketTimeoutMs !== undefined && { marketTimeoutMs }),
    })
    endings.push(() => app.stop())
    const { adminToken } = secrets
    return { app, config, chains, upstreams, dataDir, adminToken, stop }
  } catch (error) {
    await stop()
    throw error
  }
}

/** Chains listen on the ports after the gateway's in this order. */
const chainOrder = [8453, 84532, 4663]

/** A chain that was given keeps its base fee. */
function feesOf({ chainId }: NetworkConfig, isGiven: boolean): ChainFees | undefined {
  const fees = chainId === 4663 ? robinhoodFees : baseFees
  if (!isGiven) return fees
  return fees.tipWei === 0n ? { tipWei: 0n } : undefined
}

/** Placeholder for the chains while the file is read to find which ones it needs. */
const anyLoopback = Object.fromEntries(
  chainOrder.map((chainId) => [`eip155:${chainId}`, 'http://127.0.0.1:1']),
)

/** The demo continues without stocks: the executable alone does not include the contracts. */
async function tryExchange(chain: Chain, asset: Address, stock: Stock): Promise<string> {
  try {
    await openExchange(chain, asset, stock)
    return `exchange with ${stock.tokens.length} stocks`
  } catch (error) {
    if (error instanceof MissingExchangeError) return `without stocks: ${error.message}`
    throw error
  }
}

/** Every name that the shipped file uses, so that all merchants are served. */
const demoEnvironment = {
  RELAYER_KEYS: account(0).privateKey,
  ASSISTANT_KEY: 'demo',
}

function configure({ text, file }: WorldOptions, overrides: Overrides): Config {
  const { config, faults } = parseConfig(text, { file, env: demoEnvironment, overrides })
  if (config === undefined) throw new Error(faults.map(format).join('\n'))
  return config
}
