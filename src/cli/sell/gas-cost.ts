import { createHead, type Head, learnFees, observeBlock, priceOf } from '../../chain/head'
import * as Receipt from '../../chain/receipt'
import type { Config, NetworkConfig } from '../../config/Config'
import * as Amount from '../../protocol/Amount'
import type * as Network from '../../protocol/Network'
import { microUsdOf, type SaleCost, usualGasOf } from '../../settlement/state/availability'
import { askNodes } from '../nodes'

/**
 * Gas cost of a lone sale now, on each network that answers, in the order of the file. Never
 * rejects.
 */
export async function readCosts(config: Config): Promise<string[]> {
  const lines = await Promise.all(config.networks.map((network) => lineOf(config, network)))
  return lines.filter((line) => line !== undefined)
}

async function lineOf(config: Config, network: NetworkConfig): Promise<string | undefined> {
  const head = await readHead(network)
  if (head === undefined) return undefined
  return describeGasCost(config, network, { gas: usualGasOf(network), priceWei: priceOf(head) })
}

/** The fees of a network now; undefined when no node of it answers. Never rejects. */
export function readHead(network: NetworkConfig): Promise<Head | undefined> {
  return askNodes(network.rpcUrls, async ({ nodes }) => {
    const said = await Promise.all(
      nodes.map(async (node) => {
        const read = (method: string, params: unknown[]) =>
          node.call(method, params).catch(() => undefined)
        const [block, tip] = await Promise.all([
          read('eth_getBlockByNumber', ['latest', false]),
          read('eth_maxPriorityFeePerGas', []),
        ])
        return { block: Receipt.parseBlock(block), tip }
      }),
    )
    const blocks = said.flatMap(({ block }) => block ?? [])
    const [first] = blocks
    if (first === undefined) return undefined
    const head = createHead()
    observeBlock(head, first)
    learnFees(head, {
      tips: said.flatMap(({ tip }) => (Receipt.isHex(tip) ? [BigInt(tip)] : [])),
      baseFees: blocks.map(({ baseFeeWei }) => baseFeeWei),
    })
    return head
  })
}

/**
 * One line: `gas on Base: 0.000211 USD a sale now (80000 gas at 0.00066 gwei, 4000 USD an ETH), 4.2
 * % of the cheapest price (0.005)`.
 */
export function describeGasCost(config: Config, network: NetworkConfig, cost: SaleCost): string {
  const microUsd = microUsdOf(cost, network)
  const gwei = Number((Number(cost.priceWei) / 1e9).toPrecision(3))
  const usd = (microUsd / 1e6).toFixed(6)
  const how = `${cost.gas} gas at ${gwei} gwei, ${network.ethPriceUsd} USD an ETH`
  const cheapest = cheapestOn(config, network.id)
  const text = `gas on ${network.name}: ${usd} USD a sale now (${how})`
  if (cheapest === undefined) return text
  const part = Number(((microUsd / Number(cheapest)) * 100).toPrecision(2))
  return `${text}, ${part} % of the cheapest price (${Amount.toDecimal(cheapest, 6)})`
}

/** The lowest price of a route that is sold on a network. */
function cheapestOn({ merchants }: Config, id: Network.Id): bigint | undefined {
  const prices = merchants
    .filter(({ networks, outOfService }) => outOfService === undefined && networks.includes(id))
    .flatMap(({ routes }) => routes.map(({ priceAtomic }) => priceAtomic))
  return prices.length === 0 ? undefined : prices.reduce((a, b) => Amount.least(a, b))
}
