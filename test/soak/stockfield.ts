import { Database } from 'bun:sqlite'
import { join } from 'node:path'
import { type Address, encodeFunctionData, parseAbi } from 'viem'
import type { NetworkConfig, Stock, StockToken } from '../../src/config/Config'
import { account } from '../../src/demo/accounts'
import { type Chain, execute, prepareChain, startChain } from '../../src/demo/chains'
import { openExchange, samplePrice } from '../../src/demo/exchange'
import { block, movePrice, pause } from '../harness/exchange'
import { startTap } from '../harness/settlement'
import { shipped } from '../harness/stock'
import { fund, type Payer } from '../harness/stockpayers'
import { createStockProgram, type StockProgram } from '../harness/stockserve'
import { type Alone, createDroughts } from './drought'
import type { Random } from './random'

/** A chain with Uniswap, the program on it, and the weather. */
export type StockField = {
  chain: Chain
  stock: Stock
  network: NetworkConfig
  tokens: readonly StockToken[]
  payers: readonly Payer[]
  program: StockProgram
  desk: Address
  /** Reads of the program's database. */
  rows(sql: string): Record<string, unknown>[]
  /** A retry that the operator requested. */
  retry(id: string): void
  /** Pools move, tokens are paused, people are blocked, the node fails: until it is over. */
  storm(random: Random, isOver: () => boolean): Promise<void>
  /** All of that ends. */
  calm(): Promise<void>
  stop(): Promise<void>
}

const stablecoin = parseAbi(['function setBlocked(address account, bool value)'])
const payerCount = 60

export async function startStockField(random: Random): Promise<StockField> {
  const { stock, network } = await shipped()
  const chain = await startChain({ chainId: network.chainId, blockTimeMs: 100 })
  await prepareChain(chain, network)
  await openExchange(chain, network.asset.address, stock)
  const payers = await fund(chain, network.asset.address, payerCount)
  const tap = startTap(chain.url)
  const program = await createStockProgram({ rpcUrl: tap.url })
  const tokens = stock.tokens.slice(0, 3)
  const file = join(program.dataDir, 'turnpike.sqlite')
  const weather: Weather = { chain, stock, asset: network.asset.address, tokens, payers, faults: 0 }
  const draws = random.fork('node')
  const [, , shallow] = tokens
  if (shallow === undefined) throw new Error('the shipped file lists too few tokens')
  // One account makes the weather.
  const alone = inTurn()
  const droughts = createDroughts(
    { chain, asset: network.asset.address, token: shallow },
    alone,
    random.fork('droughts'),
  )
  tap.intercept = (call, forward) =>
    draws.chance(weather.faults) ? Response.json({}, { status: 503 }) : droughts.meet(call, forward)

  const field: StockField = {
    chain,
    stock,
    network,
    tokens,
    payers,
    program,
    desk: account(0).address,
    rows: (sql) => withDatabase(file, (database) => database.query(sql).all()) as Row[],
    retry: (id) =>
      withDatabase(file, (database) =>
        database.run("UPDATE orders SET retry_at = 1 WHERE id = ? AND state = 'held'", [id]),
      ),
    async storm(storm, isOver) {
      droughts.share = 0.2
      while (!isOver()) {
        await alone(() => happen(weather, storm))
        await Bun.sleep(storm.between(10, 80))
      }
    },
    async calm() {
      weather.faults = 0
      await droughts.end()
      await clear(weather)
    },
    async stop() {
      await program.remove()
      tap.stop()
      await chain.stop()
    },
  }
  return field
}

/** What may happen to the chain, and how often its node fails. */
type Weather = Pick<StockField, 'chain' | 'stock' | 'tokens' | 'payers'> & {
  asset: Address
  faults: number
}

async function happen(weather: Weather, random: Random): Promise<void> {
  const { chain, stock, asset } = weather
  const token = random.pick(weather.tokens)
  const person = random.pick(weather.payers).address
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
      await freeze(weather, person, random.chance(0.3))
    } else {
      weather.faults = random.pick([0, 0, 0.05, 0.5])
    }
  } catch {
    // A pool that is there already does not move.
  }
}

/** Prices are those of the start again, and every account may pay and be paid. */
async function clear(weather: Weather): Promise<void> {
  const { chain, stock, asset } = weather
  for (const token of weather.tokens) {
    await pause(chain, token, {})
    await movePrice(chain, asset, token, samplePrice(token.symbol) * 1.001)
    await movePrice(chain, asset, token, samplePrice(token.symbol))
  }
  for (const { address } of weather.payers) {
    await block(chain, stock.registry, address, false)
    await freeze(weather, address, false)
  }
}

async function freeze(
  { chain, asset }: Weather,
  person: Address,
  isFrozen: boolean,
): Promise<void> {
  const args = [person, isFrozen] as const
  const data = encodeFunctionData({ abi: stablecoin, functionName: 'setBlocked', args })
  await execute(chain, [{ from: account(8).address, to: asset, data, gas: 200_000n }])
}

/** Begins each work when the one before is over. */
function inTurn(): Alone {
  let last: Promise<unknown> = Promise.resolve()
  return (work) => {
    const next = last.then(work)
    last = next.catch(() => undefined)
    return next
  }
}

type Row = Record<string, unknown>

function withDatabase<T>(file: string, use: (database: Database) => T): T {
  const database = new Database(file)
  try {
    database.run('PRAGMA busy_timeout = 5000')
    return use(database)
  } finally {
    database.close()
  }
}
