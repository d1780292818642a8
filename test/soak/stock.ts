import { parseArgs } from 'node:util'
import { runModel } from './model-run'
import { createRandom, type Random } from './random'
import { auditStocks } from './stock-audit'
import { createBuyers } from './stock-buyers'
import type { StockService } from './stock-service'
import { startStockSetup } from './stock-setup'

/**
 * Orders under all kinds of faults, in two parts. First thousands of orders against a model of the
 * chain, with every interleaving. Then hundreds against the real program, which is killed
 * repeatedly, or several gateways over one PostgreSQL, which have the faults of soak:cluster, on a
 * local chain with Uniswap. Its pools move, its tokens are paused and its accounts are blocked. At the
 * end all balances are compared. A seed repeats the random choices, not the timing.
 */

const { values } = parseArgs({
  options: {
    orders: { type: 'string', default: '500' },
    plays: { type: 'string', default: '10' },
    /** With more than one: over one PostgreSQL, with the faults of soak:cluster. */
    gateways: { type: 'string', default: '1' },
    seed: { type: 'string' },
  },
})
const seed = values.seed ?? crypto.randomUUID().slice(0, 8)
const wanted = numberOf('orders')
const plays = numberOf('plays')
const gateways = numberOf('gateways')
const say = (text: string) => void process.stdout.write(`${text}\n`)

process.exitCode = await soak()

async function soak(): Promise<number> {
  say(`soak:stock --orders ${wanted} --plays ${plays} --gateways ${gateways} --seed ${seed}`)
  const faults = [...(await playAll()), ...(await runAll())]
  for (const fault of faults.slice(0, 20)) say(`FAULT ${fault}`)
  say(faults.length === 0 ? 'every cent is accounted for' : `${faults.length} faults`)
  return faults.length === 0 ? 0 : 1
}

async function playAll(): Promise<string[]> {
  const faults: string[] = []
  const sums = {
    orders: 0,
    kills: 0,
    reorganisations: 0,
    delivered: 0,
    refunded: 0,
    held: 0,
    changed: 0,
  }
  for (let index = 0; index < plays; index++) {
    const name = `${seed} ${index}`
    const result = await runModel({ seed: name, orders: 500, reorganises: index % 2 === 1 })
    sums.orders += result.orders
    sums.kills += result.kills
    sums.reorganisations += result.reorganisations
    sums.changed += result.changed
    for (const end of ['delivered', 'refunded', 'held'] as const) {
      sums[end] += result.ends[end] ?? 0
    }
    faults.push(...result.faults.map((fault) => `play ${name}: ${fault}`))
  }
  say(`model    ${lineOf(sums)}  faults ${faults.length}`)
  return faults
}

async function runAll(): Promise<readonly string[]> {
  const startedAt = performance.now()
  const random = createRandom(seed)
  const setup = await startStockSetup(random.fork('setup'), gateways)
  const { service } = setup
  let isWrong = true
  try {
    await service.start()
    const buyers = createBuyers(setup, random.fork('buyers'), wanted)
    const work = buyers.run()
    let isOver = false
    const disturbing = disturb(service, random.fork('kills'), () => isOver)
    const faults = setup.injectFaults(random.fork('storm'), () => isOver)
    await work
    isOver = true
    await disturbing
    await faults
    await setup.clearFaults()
    // The last start has no faults: it completes everything that is left.
    await service.restart()
    await buyers.settle()
    const wrong = await service.end()
    const audit = await auditStocks(setup, buyers.answers)
    const seconds = ((performance.now() - startedAt) / 1000).toFixed(1)
    say(
      `program  ${lineOf({ ...audit.figures, ...Object.fromEntries(service.counts) })}  seconds ${seconds}`,
    )
    isWrong = wrong.length + audit.faults.length > 0
    return [...wrong, ...audit.faults]
  } finally {
    await setup.stop(isWrong)
  }
}

async function disturb(service: StockService, draws: Random, isOver: () => boolean) {
  while (!isOver()) {
    // Several sell between their faults, which last for seconds.
    await Bun.sleep(draws.between(200, gateways === 1 ? 1_500 : 6_000))
    if (!isOver()) await service.disturb()
  }
}

function lineOf(figures: Readonly<Record<string, number | bigint | string>>): string {
  return Object.entries(figures)
    .map(([name, value]) => `${name} ${value}`)
    .join('  ')
}

function numberOf(name: 'orders' | 'plays' | 'gateways'): number {
  const number = Number(values[name])
  if (!Number.isSafeInteger(number) || number < 0) throw new Error(`--${name} wants a number`)
  return number
}
