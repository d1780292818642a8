import type { Address } from 'viem'
import type { Meter } from '../meter/Meter'
import * as Preset from '../meter/Preset'
import type { Asset } from '../protocol/Asset'
import type * as Network from '../protocol/Network'
import { alertKinds, type Pattern } from '../protocol/Webhook'
import * as Headers from './headers'
import * as K from './kinds'
import * as V from './values'

/**
 * Every key of `merchants.toml`, stated once. The readers, the comparison of a reload and the
 * reference page follow from it.
 */

const string = { type: 'string' }
const strings = (description: string) => K.list(description, V.text).schema
const jsonSchema = (description: string) => ({ ...K.recordOf({}), description })

/** An image that was read with the file. Its own size is in pixels. */
export type Logo = {
  bytes: Uint8Array
  type: 'image/png' | 'image/svg+xml'
  width: number
  height: number
}

export const service = K.keys({
  title: K.filled('Name of the service in pages and documents.', 'Turnpike'),
  lead: K.sentence('What is sold, in one sentence, on the first page.'),
  logo: K.own<Logo | undefined>(
    K.text('SVG or PNG file of at most 64 KiB, beside this file.').schema,
  ),
  accent: K.colour('Colour of the pages, such as "#0b6060".'),
  baseUrl: K.restart(
    K.baseUrl('URL of the service as buyers see it, without a path.', 'http://localhost:4020'),
  ),
  listen: K.restart(K.listen('Address and port.', '127.0.0.1:4020')),
  connectionsMax: K.restart(K.integer(16, 1_000_000)('Connections of clients.', 10_000)),
  // Absolute, without a trailing slash. Its path is served besides `/` and `/facilitator`.
  facilitatorUrl: K.own<string>(
    K.text('URL of the facilitator; may have a path. Empty: base_url.', '').schema,
  ),
  // Absolute, without a trailing slash. Its path is served in addition to `/`.
  stockBaseUrl: K.restart(
    K.own<string>(K.text('URL of the stock desk and of gas. Empty: base_url.', '').schema),
  ),
  contact: K.filled('Address in documents and in requests to others; without it there is none.'),
  guidance: K.text(
    'First guidance for agents in documents.',
    'Each path is an independent paid endpoint.',
  ),
  payout: K.required('Wallet that receives payments.', V.address, '"0x..."', V.zeroAddress),
  trustProxy: K.integer(0, 16)('Reverse proxies in front that set X-Forwarded-For.', 0),
  // Read before, to find the tables of the networks.
  networks: K.own<never>(
    strings(
      'Networks: "base", "base-sepolia", "robinhood", or CAIP-2 ids. Without it, those with a block.',
    ),
  ),
  discoveryNetwork: K.own<Network.Id>(
    K.text(
      'Network of the aggregated document; "robinhood" where it is offered, else the first network.',
    ).schema,
  ),
  // Every network once, the MPP challenges first to last.
  mppOrder: K.own<readonly Network.Id[]>(
    strings('Order of MPP challenges: "base", "robinhood", then the others by default.'),
  ),
  x402V1: K.flag('Takes x402 version 1, too: clients such as x402-fetch and x402-axios.', true),
  stopSeconds: K.integer(0, 600)('Longest time that a stop waits for paid requests.', 30),
  settleWaitSeconds: K.integer(1, 300)('Longest wait of a buyer for a settlement.', 25),
  confirmTwiceAboveAtomic: K.amountOrOff(
    'USD above which a second node must agree, or "off".',
    '10',
  ),
  unsettledMaxAtomic: K.amount(
    'USD that one payer may use before it is settled (x402 `upto`).',
    '1',
  ),
  // An external settlement of an MPP credential then counts.
  payoutExclusive: K.flag('Only this service sells for its payouts.', false),
  bodyMaxBytes: K.size('Longest request body of a route.', '10MiB'),
  unpaidBodyMaxBytes: K.size('Longest request body without a credential.', '1MiB'),
  bufferedMaxBytes: K.restart(K.size('Request bodies in memory at once.', '256MiB')),
  paidPerMinute: K.integer(1, 1_000_000)('Credentials of one client.', 600),
  quotePerMinute: K.integer(1, 1_000_000)('Free quotes of one client.', 120),
  concurrencyMax: K.integer(1, 12_000)('Most sales in progress.', 2_048),
  metrics: K.own<'public' | 'token' | 'off'>(
    K.oneOf(['public', 'token', 'off'])(
      'Who may read /metrics: everyone, clients with ADMIN_TOKEN as bearer token, or no client. Without it "public" where base_url is this machine, else "token".',
    ).schema,
  ),
  refundPerDayAtomic: K.amount('USD of refunds of a UTC day, on all networks together.', '100'),
  // 2 to 4 MB each.
  stalledStreamsMax: K.restart(K.integer(1, 12_000)('Streams whose buyers do not read.', 16)),
})

export const eip712 = K.keys({
  name: K.required('Name in the signing domain.', V.filled, '"USD Coin"', ''),
  version: K.required('Version in the signing domain.', V.text, '"2"', ''),
})

export const asset = K.keys({
  symbol: K.required('Symbol in documents.', V.filled, '"USDC"', ''),
  address: K.required('Contract of the stablecoin.', V.address, '"0x..."', V.zeroAddress),
  // Every amount of the service has 6 decimals (specification 8).
  decimals: K.sixDecimals('Decimals of the token.', 6),
  transfer: K.own<Asset['transfer']>(
    strings('Ways to transfer, the preferred one first: "permit2", "eip3009".'),
  ),
  eip712: K.own<K.TableValues<typeof eip712>>(K.tableOf(eip712), true),
  revertsOnUsedNonce: K.flag('A used EIP-3009 nonce reverts instead of being logged.', false),
  eip2612: K.flag('The token takes EIP-2612 permits.', true),
})

export const sponsor = K.keys({
  minBalanceAtomic: K.price('Least balance of the asset, in USD.', '0.1'),
  minBalanceAgeBlocks: K.integer(0, 1_000_000)('Blocks that the balance must be old.', 50),
  grantsPerDay: K.integer(0, 1_000_000)('Grants of a UTC day.', 200),
  maxGrantWei: K.wei('Most ETH of a grant, in wei.', '20000000000000'),
  ethPriceUsd: K.own<number>(
    K.positive('Price of ETH in USD; that of the network by default.').schema,
  ),
})

/** Native coin a day in wei: 0.01 for each product that settles, 0.002 for grants, 0.005 for channels. */
const gasPerDayWei = K.keys({
  gateway: K.wei('Gas of sales a day, in wei.', '10000000000000000'),
  facilitator: K.wei('Gas of the facilitator a day, in wei.', '10000000000000000'),
  desk: K.wei('Gas of the stock desk a day, in wei.', '10000000000000000'),
  sponsor: K.wei('ETH of grants a day, with their gas, in wei.', '2000000000000000'),
  channels: K.wei('Gas of deposits and refunds of channels a day, in wei.', '5000000000000000'),
})

export const channels = K.keys({
  withdrawDelayMs: {
    ...K.withdrawDelay('How long a buyer waits for a withdrawal of its own; 15min to 30d.', '24h'),
    name: 'withdraw_delay',
  },
  minDepositAtomic: K.price('Least deposit, in USD.', '0.50'),
  claimEveryMs: {
    ...K.duration('How often vouchers are claimed; at most a tenth of withdraw_delay.', '15min'),
    name: 'claim_every',
  },
  claimAboveAtomic: K.price('USD of a channel that are claimed at once.', '1.00'),
  unclaimedMaxAtomic: K.price('Most unclaimed USD of all channels together.', '50'),
})

export const network = K.keys({
  name: K.required('Name in documents.', V.filled, '"Base"', ''),
  rpcUrls: K.own<readonly string[]>(strings('Nodes, the preferred one first.'), true),
  wsUrl: K.own<string>(K.text('Node for new heads; empty: polling.', '').schema),
  confirmations: K.integer(1, 1000)('Blocks before a payment is final for a delivery.', 1),
  reorgDepth: K.integer(0, 10_000)('Newest blocks that are checked for reorganisations.', 16),
  testnet: K.flag('Offered only by merchants with testnet_ok.', false),
  batchMax: K.integer(1, 1000)('Payments of one transaction.', 64),
  batchGasMax: K.integer(200_000, 1_000_000_000)('Gas of one transaction.', 12_000_000),
  feeCapWei: { ...K.gwei('Highest price of a unit of gas.', '50'), name: 'fee_cap_gwei' },
  replaceAfterSeconds: K.integer(1, 3600)('Age at which a fee is raised.', 20),
  // The network is omitted from a 402 while gas costs more.
  gasRatioMax: K.ratio('Most gas cost as a share of the price; 0: off.', 0),
  ethPriceUsd: K.positive('Price of ETH, in USD.', 4000),
  gasPerDayWei: K.group(gasPerDayWei),
  asset: K.own<Asset>(K.tableOf(asset), true),
  sponsor: K.own<K.TableValues<typeof sponsor> | undefined>(K.tableOf(sponsor)),
  channels: K.own<K.TableValues<typeof channels> | undefined>(K.tableOf(channels)),
})

export const facilitator = K.keys({
  verifyPerMinute: K.integer(1, 1_000_000)('Calls of /verify of one client.', 120),
  settlePerMinute: K.integer(1, 1_000_000)('Calls of /settle of one client.', 120),
  settleWaitSeconds: K.integer(1, 300)('Longest wait of a caller.', 60),
  payTo: K.own<'own' | 'any' | readonly Address[]>({
    anyOf: [string, K.arrayOf(string)],
    description: 'Payees: "own", "any" or a list of addresses.',
    default: 'own',
  }),
  assets: K.list('Assets that are settled; empty: all of them.', V.address),
  minAmountAtomic: K.amount('Least amount, in USD.', '0'),
  apiKeyHashes: {
    ...K.list('SHA-256 of keys; with one, calls need a key.', V.sha256),
    name: 'api_keys',
  },
  uptoWithoutKeys: K.flag('Settle `upto` for callers without a key, too.', false),
})

// Uniswap V3 fee tiers are hundredths of a basis point, below 1,000,000.
const feeTier = { type: 'integer', minimum: 1, maximum: 999_999 }

export const token = K.keys({
  symbol: K.required('Ticker.', V.ticker, '"NVDA"', ''),
  name: K.required('Name of the company.', V.filled, '"NVIDIA"', ''),
  address: K.required('Contract of the token.', V.address, '"0x..."', V.zeroAddress),
  pool: K.required('Uniswap V3 pool of token and asset.', V.address, '"0x..."', V.zeroAddress),
  fee: K.typed(feeTier, K.required('Fee of the pool.', V.integer(1, 999_999), '500', 0)),
  slippageBps: K.integer(1, 5000)('Most slippage.', 100),
  feed: K.address('Chainlink feed of the price.'),
})

const contract = (description: string) =>
  K.required(description, V.address, '"0x..."', V.zeroAddress)

export const stock = K.keys({
  network: K.own<Network.Id>(K.text('Network of the tokens.', 'eip155:4663').schema),
  minAtomic: K.price('Least order, in USD.', '1'),
  maxAtomic: K.price('Largest order, in USD.', '1000'),
  feeBps: K.integer(0, 1000)('Fee on top of an order.', 0),
  feedDistanceBps: K.integer(1, 10_000)('Most distance of pool and feed.', 300),
  feedMaxAgeSeconds: K.integer(1, 31_536_000)('Most age of a feed.', 93_600),
  factory: contract('Uniswap V3 factory.'),
  router: contract('SwapRouter02.'),
  quoter: contract('QuoterV2.'),
  registry: contract('Registry of the tokens.'),
  seller: K.sentence('Who sells, on the page of the stocks. Without it: the operator of `title`.'),
  restrictions: K.filled(
    'To whom the tokens are not sold, on the page of the stocks.',
    'The issuer does not offer these tokens to persons in the United States, and restricts them in Canada, the United Kingdom and Switzerland. Other countries may have rules of their own: check yours before you buy.',
  ),
  risk: K.filled(
    'What a buyer may lose, on the page of the stocks.',
    'A token follows the price of a stock; it is not the stock, and it gives no vote. Its price can fall, and you can lose all that you paid. The seller does not buy tokens back.',
  ),
  // Both without a trailing slash.
  issuerUrl: K.own<string | undefined>(K.text('API of the issuer, for halts.').schema),
  explorerUrl: K.own<string | undefined>(K.text('API of a block explorer.').schema),
  tokens: K.own<readonly K.TableValues<typeof token>[]>(K.arrayOf(K.tableOf(token)), true),
})

type JsonSchema = Readonly<Record<string, unknown>>

export const param = K.keys({
  name: K.required('Name of the parameter.', V.filled, '"latitude"', ''),
  // Of the tail: the next segment (gateway/Tail.ts).
  in: K.oneOf(['query', 'tail'])('Whether it is in the query or in the path.', 'query'),
  required: K.flag('A request needs it.', false),
  description: K.text('What it means.', ''),
  schema: K.own<JsonSchema>(jsonSchema('JSON Schema of its value.')),
  example: K.own<string | number | boolean | undefined>({
    anyOf: [string, { type: 'number' }, { type: 'boolean' }],
  }),
})

export const unit = K.keys({
  name: K.required('Unit, such as input or output.', V.filled, '"input"', ''),
  price: K.required('USD for `per` of it; up to 12 decimals.', V.rate, '"0.25"', 0n),
  per: K.integer(1, 1_000_000_000)('How many the price is for.', 1_000_000),
})

const limits = K.keys({
  modelsOnly: K.flag('Refuses models that are not in the table.', false),
  maxOutput: K.integer(1, 100_000_000)('Largest output limit of a request; set where it has none.'),
  maxChoices: K.integer(1, 1000)('Most answers of a request.'),
})

export const meterRequest = K.keys({
  model: K.pointer('JSON pointer to the model.'),
  maxOutput: K.list('JSON pointers to the output limit; the upstream obeys the first.', V.pointer),
  choices: K.list('JSON pointers to the number of answers.', V.pointer),
  stream: K.pointer('JSON pointer to what is true for a stream.'),
  onStream: K.list('JSON pointers that are set to true for a stream.', V.pointer),
})

export const meter = K.keys({
  preset: K.typed(
    { anyOf: Preset.names.map((word) => ({ const: word, ...string })) },
    K.required(
      'Where an answer says what it used; see [pricing.md](pricing.md).',
      V.oneOf(Preset.names),
      '"openai"',
      'none',
    ),
  ),
  baseAtomic: K.amount('Charged for every answer, in USD.', '0'),
  units: K.own<never>(K.arrayOf(K.tableOf(unit))),
  missing: K.oneOf(['max', 'base'])(
    'What an answer without usage costs: the ceiling or base.',
    'max',
  ),
  timeouts: K.oneOf(['free', 'base'])(
    'What a request by `upto` costs whose upstream does not answer in time: nothing or base.',
    'free',
  ),
  models: K.own<Meter['models']>({
    ...K.recordOf(K.recordOf(string)),
    description: 'By model: USD by unit, for the `per` of the unit above or 1,000,000.',
  }),
  limits: K.group(limits),
  answer: K.own<never>(
    K.byName('Preset "none": JSON pointer of each unit in a whole answer.', V.pointer).schema,
  ),
  events: K.own<never>(
    K.byName(
      'Preset "none": the same in an event of a stream; those of answer by default.',
      V.pointer,
    ).schema,
  ),
  partOf: K.own<never>(
    K.byName('Preset "none": units that the number of another unit contains.', V.filled).schema,
  ),
  request: K.own<never>(K.tableOf(meterRequest)),
})

/** A count that must be there. */
const count = (description: string, maximum: number, example: string) =>
  K.typed(
    { type: 'integer', minimum: 1, maximum },
    K.required(description, V.integer(1, maximum), example, 0),
  )

export const trial = K.keys({
  requests: count('Free answers of a wallet, once and for all.', 1000, '3'),
  per: K.oneOf(['wallet'])('What the free answers are counted for.', 'wallet'),
  totalPerDay: count('Free answers of all wallets in a UTC day.', 1_000_000, '500'),
  minBalanceAtomic: K.price(
    'Least balance of the asset, in USD; that of `sponsor` of the network by default, else 0.10.',
  ),
  minBalanceAgeBlocks: K.integer(
    0,
    1_000_000,
  )('Blocks that the balance must be old; those of `sponsor` by default, else 50.'),
})

export const pass = K.keys({
  priceAtomic: K.required('Price, in USD.', V.price, '"1.00"', 0n),
  periodMs: {
    ...K.required('How long it is valid, such as "24h" or "30d".', V.duration, '"24h"', 0),
    name: 'period',
  },
  requests: count('Requests that it pays for.', 1_000_000, '500'),
})

export const tails = ['optional', 'required', 'none', 'exact'] as const

export const methods = ['GET', 'POST', 'PUT', 'PATCH', 'DELETE'] as const

export type Method = (typeof methods)[number]

/** Methods whose requests have a body. */
export const withBody: readonly Method[] = ['POST', 'PUT', 'PATCH']

export const schemes = ['exact', 'channel', 'upto'] as const

export const route = K.keys({
  // Literal segments only. Empty: the merchant itself.
  path: K.required(
    'Path below /m/{slug}; "/" is each path that no other route has.',
    V.routePath,
    '"/forecast"',
    '',
  ),
  methods: K.own<readonly Method[]>(strings('Methods; GET by default.')),
  priceAtomic: K.required(
    'Price, in USD; with a meter, the most of a request.',
    V.price,
    '"0.005"',
    0n,
  ),
  summary: K.text('Summary in documents.', ''),
  description: K.text('Description in documents.', ''),
  // Scheme, host and port, if not the merchant's.
  upstream: K.own<URL | undefined>(K.text('Upstream of this route.').schema),
  // Whole path at the upstream. `{tail}` marks the place of the extra segments, without a slash of
  // its own. Without it they are appended after a slash.
  upstreamPath: K.own<string>(K.text('Path at the upstream; that of the route by default.').schema),
  // Exact: one segment for each tail parameter, and no more.
  tail: K.own<'optional' | 'required' | 'none'>(
    K.oneOf(tails)(
      'Whether segments follow the path; "exact": those of the parameters, and no more.',
      'optional',
    ).schema,
  ),
  // The buyer's value takes precedence.
  query: K.byName('Parameters that a request has by default.', V.text),
  fixedQuery: K.byName('Parameters that a request cannot change.', V.text),
  bodyMaxBytes: K.own<number>(
    K.text('Longest request body; that of the service by default.').schema,
  ),
  // In lower case, besides the allowlist.
  passHeaders: K.list('Headers of the answer that are forwarded.', Headers.passName),
  rewrite: K.own<Readonly<Record<string, Readonly<Record<string, string>>>>>({
    ...K.recordOf(K.recordOf(string)),
    description: 'Values of parameters that are replaced for the upstream.',
  }),
  params: K.own<readonly K.TableValues<typeof param>[]>(K.arrayOf(K.tableOf(param))),
  body: K.own<JsonSchema | undefined>(jsonSchema('JSON Schema of the request body.')),
  bodyRequired: K.flag('A request needs a body.', false),
  // Undefined means an object.
  answer: K.own<JsonSchema | undefined>(jsonSchema('JSON Schema of the answer, for documents.')),
  meter: K.own<Meter | undefined>(K.tableOf(meter)),
  // Undefined: each scheme that is possible.
  schemes: K.own<readonly (typeof schemes)[number][] | undefined>(
    strings(`Schemes that are offered: ${schemes.join(', ')}; all that are possible by default.`),
  ),
  again: K.own<{ forMs: number; max: number } | undefined>(
    K.text('How long a buyer may fetch the answer of its request again, such as "24h".').schema,
  ),
  againMax: K.own<never>(K.integer(1, 1000)('How often, for each payment; needs again.', 5).schema),
  trial: K.optionalGroup(trial),
  pass: K.optionalGroup(pass),
})

type RouteMore = {
  /** For the route that sells passes: the path of the route that they open. */
  passOf: string | undefined
  /** Parts of `upstreamPath` that came from the environment: buyers must not see them. */
  pathSecrets: readonly string[]
  /** The tail has one segment for each tail parameter, and no more. */
  isTailExact: boolean
}

export const merchant = K.keys({
  slug: K.required('First segment below /m/.', V.slug, '"weather"', ''),
  title: K.own<string>(K.text('Name; the slug by default.').schema),
  tag: K.filled('Category in documents.', 'Other'),
  description: K.text('Description in documents.', ''),
  // Scheme, host and port. A path in the file is part of each `upstreamPath`. Undefined for merchants
  // that the binary serves itself (`builtin`), or whose every route has an upstream of its own.
  upstream: K.own<URL | undefined>(K.text('URL that requests are forwarded to.').schema),
  builtin: K.oneOf(['catjoke', 'chain-stocks'])('Served by the gateway itself.'),
  allowPrivate: K.own<boolean>(
    K.flag('The upstream may be a private address or plain http.', false).schema,
  ),
  // They replace the buyer's. May contain secrets: never logged.
  headers: K.own<Readonly<Record<string, string>>>(
    K.byName('Headers that are added for the upstream.', V.text).schema,
  ),
  timeoutMs: K.integer(1, 600_000)('Longest wait for the head of an answer.', 30_000),
  idleMs: K.integer(1, 600_000)('Longest silence within an answer.', 60_000),
  concurrencyMax: K.integer(1, 12_000)('Most sales of the merchant in progress.', 512),
  payerCreditAtomic: K.amount(
    'USD by `upto` that one payer may have open, or has lost the merchant within an hour, beyond ' +
      'what it has paid to the merchant.',
    '0.2',
  ),
  lossesPerDayAtomic: K.amount('The same for all payers together within a day.', '5'),
  newStreams: K.oneOf(['held', 'passed'])(
    'Streams by `upto` to payers that never paid to the merchant wait for their charge, or pass.',
    'held',
  ),
  refund: K.oneOf(['by-hand', 'undelivered'])(
    'Refunds by `turnpike refund` alone, or also by itself what was never delivered; needs REFUND_KEY.',
    'by-hand',
  ),
  // `keep_alive = false`: each request to the upstream has a connection of its own.
  ownConnections: {
    ...K.own<boolean>(K.flag('Connections to the upstream are reused.', true).schema),
    name: 'keep_alive',
  },
  // Zero when the merchant is out of service because this address is not set.
  payout: K.own<Address>(
    K.text('Wallet that receives payments; that of the service by default.').schema,
  ),
  networks: K.own<readonly Network.Id[]>(strings('Networks that are offered; all by default.')),
  testnetOk: K.own<never>(K.flag('Test networks are offered, too.', false).schema),
  routes: K.own<readonly (K.TableValues<typeof route> & RouteMore)[]>(
    K.arrayOf(K.tableOf(route)),
    true,
  ),
})

export const webhook = K.keys({
  // Never shown beyond its origin.
  url: K.required(
    'Where messages are sent; https unless allow_private.',
    V.endpointUrl,
    '"https://example.com/turnpike"',
    undefined,
  ),
  events: K.own<readonly Pattern[]>(
    {
      ...K.arrayOf(string),
      description: 'Types of events, `order.*` or `*`; see [webhooks.md](webhooks.md).',
    },
    true,
  ),
  // Keys of the signatures, the newest first.
  secrets: {
    ...K.own<readonly Uint8Array[]>(
      {
        anyOf: [string, K.arrayOf(string)],
        description: 'Signing secret, `whsec_` and base64; during a rotation several.',
      },
      true,
    ),
    name: 'secret',
  },
  allowPrivate: K.flag('The endpoint may be a private address or plain http.', false),
})

export const placeKinds = ['slack', 'discord', 'telegram', 'mail'] as const

const place = {
  kind: K.required(
    'Where alerts are sent: slack, discord, telegram or mail.',
    V.oneOf(placeKinds),
    '"slack"',
    undefined,
  ),
  about: K.list(`Which alerts: ${alertKinds.join(', ')}; empty: all.`, V.oneOf(alertKinds)),
  allowPrivate: K.flag(
    'The place may be a private address, plain http or SMTP without TLS.',
    false,
  ),
}
const url = K.secret('Slack and Discord: the webhook URL.', V.endpointUrl, {
  name: 'SLACK_URL',
  empty: new URL('https://none.invalid'),
})
const ofTelegram = { name: 'TELEGRAM_TOKEN', empty: '' }
const ofMail = { name: 'SMTP_PASSWORD', empty: undefined }

/** The keys of `[[alerts]]` by kind. Secrets are never shown. */
export const places = {
  slack: K.keys({ ...place, url }),
  discord: K.keys({ ...place, url }),
  telegram: K.keys({
    ...place,
    token: K.secret('Telegram: the token of the bot.', V.botToken, ofTelegram),
    chat: K.required(
      'Telegram: id of the chat, or `@name` of a channel.',
      V.filled,
      '"-100123"',
      '',
    ),
  }),
  mail: K.keys({
    ...place,
    host: K.required('Mail: the SMTP server.', V.host, '"smtp.example.com"', ''),
    port: K.integer(1, 65_535)('Mail: port; by default 587, with "tls" 465, with "none" 25.'),
    tls: K.oneOf(['starttls', 'tls', 'none'])(
      'Mail: STARTTLS is required, TLS from the start, or none, which needs allow_private.',
      'starttls',
    ),
    user: K.filled('Mail: name for the login; without it there is none.'),
    password: { ...K.secret('Mail: password of it.', V.filled, ofMail), isRequired: false },
    from: K.required('Mail: address of the sender.', V.mail, '"turnpike@example.com"', ''),
    to: K.list('Mail: 1 to 8 addresses of the recipients.', V.mail),
  }),
}

/** All of them, for the reference page. */
const alert = Object.fromEntries(
  Object.entries({ ...places.slack, ...places.telegram, ...places.mail }).map(([name, key]) => [
    name,
    { ...key, isRequired: name === 'kind' },
  ]),
)

/** The tables of the file. The chains, and the market with its data from them, run until a restart. */
export const file = K.keys({
  service: K.own<K.TableValues<typeof service>>(K.tableOf(service), true),
  networks: K.restart(
    K.own<never>({
      ...K.recordOf(K.tableOf(network)),
      description: 'By CAIP-2 id. It completes or replaces keys of a network in the list.',
    }),
  ),
  facilitator: K.own<K.TableValues<typeof facilitator>>(K.tableOf(facilitator)),
  stock: K.restart(K.own<K.TableValues<typeof stock> | undefined>(K.tableOf(stock))),
  merchants: K.own<never>(K.arrayOf(K.tableOf(merchant)), true),
  webhooks: K.own<never>(K.arrayOf(K.tableOf(webhook))),
  alerts: K.own<never>(K.arrayOf(K.tableOf(alert))),
})
