import { meter, modelPath } from './model'
import type { Setup, Site } from './setup'

export type ShopOptions = {
  setup: Setup
  upstream: URL
  rpcUrlsOf: (site: Site) => readonly string[]
  settleWaitSeconds: number
  replaceAfterSeconds: number
  /** URL of a balancer; without it that of the program itself. */
  baseUrl?: string
  /** A table `[facilitator]`, which has plenty of gas. */
  facilitator?: string
  /** Merchants for buyers who come back; the program needs REFUND_KEY. */
  club?: boolean
  /** Channels on both networks. */
  channels?: boolean
}

/** Text of merchants.toml: both networks, a shop and a model by use. */
export function configurationOf(options: ShopOptions): (port: number) => string {
  return (port) => textOf(options, port)
}

function textOf(options: ShopOptions, port: number): string {
  const { setup, upstream } = options
  return `
[service]
payout = "${setup.payee}"
base_url = "${options.baseUrl ?? `http://localhost:${port}`}"
listen = "127.0.0.1:${port}"
settle_wait_seconds = ${options.settleWaitSeconds}
paid_per_minute = 1000000
quote_per_minute = 1000000
${options.facilitator ?? ''}${setup.sites.map((site) => networkTable(options, site)).join('')}
[[merchants]]
slug = "shop"
upstream = "${upstream.origin}"
allow_private = true
timeout_ms = 1500
${Object.entries(prices)
  .map(([path, price]) => routeTable(path, price))
  .join('')}
[[merchants]]
slug = "model"
upstream = "${upstream.origin}"
allow_private = true
timeout_ms = 5000
idle_ms = 5000
payer_credit = "0.5"
losses_per_day = "${decimal(lossesPerDay)}"
new_streams = "passed"
[[merchants.routes]]
path = "/chat"
methods = ["POST"]
price = "0.05"
upstream_path = "${modelPath}"
[merchants.routes.meter]
preset = "openai"
base = "${decimal(meter.base)}"
missing = "max"
units = [
  { name = "input", price = "${meter.input}" },
  { name = "output", price = "${meter.output}" },
]
${options.club ? clubTables(upstream) : ''}`
}

/** Small, so that they are used up often. */
export const pass = { requests: 6 }
export const again = { max: 2 }
export const trial = { requests: 3 }
/** Of the route `/pool`, which wallets try until it is spent. */
export const poolPerDay = 40
/** USD of what buyers who come back pay for. */
export const clubPrices = { pass: '0.02', again: '0.005', lost: '0.005' }

function clubTables({ origin }: URL): string {
  const route = (path: string, terms: string) =>
    `[[merchants.routes]]\npath = "${path}"\nprice = "0.005"\n${terms}\n`
  const merchant = (slug: string, refund: string, routes: string) => `
[[merchants]]
slug = "${slug}"
upstream = "${origin}"
allow_private = true
timeout_ms = 1500
refund = "${refund}"
${routes}`
  const tries = (perDay: number) =>
    `trial = { requests = ${trial.requests}, per = "wallet", total_per_day = ${perDay}, min_balance = "0.10", min_balance_age_blocks = 3 }`
  return (
    merchant(
      'club',
      'by-hand',
      route(
        '/data',
        `pass = { price = "${clubPrices.pass}", period = "24h", requests = ${pass.requests} }`,
      ) +
        route('/again', `again = "24h"\nagain_max = ${again.max}`) +
        route('/trial', tries(100_000)) +
        route('/pool', tries(poolPerDay)),
    ) + merchant('lost', 'undelivered', route('/gone', ''))
  )
}

/**
 * What new payers may cost the model in a day, atomic. Each of three gateways has a third of it, and
 * the failures of a long run cost about 3 USD: a payer that is refused for it would be a finding.
 */
export const lossesPerDay = 12_000_000n

/** USD of an atomic amount. */
function decimal(atomic: bigint): string {
  return (Number(atomic) / 1e6).toFixed(6)
}

/** Decimal price by path; each below 0.1. */
export const prices: Readonly<Record<string, string>> = {
  '/cheap': '0.001',
  '/item': '0.005',
  '/dear': '0.02',
}

function routeTable(path: string, price: string): string {
  return `
[[merchants.routes]]
path = "${path}"
methods = ["GET", "POST"]
price = "${price}"
`
}

function networkTable(options: ShopOptions, site: Site): string {
  const { id, network } = site
  const { asset } = network
  const plenty = '"1000000000000000000000"'
  return `
[networks."${id}"]
name = "local"
rpc_urls = ${JSON.stringify(options.rpcUrlsOf(site))}
reorg_depth = 16
fee_cap_gwei = "100"
# A refund by itself waits while its gas costs more than its amount.
eth_price_usd = 0.01
replace_after_seconds = ${options.replaceAfterSeconds}
gas_per_day_wei = { gateway = ${plenty}, facilitator = ${options.facilitator ? plenty : '"1"'}, desk = "1", sponsor = "1", channels = ${plenty} }
[networks."${id}".asset]
symbol = "${asset.symbol}"
address = "${asset.address}"
transfer = ${JSON.stringify(network.chainId === 4663 ? ['permit2', 'eip3009'] : ['eip3009'])}
eip712 = { name = "${asset.eip712.name}", version = "${asset.eip712.version}" }
reverts_on_used_nonce = ${asset.revertsOnUsedNonce}
${options.channels ? channelsTable(id) : ''}`
}

/** Claims come often: by the amount, and each minute. */
const channelsTable = (id: string) => `
[networks."${id}".channels]
withdraw_delay = "15min"
min_deposit = "0.05"
claim_every = "1min"
claim_above = "0.10"
unclaimed_max = "20"
`
