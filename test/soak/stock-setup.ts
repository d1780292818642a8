import { type Address, encodeFunctionData, parseAbi } from 'viem'
import type { NetworkConfig, Stock, StockToken } from '../../src/config/Config'
import { account } from '../../src/demo/accounts'
import { type Chain, execute, prepareChain } from '../../src/demo/chains'
import { openExchange, samplePrice } from '../../src/demo/exchange'
import { startChain } from '../harness/chains'
import { block, movePrice, pause } from '../harness/exchange'
import { startTap } from '../harness/settlement'
import { shipped } from '../harness/stock'
import { fund, type Payer } from '../harness/stock-payers'
import { type Alone, createPoolDrains } from './pool-drain'
import type { Random } from './random'
import { type StockService, startStockCluster, startStockProgram } from './stock-service'

/** A chain with Uniswap, what sells on it, and injected faults. */
export type StockSetup = {
  chain: Chain
  stock: Stock
  network: NetworkConfig
  tokens: readonly StockToken[]
  payers: readonly Payer[]
  service: StockService
  desk: Address
  /** Reads of the database. */
  rows(sql: string): Record<string, unknown>[]
  /** A retry that the operator requested. */
  retry(id: string): void
  /** Moves pools, pauses tokens, blocks accounts and makes the node fail until `isOver`. */
  injectFaults(random: Random, isOver: () => boolean): Promise<void>
  /** Ends all of these faults. */
  clearFaults(): Promise<void>
  stop(isWrong: boolean): Promise<void>
}

const stablecoin = parseAbi(['function setBlocked(address account, bool value)'])
const payerCount = 60

/** One program, or as many gateways over one PostgreSQL. */
export async function startStockSetup(random: Random, gateways: number): Promise<StockSetup> {
  const { stock, network } = await shipped()
  const chain = await startChain({ chainId: network.chainId, blockTimeMs: 100 })
  await prepareChain(chain, network)
  await openExchange(chain, network.asset.address, stock)
  const payers = await fund(chain, network.asset.address, payerCount)
  const tap = startTap(chain.url)
  const { id } = network
  const service =
    gateways === 1
      ? await startStockProgram(tap.url)
      : await startStockCluster({
          ...{ chain, id, rpcUrl: tap.url, gateways, random: random.fork('service') },
        })
  const tokens = stock.tokens.slice(0, 3)
  const state: FaultState = {
    chain,
    stock,
    asset: network.asset.address,
    tokens,
    payers,
    faults: 0,
  }
  const draws = random.fork('node')
  const [, , shallow] = tokens
  if (shallow === undefined) throw new Error('the shipped file lists too few tokens')
  // One account sends all fault transactions.
  const alone = inTurn()
  const drains = createPoolDrains(
    { chain, asset: network.asset.address, token: shallow },
    alone,
    random.fork('drains'),
  )
  tap.intercept = (call, forward) =>
    draws.chance(state.faults)
      ? Response.json({}, { status: 503 })
      : drains.intercept(call, forward)

  return {
    chain,
    stock,
    network,
    tokens,
    payers,
    service,
    desk: account(0).address,
    rows: (text) => service.use((sql) => sql.query<Record<string, unknown>>(text).all()),
    retry: (order) =>
      service.use((sql) =>
        sql.run("UPDATE orders SET retry_at = 1 WHERE id = ? AND state = 'held'", [order]),
      ),
    async injectFaults(draw, isOver) {
      drains.share = 0.2
      while (!isOver()) {
        await alone(() => happen(state, draw))
        await Bun.sleep(draw.between(10, 80))
      }
    },
    async clearFaults() {
      state.faults = 0
      await drains.end()
      await clear(state)
    },
    async stop(isWrong) {
      await service.stop(isWrong)
      tap.stop()
      await chain.stop()
    },
  }
}

/** The parts of the chain that faults change, and the share of failed calls of its node. */
type FaultState = Pick<StockSetup, 'chain' | 'stock' | 'tokens' | 'payers'> & {
  asset: Address
  faults: number
}

async function happen(state: FaultState, random: Random): Promise<void> {
  const { chain, stock, asset } = state
  const token = random.pick(state.tokens)
  const person = random.pick(state.payers).address
  const price = samplePrice(token.symbol)
  const draw = random.next()
  try {
    if (draw < 0.5) {
      const factor = random.pick([0.97, 0.985, 0.99, 1, 1, 1, 1.01, 1.015, 1.02])
      const jitter = 1 + random.next() / 1_000
      await movePrice(chain, asset, token, price * factor * jitter)
    } else if (draw < 0.65) {
      await pause(chain, token, random.chance(0.3) ? { everything: true } : {})
    } else if (draw < 0.8) {
      await block(chain, stock.registry, person, random.chance(0.3))
    } else if (draw < 0.9) {
      await freeze(state, person, random.chance(0.3))
    } else {
      state.faults = random.pick([0, 0, 0.05, 0.5])
    }
  } catch {
    // A pool that already has the price does not move.
  }
}

/** Restores the first prices, and unblocks every account. */
async function clear(state: FaultState): Promise<void> {
  const { chain, stock, asset } = state
  for (const token of state.tokens) {
    await pause(chain, token, {})
    await movePrice(chain, asset, token, samplePrice(token.symbol) * 1.001)
    await movePrice(chain, asset, token, samplePrice(token.symbol))
  }
  for (const { address } of state.payers) {
    await block(chain, stock.registry, address, false)
    await freeze(state, address, false)
  }
}

async function freeze(
  { chain, asset }: FaultState,
  person: Address,
  isFrozen: boolean,
): Promise<void> {
  const args = [person, isFrozen] as const
  const data = encodeFunctionData({ abi: stablecoin, functionName: 'setBlocked', args })
  await execute(chain, [{ from: account(8).address, to: asset, data, gas: 200_000n }])
}

/** Starts each work when the previous one has ended. */
function inTurn(): Alone {
  let last: Promise<unknown> = Promise.resolve()
  return (work) => {
    const next = last.then(work)
    last = next.catch(() => undefined)
    return next
  }
}
