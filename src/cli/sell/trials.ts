import type { Address } from 'viem'
import { parseLogs } from '../../chain/receipt'
import type { Config, StockToken } from '../../config/Config'
import { account, type DemoAccount } from '../../demo/accounts'
import {
  buyByChannel,
  buyWithMppx,
  buyWithX402,
  type Exchange,
  type Purchase,
  signInWithX402,
} from '../../demo/buyers'
import { balanceOf, type Chain, mine } from '../../demo/chains'
import type { World } from '../../demo/world'
import * as Route from '../../gateway/Route'
import { quoteFor } from '../../gateway/upstream/metering'
import * as Charge from '../../meter/Charge'
import * as AddressText from '../../protocol/Address'
import * as Amount from '../../protocol/Amount'
import type { Asset, TransferMethod } from '../../protocol/Asset'
import * as Channel from '../../protocol/Channel'
import * as Json from '../../protocol/Json'
import type * as Network from '../../protocol/Network'
import { isFault } from '../../protocol/Problem'
import * as Receipt from '../../protocol/Receipt'
import { requestRefund } from '../../refunds/request'
import * as ReportedCharge from '../buy/Charge'
import { settlementOf } from '../buy/outcome'
import * as Terms from '../buy/Terms'
import { withLedger } from '../operate/database'
import { isOver } from '../operate/refund'
import { poll } from '../poll'
import { usageOf } from './meter'

/** Requests that cost half a cent, a cent, and what they may use, with every network and both protocols. */
export const goods = {
  forecast: '/m/weather/forecast?latitude=52.52&longitude=13.41&current=temperature_2m',
  price: '/m/crypto-prices/current/coingecko:ethereum',
  chat: '/m/assistant/chat',
  stock: '/api/stock/buy?symbol=NVDA&usdg=2',
  air: '/m/weather/air-quality?latitude=52.52&longitude=13.41',
  pass: '/m/weather/air-quality/pass',
  global: '/m/crypto-markets/global',
}

/** How long a refund, or the payout of a channel, is waited for. */
const waitMs = 20_000

/** So many requests are paid from one deposit. */
const requestsByChannel = 200

/** Pays the refunds of the demo. It has stablecoins, as the buyers have. */
export const refundAccount = account(5)

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
    const usage = usageOf(route.meter, new TextEncoder().encode(answer))
    return Charge.of(route.meter, quote, usage)
  }
}

function listed(stock: Config['stock']): StockToken | undefined {
  return stock?.tokens.find(({ symbol }) => symbol === 'NVDA')
}

/** Where and when a trial runs, what it prints, and what is wrong with it. */
type Report = {
  world: World
  base: string
  position: number
  now: () => number
  print: (text: string) => void
  wrong: (fault: string) => void
}

/** Whether every purchase had the right result. */
export async function buyWithEveryClient(
  world: World,
  base: string,
  options: Pick<Report, 'print' | 'now'>,
): Promise<boolean> {
  const { print } = options
  let good = true
  const steps = [
    ...trials.map((trial) => (report: Report) => attempt(report, trial)),
    comeBack,
    keepOpen,
  ]
  for (const [index, step] of steps.entries()) {
    const faults: string[] = []
    const wrong = (fault: string) => void faults.push(fault)
    try {
      await step({ ...options, world, base, position: index + 1, wrong })
    } catch (error) {
      wrong(error instanceof Error ? error.message : String(error))
    }
    for (const fault of faults) print(`  WRONG: ${fault}`)
    if (faults.length > 0) good = false
  }
  print(good ? '\nEvery balance is exactly right.\n' : '\nSomething is not right.\n')
  return good
}

/** A network of a trial with its chain; undefined where it is not configured. */
function placeOf({ config, chains }: World, id: Network.Id) {
  const [network, chain] = [config.networks.find((each) => each.id === id), chains[id]]
  return network && chain && { network, chain, asset: network.asset }
}

async function attempt(report: Report, trial: Trial): Promise<void> {
  const { world, base, position, print, wrong } = report
  const { client, network: id, buyer, path, init, method } = trial
  const { config } = world
  const sold = trial.sold(config)
  const token = trial.token?.(config)
  const place = placeOf(world, id)
  if (sold === undefined || place === undefined)
    return wrong(`what ${client} buys on ${id} is not configured`)
  const { asset, chain } = place
  const relayer = world.app.settlement.status()[0]?.relayer ?? account(0).address
  const shares = async () => (token ? balanceOf(chain, token.address, buyer.address) : 0n)
  const describeMoves = await watch(report, place, [buyer.address, sold.payee, relayer])
  const sharesBefore = await shares()
  let purchase: Purchase
  try {
    purchase =
      method === undefined
        ? await buyWithMppx(world, base + path, buyer)
        : await buyWithX402(world, base + path, buyer, { network: id, method, init })
  } catch (error) {
    return wrong(`${client}: ${error instanceof Error ? error.message : error}`)
  }
  const used = trial.used?.(config, purchase.body)
  const paidAtomic = used?.amountAtomic ?? sold.priceAtomic
  print(`\n${position}. ${client}, ${asset.symbol} on ${id}`)
  describeRequests(report, purchase)
  print('')
  const { headers } = purchase.response
  if (used !== undefined)
    describeUse(report, headers, { used, ceilingAtomic: sold.priceAtomic, asset })
  await describeReceipt(report, headers, chain)
  print('')
  await describeMoves({ payer: -paidAtomic, payee: paidAtomic, relayer: 0n })
  if (token) describeDelivery(report, purchase, token.symbol, (await shares()) - sharesBefore)
}

/** A pass that is bought, used twice and refunded. */
async function comeBack(report: Report): Promise<void> {
  const { world, base, position, print, wrong } = report
  const { config } = world
  const sold = routeOf('weather/air-quality/pass')(config)
  const opened = find(config, 'weather/air-quality', '')
  const [id, buyer] = ['eip155:8453' as const, account(1)]
  const place = placeOf(world, id)
  const requests = opened?.route.pass?.requests
  if (sold === undefined || requests === undefined || place === undefined)
    return wrong('no route with a pass is configured')
  const { network, chain, asset } = place
  const holders = [buyer.address, sold.payee, refundAccount.address]
  const describeMoves = await watch(report, place, holders)
  print(`\n${position}. a pass that is bought, used twice and refunded, ${asset.symbol} on ${id}`)
  const options = { network: id, method: 'eip3009' as const }
  const bought = await buyWithX402(world, base + goods.pass, buyer, options)
  describeRequests(report, bought)
  await describeReceipt(report, bought.response.headers, chain)
  for (const remaining of [requests - 1, requests - 2]) {
    const used = await signInWithX402(base + goods.air, buyer)
    describeRequests(report, used)
    const entitlement = used.response.headers.get('payment-entitlement') ?? ''
    print(`      Payment-Entitlement: ${entitlement}`)
    if (!entitlement.startsWith(`kind=pass, remaining=${remaining}`))
      wrong(`a pass with ${remaining} requests left was not used`)
  }
  // A refund waits until no reorganisation can undo the payment.
  await mine(chain, network.reorgDepth)
  await payBack(report, buyer)
  print('')
  const { priceAtomic } = sold
  await describeMoves({ payer: 0n, payee: priceAtomic, refunds: -priceAtomic })
}

/** A channel: a deposit, requests without a transaction, and a refund. */
async function keepOpen(report: Report): Promise<void> {
  const { world, base, position, print, wrong } = report
  const [id, buyer] = ['eip155:8453' as const, account(3)]
  const sold = routeOf('crypto-markets/global')(world.config)
  const place = placeOf(world, id)
  if (sold === undefined || place?.network.channels === undefined)
    return wrong('no network with channels is configured')
  const { asset } = place
  const holders = [buyer.address, sold.payee, account(0).address]
  const describeMoves = await watch(report, place, holders)
  print(`\n${position}. @x402/fetch over a payment channel, ${asset.symbol} on ${id}\n`)
  const options = { network: id, requests: requestsByChannel }
  const { answers, refund } = await buyByChannel(world, base + goods.global, buyer, options)
  const paidAtomic = sold.priceAtomic * BigInt(answers.length)
  const named = answers.map(({ headers }) => settlementOf(headers.get('payment-response') ?? ''))
  const alone = named.filter((hash) => hash === '').length
  print(`  ${answers.length} requests, ${alone} of them by a voucher alone`)
  const events = await eventsOf(report, place.chain)
  for (const { name, amountAtomic, transaction } of events)
    print(`  ${name.padEnd(11)} ${textOf(asset, amountAtomic)} by ${transaction}`)
  print('')
  if (answers.some(({ status }) => status !== 200)) wrong('a request was not served')
  const shown = events.map(({ name, transaction }) => `${name} ${transaction}`)
  if (!shown.includes(`deposited ${named[0]}`) || !shown.includes(`refunded ${refund.transaction}`))
    wrong('the deposit and the refund are not on the chain')
  await describeMoves({ payer: -paidAtomic, payee: paidAtomic, relayer: 0n })
}

function textOf({ decimals, symbol }: Asset, atomic: bigint): string {
  return `${Amount.toDecimal(atomic, decimals)} ${symbol}`
}

/** What the contract of channels did, once it has paid out what was claimed. */
function eventsOf({ now }: Report, chain: Chain) {
  const filter = { fromBlock: '0x0', address: Channel.settlementAddress }
  const read = async () =>
    parseLogs(await chain.rpc('eth_getLogs', [filter])).flatMap(({ transactionHash, ...log }) => {
      const event = Channel.parseEvent(log)
      return event === undefined ? [] : [{ ...event, transaction: transactionHash }]
    })
  const isPaidOut = (events: readonly Channel.Event[]) =>
    events.some(({ name }) => name === 'settled')
  return poll({ now, waitMs }, read, isPaidOut)
}

/** Refunds the newest payment of a buyer, as `turnpike refund` does. */
function payBack({ world, now, print, wrong }: Report, buyer: DemoAccount): Promise<void> {
  const { dataDir, config } = world
  return withLedger({ dataDir, now, env: {} }, async ({ admin, payments, refunds }) => {
    const { lines } = await admin.payments(
      { payer: buyer.address },
      { before: undefined, limit: 1, rows: 100 },
    )
    const paymentId = lines[0]?.id ?? ''
    const asking = {
      ...{ refunds, findPayment: payments.findById, account: refundAccount.address, now: now() },
      ...{ networks: config.networks, perDayAtomic: config.service.refundPerDayAtomic },
    }
    const { ok, text } = await requestRefund(asking, { paymentId })
    print(`\n  turnpike refund ${paymentId}\n      ${text}`)
    if (!ok) return wrong(text)
    const found = await poll({ now, waitMs }, () => refunds.find(paymentId), isOver)
    print(`  refunded by ${found?.transaction}`)
    if (found?.state !== 'refunded') wrong(`the refund is ${found?.state}`)
  })
}

/**
 * Reads what the holders have now. The result prints what each had and has; its argument is what must
 * have moved, in their order.
 */
async function watch(
  { print, wrong }: Report,
  { chain, asset }: { chain: Chain; asset: Asset },
  holders: readonly Address[],
) {
  const read = () => Promise.all(holders.map((each) => balanceOf(chain, asset.address, each)))
  const decimal = (atomic: bigint) => Amount.toDecimal(atomic, asset.decimals).padStart(12)
  const before = await read()
  return async (moves: Readonly<Record<string, bigint>>) => {
    const after = await read()
    for (const [at, [role, expected]] of Object.entries(moves).entries()) {
      const [from = 0n, to = 0n] = [before[at], after[at]]
      if (to - from !== expected)
        wrong(`the ${role}'s balance moved by ${to - from}, not by ${expected}`)
      print(`  ${role.padEnd(8)}${decimal(from)} -> ${decimal(to)} ${asset.symbol}`)
    }
  }
}

/** The request, the 402, the paid request and the answer. */
function describeRequests({ print, wrong }: Report, { requests, response, body }: Purchase) {
  const [asked, ...paid] = requests
  if (asked === undefined) return wrong('no request was made')
  print(`\n  ${asked.method} ${asked.url}\n  ${status(asked.status)}`)
  if (asked.status !== 402) wrong(`the first answer was ${asked.status}, not 402`)
  for (const terms of Terms.decode(asked.responseHeaders)) print(`      ${Terms.describe(terms)}`)
  for (const exchange of paid) {
    print(`\n  ${exchange.method} ${exchange.url}\n      ${credential(exchange)}`)
    print(`  ${status(exchange.status)}\n      ${shorten(body)}`)
  }
  if (paid.length !== 1) wrong(`${paid.length} paid requests were made, not one`)
  if (response.status !== 200) wrong(`the answer was ${response.status}`)
}

/** The use of an answer, which `PAYMENT-RESPONSE` must report. */
function describeUse(
  { print, wrong }: Report,
  headers: Headers,
  { used, ceilingAtomic, asset }: { used: Charge.Charge; ceilingAtomic: bigint; asset: Asset },
): void {
  const charge = ReportedCharge.ofResponse(headers.get('payment-response') ?? '')
  const units = Object.entries(used.units)
  print(`  ceiling     ${textOf(asset, ceilingAtomic)}`)
  print(`  units       ${units.map(([name, count]) => `${count} ${name}`).join(', ')}`)
  print(`  charge      ${textOf(asset, charge?.amountAtomic ?? 0n)}`)
  const isRight =
    charge?.amountAtomic === used.amountAtomic &&
    units.every(([name, count]) => charge.units[name] === count) &&
    used.amountAtomic > 0n &&
    used.amountAtomic < ceilingAtomic
  if (!isRight) wrong(`the charge is not ${used.amountAtomic} of at most ${ceilingAtomic}`)
}

async function describeReceipt(
  { world: { app }, print, wrong }: Report,
  headers: Headers,
  chain: Chain,
): Promise<void> {
  const encoded = headers.get('payment-receipt') ?? headers.get('payment-response')
  if (encoded === null) return wrong('there is no receipt')
  const receipt = Receipt.parse(encoded)
  if (isFault(receipt)) return wrong(receipt.detail)
  const { transaction, payer, network, issuedAt } = receipt.payload
  const signer = Receipt.verify(receipt)
  if (signer === undefined || !AddressText.equal(signer, app.receiptAddress))
    wrong('the receipt is not signed by the published key')
  if (!(await isMined(chain, transaction))) wrong(`transaction ${transaction} did not succeed`)
  if (settlementOf(encoded) !== transaction)
    wrong('the receipt names another transaction than it signs')
  print(`  settled by  ${transaction}`)
  const issued = new Date(issuedAt * 1000).toISOString()
  print(`  receipt     ${network}, paid by ${payer}, ${issued}`)
  print(`              signed by ${signer}`)
}

async function isMined(chain: Chain, transaction: string): Promise<boolean> {
  const receipt = await chain.rpc('eth_getTransactionReceipt', [transaction])
  if (typeof receipt !== 'object' || receipt === null) return false
  return 'status' in receipt && receipt.status === '0x1'
}

/** The shares of a stock order, which must equal the received shares. */
function describeDelivery(
  { print, wrong }: Report,
  { body }: Purchase,
  symbol: string,
  arrivedAtomic: bigint,
) {
  let order: Json.JsonObject
  try {
    order = Json.parse(body)
  } catch {
    return wrong('the answer is no order')
  }
  const text = (name: string) => String(Json.member(order, name) ?? '')
  print(`  swapped by  ${text('swapTx')}`)
  print(`  delivered   ${text('deliveredShares')} ${symbol} to ${text('recipient')}`)
  const isRight = arrivedAtomic > 0n && text('deliveredSharesAtomic') === String(arrivedAtomic)
  if (!isRight) wrong(`${arrivedAtomic} atomic shares arrived`)
}

function credential({ headers }: Exchange): string {
  const names = ['PAYMENT-SIGNATURE', 'SIGN-IN-WITH-X', 'Authorization']
  const name = names.find((each) => headers.has(each)) ?? ''
  const value = headers.get(name)
  return `${name}: ${value?.slice(0, 40)}... (${value?.length} characters)`
}

function status(code: number): string {
  const names: Readonly<Record<number, string>> = { 200: 'OK', 402: 'Payment Required' }
  return `${code} ${names[code] ?? ''}`.trimEnd()
}

function shorten(body: string): string {
  const widest = 160
  const line = body.replaceAll(/\s+/g, ' ')
  return line.length > widest ? `${line.slice(0, widest)}... (${body.length} characters)` : line
}
