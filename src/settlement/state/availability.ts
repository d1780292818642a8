import type { Product } from '../../../db/Payment'
import type { GasProduct } from '../../../db/schema'
import { aheadOf } from '../../chain/clock'
import { priceOf } from '../../chain/head'
import type { NetworkConfig } from '../../config/Config'
import type { TransferMethod } from '../../protocol/Asset'
import type * as Network from '../../protocol/Network'
import { isReady, isUnfunded, pausedBy } from '../send/relayer'
import * as Gas from './gas-budget'
import * as Funding from './out-of-gas'
import { type ChainState, type Context, chainOf, type Relayer } from './state'

/**
 * A sale: its amount, its product, and its time (unix ms). `isByChannel`: by a channel, whose requests cost
 * no gas.
 */
export type SaleTerms = {
  product: Product
  amountAtomic: bigint
  at: number
  isByChannel?: boolean
}

/** Cost of a lone payment now: gas, and its price in wei. */
export type SaleCost = { gas: bigint; priceWei: bigint }

/** Gas of a lone payment, used until one was observed. */
const usualGas: Readonly<Record<TransferMethod, bigint>> = { eip3009: 80_000n, permit2: 110_000n }

/** What can be sold now. No I/O: everything is read from memory. */
export function createAvailability(context: Context) {
  return {
    /** Networks with the reason why one cannot settle. */
    status: () => [...context.chains.values()].map((chain) => statusOf(context, chain)),
    /** Whether a network can settle now. */
    isReady(network: Network.Id): boolean {
      const chain = context.chains.get(network)
      if (context.progress.isStopping || context.ledger.fault() !== undefined) return false
      if (context.policy.isPaused(network)) return false
      return chain !== undefined && isReady(chain)
    },
    /** Why a network is left out of a 402 now, as the end of a sentence; undefined: it is offered. */
    whyNot(network: Network.Id, sale: SaleTerms): string | undefined {
      const chain = context.chains.get(network)
      return chain ? whyNot(context, chain, sale) : 'it is not configured'
    },
    /** Whether the chain has the contracts of payment channels. */
    hasChannels: (network: Network.Id): boolean =>
      context.chains.get(network)?.abilities.channelMethods[0] !== undefined,
    /** Cost of a lone payment now. */
    costOf: (network: Network.Id): SaleCost => costOf(chainOf(context, network)),
    /** What an operator sees of each network. */
    details: () => [...context.chains.values()].map((chain) => detailsOf(context, chain)),
    /** Whether a product may still spend gas today. */
    hasBudget: (network: Network.Id, product: Product): boolean =>
      !Gas.isSpent(context, chainOf(context, network), product, context.now()),
  }
}

/** One relayer on one network. */
export type RelayerStatus = ReturnType<typeof relayerStatusOf>

function relayerStatusOf(chain: ChainState, relayer: Relayer) {
  const { address, balanceWei, open, next } = relayer
  const reason = pausedBy(relayer)
  const topUpWei = topUpOf(chain, relayer)
  return {
    relayer: address,
    ready: reason === undefined,
    /** Transactions that wait for a block. */
    inFlight: open,
    /** Its next free account nonce, once that was read. */
    nonce: next,
    /** Wei to send to it, where it cannot pay for gas. */
    fundWei: isUnfunded(relayer) ? topUpWei : undefined,
    /** Wei to send, so that it pays for about a thousand sales. */
    topUpWei,
    reason,
    /** What an operator must do about the reason, where it is known. */
    remedy: remedyFor(chain, relayer),
    balanceWei,
  }
}

function statusOf(context: Context, chain: ChainState) {
  const relayers = chain.relayers.map((relayer) => relayerStatusOf(chain, relayer))
  const [first] = relayers
  if (!first) throw new Error('a network without a relayer')
  const fault = context.ledger.fault()
  const works = isReady(chain)
  const unwritable = fault && `the database cannot be written (${fault})`
  const ofNetwork = chain.health.reason ?? (works ? unwritable : undefined)
  const reason = ofNetwork ?? (works ? undefined : first.reason)
  const remedy = ofNetwork === undefined ? first.remedy : remedyOfReason(ofNetwork)
  return {
    network: chain.network.id,
    ready: works && fault === undefined,
    /** The first relayer; `relayers` has all. */
    relayer: first.relayer,
    /** How far our clock may be ahead of the chain's, ms; infinite where the blocks give no bound. */
    clockAheadMs: aheadOf(context, chain),
    reason,
    remedy: reason && remedy,
    balanceWei: first.balanceWei,
    relayers,
  }
}

/** The state of one network for operators. No I/O, and no URLs: hosts only. */
export type Details = ReturnType<typeof detailsOf>

function detailsOf(context: Context, chain: ChainState) {
  const { head, heads, client, queue, network } = chain
  const { timestamp } = head
  const age = context.now() - Number(timestamp) * 1000
  return {
    ...statusOf(context, chain),
    cost: costOf(chain),
    hosts: client.hosts,
    /** The newest known block, and its age by our clock; undefined before one was read. */
    block: head.number,
    blockAgeMs: timestamp === 0n ? undefined : age,
    baseFeeWei: head.baseFeeWei,
    tipWei: head.tipWei,
    /** Whether a WebSocket announces new blocks. */
    newHeads: heads.isLive(),
    /** Payments and jobs that wait for a relayer. */
    waiting: queue.payments.length + queue.named.length + queue.jobs.length,
    gas: gasOf(context, network),
  }
}

/** Gas of today by product. */
export function gasOf(
  { ledger, now }: Pick<Context, 'ledger' | 'now'>,
  { id, gasPerDayWei }: NetworkConfig,
) {
  return Object.entries(gasPerDayWei).map(([name, budgetWei]) => {
    const product = name as GasProduct
    return { product, spentWei: ledger.gas.spentOn(id, product, now()), budgetWei }
  })
}

/** Leaves a network out of a 402 when its payment would be refused or its gas costs too much. */
function whyNot(context: Context, chain: ChainState, sale: SaleTerms): string | undefined {
  if (context.progress.isStopping || !isReady(chain)) return 'it cannot send transactions'
  if (context.ledger.fault() !== undefined) return 'the database cannot be written'
  if (context.policy.isPaused(chain.network.id)) return 'its sales are paused'
  if (sale.isByChannel) return undefined
  if (Gas.isSpent(context, chain, sale.product, sale.at)) return 'the gas budget of today is spent'
  const { gasRatioMax } = chain.network
  if (gasRatioMax === 0) return undefined
  const most = gasRatioMax * Number(sale.amountAtomic)
  return microUsdOf(costOf(chain), chain.network) > most
    ? 'gas costs too much for this price'
    : undefined
}

/** Gas of the newest lone payment by the preferred method, and the gas price now. */
function costOf({ network, gas, head }: ChainState): SaleCost {
  const [method] = network.asset.transfer
  const seen = method && gas.lone.get(method)
  return { gas: seen ?? usualGasOf(network), priceWei: priceOf(head) }
}

/** What an operator must do for a relayer that is paused; undefined where nothing is known. */
export function remedyFor(chain: ChainState, relayer: Relayer): string | undefined {
  const { address, balanceWei } = relayer
  if (balanceWei !== undefined && isUnfunded(relayer))
    return Funding.remedyOf({ address, balanceWei }, chain.network, chain.head, costOf(chain).gas)
  return remedyOfReason(pausedBy(relayer) ?? '')
}

function topUpOf(chain: ChainState, { balanceWei }: Relayer): bigint | undefined {
  if (balanceWei === undefined) return undefined
  return Funding.amountOf(balanceWei, chain.network, chain.head, costOf(chain).gas)
}

/** Typical gas by the preferred method, used until a payment was observed. */
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

/** What an operator must do about a reason of a pause, by the reason's text. */
const remedies: readonly (readonly [reason: RegExp, remedy: string])[] = [
  [/^no usable answer of/, 'check that the node runs and that rpc_urls names it; add a second URL'],
  [/ is not chain \d+$/, 'correct rpc_urls: they name a node of another chain'],
  [/^the clock of this machine/, 'set the clock of this machine by NTP, or name a node in step'],
  [/^the base fee is above|refuses the fees/, 'raise fee_cap_gwei, or wait until fees fall'],
  [/refuses the gas limit/, 'name another node in rpc_urls'],
  [/stays out at the fee cap/, 'raise fee_cap_gwei and restart, or wait until fees fall'],
  [/ is not at 0x/, 'correct the address in the file, or remove permit2 from transfer'],
  [
    /^DOMAIN_SEPARATOR of/,
    'correct eip712 of the asset: its name and version are of another token',
  ],
  [
    /^the database cannot be written/,
    'free space on the disk of the data directory, or make it writable for the user of turnpike',
  ],
]

/** What to do about a reason; undefined for one that ends by itself. */
export function remedyOfReason(reason: string): string | undefined {
  return remedies.find(([text]) => text.test(reason))?.[1]
}
