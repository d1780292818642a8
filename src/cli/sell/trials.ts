import type { Address } from 'viem'
import type { Config, StockToken } from '../../config/Config'
import { account, type DemoAccount } from '../../demo/accounts'
import { buyWithMppx, buyWithX402, type Purchase } from '../../demo/buyers'
import { balanceOf, type Chain } from '../../demo/chains'
import type { World } from '../../demo/world'
import * as Route from '../../gateway/Route'
import { quoteFor } from '../../gateway/upstream/metering'
import * as Charge from '../../meter/Charge'
import { createReader } from '../../meter/Reader'
import type { TransferMethod } from '../../protocol/Asset'
import type * as Network from '../../protocol/Network'
import { type Balances, transcribe, transcribeDelivery } from '../buy/transcript'

/** Requests that cost half a cent, a cent, and what they may use, with every network and both protocols. */
export const goods = {
  forecast: '/m/weather/forecast?latitude=52.52&longitude=13.41&current=temperature_2m',
  price: '/m/crypto-prices/current/coingecko:ethereum',
  chat: '/m/assistant/chat',
  stock: '/api/stock/buy?symbol=NVDA&usdg=2',
}

export const question = JSON.stringify({
  model: 'assistant-fast',
  messages: [{ role: 'user', content: 'What does a turnpike do?' }],
})

const asking = {
  method: 'POST',
  headers: { 'content-type': 'application/json' },
  body: question,
}

type Trial = {
  client: string
  /** Terms of the shipped file: the price is read from there, not from the 402. */
  sold: (config: Config) => { priceAtomic: bigint; payee: Address } | undefined
  /** For a purchase by the scheme `upto`: the charge by the file's own meter. */
  used?: (config: Config, answer: string) => Charge.Charge | undefined
  /** A token that is bought in addition to the answer, and must arrive. */
  token?: (config: Config) => StockToken | undefined
  network: Network.Id
  buyer: DemoAccount
  path: string
  init?: RequestInit
  /** How `@x402/fetch` pays; mppx without it. */
  method?: TransferMethod | 'upto'
}

const trials: readonly Trial[] = [
  {
    client: 'mppx',
    sold: routeOf('weather/forecast'),
    network: 'eip155:8453',
    buyer: account(1),
    path: goods.forecast,
  },
  {
    client: '@x402/fetch with eip3009',
    sold: routeOf('crypto-prices/current/coingecko:ethereum'),
    network: 'eip155:8453',
    buyer: account(2),
    path: goods.price,
    method: 'eip3009',
  },
  {
    client: '@x402/fetch with permit2',
    sold: routeOf('assistant/chat', question),
    network: 'eip155:4663',
    buyer: account(1),
    path: goods.chat,
    init: asking,
    method: 'permit2',
  },
  {
    client: '@x402/fetch with permit2, a tokenized stock',
    // Money that the desk receives continues into the pool.
    sold: ({ stock }) => {
      const token = listed(stock)
      return token && { priceAtomic: 2_000_000n, payee: token.pool }
    },
    token: ({ stock }) => listed(stock),
    network: 'eip155:4663',
    buyer: account(2),
    path: goods.stock,
    init: { method: 'POST' },
    method: 'permit2',
  },
  {
    client: '@x402/fetch by upto',
    sold: routeOf('assistant/chat', question),
    used: usedAt('assistant/chat', question),
    network: 'eip155:8453',
    buyer: account(2),
    path: goods.chat,
    init: asking,
    method: 'upto',
  },
]

/** A route of the file, and the quote of its meter for this body. */
function find({ merchants }: Config, name: string, body: string) {
  const match = Route.match(Route.compile(merchants), `/m/${name}`)
  return match && { ...match, quote: quoteFor(match, new TextEncoder().encode(body)) }
}

/** Price and payee of a route; `body` decides the price of one with a meter. */
function routeOf(name: string, body = '') {
  return (config: Config) => {
    const found = find(config, name, body)
    if (found === undefined) return undefined
    const { quote, route, merchant } = found
    return { priceAtomic: quote?.ceilingAtomic ?? route.priceAtomic, payee: merchant.payout }
  }
}

/** The charge of a JSON answer to this body, by the meter of the route. */
function usedAt(name: string, body: string) {
  return (config: Config, answer: string) => {
    const { quote, route } = find(config, name, body) ?? {}
    if (route?.meter === undefined || quote === undefined) return undefined
    const headers = new Headers({ 'content-type': 'application/json' })
    const reader = createReader(route.meter, { status: 200, headers })
    reader.add(new TextEncoder().encode(answer))
    return Charge.of(route.meter, quote, reader.end())
  }
}

function listed(stock: Config['stock']): StockToken | undefined {
  return stock?.tokens.find(({ symbol }) => symbol === 'NVDA')
}

/** Whether every purchase had the right result. */
export async function buyWithEveryClient(
  world: World,
  base: string,
  print: (text: string) => void,
): Promise<boolean> {
  let good = true
  for (const [index, trial] of trials.entries()) {
    const faults = await attempt({ world, base, print, trial, position: index + 1 })
    for (const fault of faults) print(`  WRONG: ${fault}`)
    if (faults.length > 0) good = false
  }
  print(good ? '\nEvery balance is exactly right.\n' : '\nSomething is not right.\n')
  return good
}

async function attempt(input: {
  world: World
  base: string
  print: (text: string) => void
  trial: Trial
  position: number
}): Promise<readonly string[]> {
  const { world, base, print, trial, position } = input
  const { client, network: id, buyer, path, init, method } = trial
  const { config, chains } = world
  const sold = trial.sold(config)
  const token = trial.token?.(config)
  const network = config.networks.find((each) => each.id === id)
  const chain = chains[id]
  if (sold === undefined || network === undefined || !chain)
    return [`what ${client} buys on ${id} is not configured`]
  const { address, symbol, decimals } = network.asset
  const relayer = world.app.settlement.status()[0]?.relayer ?? account(0).address
  const balances = async (): Promise<Balances> => ({
    payer: await balanceOf(chain, address, buyer.address),
    payee: await balanceOf(chain, address, sold.payee),
    relayer: await balanceOf(chain, address, relayer),
  })
  const shares = async () => (token ? balanceOf(chain, token.address, buyer.address) : 0n)
  const before = await balances()
  const sharesBefore = await shares()
  let purchase: Purchase
  try {
    purchase =
      method === undefined
        ? await buyWithMppx(world, base + path, buyer)
        : await buyWithX402(world, base + path, buyer, { network: id, method, init })
  } catch (error) {
    return [`${client}: ${error instanceof Error ? error.message : error}`]
  }
  const used = trial.used?.(config, purchase.body)
  const { lines, faults } = await transcribe({
    title: `\n${position}. ${client}, ${symbol} on ${id}`,
    purchase,
    symbol,
    decimals,
    priceAtomic: used?.amountAtomic ?? sold.priceAtomic,
    use: used && { ceilingAtomic: sold.priceAtomic, units: used.units },
    before,
    after: await balances(),
    receiptSigner: world.app.receiptAddress,
    mined: (transaction) => isMined(chain, transaction),
  })
  print(lines.join('\n'))
  if (token === undefined) return faults
  const delivered = transcribeDelivery(purchase, token.symbol, (await shares()) - sharesBefore)
  print(delivered.lines.join('\n'))
  return [...faults, ...delivered.faults]
}

async function isMined(chain: Chain, transaction: string): Promise<boolean> {
  const receipt = await chain.rpc('eth_getTransactionReceipt', [transaction])
  if (typeof receipt !== 'object' || receipt === null) return false
  return 'status' in receipt && receipt.status === '0x1'
}
