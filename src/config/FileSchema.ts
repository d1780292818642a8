import { type Static, type TSchema, Type } from '@sinclair/typebox'

/**
 * The shape of `merchants.toml`, for its documentation. It is not used for checks: the readers
 * report the line, the correction and conflicts with other keys, which a schema cannot. A test
 * compares the two.
 */

const closed = { additionalProperties: false }
const optional = <S extends TSchema>(schema: S) => Type.Optional(schema)
const text = (description: string, value?: string) =>
  optional(Type.String({ description, ...(value !== undefined && { default: value }) }))
const integer = (description: string, minimum: number, maximum: number, value: number) =>
  optional(Type.Integer({ description, minimum, maximum, default: value }))
const flag = (description: string, value: boolean) =>
  optional(Type.Boolean({ description, default: value }))
const number = (description: string, value?: number) =>
  optional(Type.Number({ description, minimum: 0, ...(value !== undefined && { default: value }) }))
const texts = (description: string) => optional(Type.Array(Type.String(), { description }))
const oneOf = (description: string, words: readonly string[], value?: string) => {
  const literals = words.map((word) => Type.Literal(word))
  return optional(Type.Union(literals, { description, ...(value && { default: value }) }))
}
const address = (description: string) => Type.String({ description })
const byName = (description: string) =>
  optional(Type.Record(Type.String(), Type.String(), { description }))
const jsonSchema = (description: string) =>
  optional(Type.Record(Type.String(), Type.Unknown(), { description }))

const service = Type.Object(
  {
    title: text('Name of the service in pages and documents.', 'Turnpike'),
    lead: text('What is sold, in one sentence, on the first page.'),
    logo: text('SVG or PNG file of at most 64 KiB, beside this file.'),
    accent: text('Colour of the pages, such as "#0b6060".'),
    base_url: text('URL of the service as buyers see it, without a path.', 'http://localhost:4020'),
    listen: text('Address and port.', '127.0.0.1:4020'),
    connections_max: integer('Connections of clients.', 16, 1_000_000, 10_000),
    facilitator_url: text('URL of the facilitator; may have a path. Empty: base_url.', ''),
    stock_base_url: text('URL of the stock desk and of gas. Empty: base_url.', ''),
    contact: text('Address in documents and in requests to others; without it there is none.'),
    guidance: text(
      'First guidance for agents in documents.',
      'Each path is an independent paid endpoint.',
    ),
    payout: address('Wallet that receives payments.'),
    trust_proxy: integer('Reverse proxies in front that set X-Forwarded-For.', 0, 16, 0),
    networks: texts(
      'Networks: "base", "base-sepolia", "robinhood", or CAIP-2 ids. Without it, those with a block.',
    ),
    discovery_network: text(
      'Network of the aggregated document; "robinhood" where it is offered, else the first network.',
    ),
    mpp_order: texts('Order of MPP challenges: "base", "robinhood", then the others by default.'),
    stop_seconds: integer('Longest time that a stop waits for paid requests.', 0, 600, 30),
    settle_wait_seconds: integer('Longest wait of a buyer for a settlement.', 1, 300, 25),
    confirm_twice_above: text('USD above which a second node must agree, or "off".', '10'),
    unsettled_max: text('USD that one payer may use before it is settled (x402 `upto`).', '1'),
    payout_exclusive: flag('Only this service sells for its payouts.', false),
    body_max: text('Longest request body of a route.', '10MiB'),
    unpaid_body_max: text('Longest request body without a credential.', '1MiB'),
    buffered_max: text('Request bodies in memory at once.', '256MiB'),
    paid_per_minute: integer('Credentials of one client.', 1, 1_000_000, 600),
    quote_per_minute: integer('Free quotes of one client.', 1, 1_000_000, 120),
    concurrency_max: integer('Most sales in progress.', 1, 12_000, 2_048),
    metrics: oneOf(
      'Who may read /metrics: everyone, clients with ADMIN_TOKEN as bearer token, or no client. Without it "public" where base_url is this machine, else "token".',
      ['public', 'token', 'off'],
    ),
    stalled_streams_max: integer('Streams whose buyers do not read.', 1, 12_000, 16),
  },
  closed,
)

const asset = Type.Object(
  {
    symbol: Type.String({ description: 'Symbol in documents.' }),
    address: address('Contract of the stablecoin.'),
    decimals: integer('Decimals of the token.', 6, 6, 6),
    transfer: texts('Ways to transfer, the preferred one first: "permit2", "eip3009".'),
    eip712: Type.Object(
      {
        name: Type.String({ description: 'Name in the signing domain.' }),
        version: Type.String({ description: 'Version in the signing domain.' }),
      },
      closed,
    ),
    reverts_on_used_nonce: flag('A used EIP-3009 nonce reverts instead of being logged.', false),
    eip2612: flag('The token takes EIP-2612 permits.', true),
  },
  closed,
)

const sponsor = Type.Object(
  {
    min_balance: text('Least balance of the asset, in USD.', '0.1'),
    min_balance_age_blocks: integer('Blocks that the balance must be old.', 0, 1_000_000, 50),
    grants_per_day: integer('Grants of a UTC day.', 0, 1_000_000, 200),
    max_grant_wei: text('Most ETH of a grant, in wei.', '20000000000000'),
    eth_price_usd: number('Price of ETH in USD; that of the network by default.'),
  },
  closed,
)

const gasPerDayWei = Type.Object(
  {
    gateway: text('Gas of sales a day, in wei.', '10000000000000000'),
    facilitator: text('Gas of the facilitator a day, in wei.', '10000000000000000'),
    desk: text('Gas of the stock desk a day, in wei.', '10000000000000000'),
    sponsor: text('ETH of grants a day, with their gas, in wei.', '2000000000000000'),
  },
  closed,
)

const network = Type.Object(
  {
    name: Type.String({ description: 'Name in documents.' }),
    rpc_urls: Type.Array(Type.String(), { description: 'Nodes, the preferred one first.' }),
    ws_url: text('Node for new heads; empty: polling.', ''),
    confirmations: integer('Blocks before a payment is final for a delivery.', 1, 1000, 1),
    reorg_depth: integer('Newest blocks that are checked for reorganisations.', 0, 10_000, 16),
    testnet: flag('Offered only by merchants with testnet_ok.', false),
    batch_max: integer('Payments of one transaction.', 1, 1000, 64),
    batch_gas_max: integer('Gas of one transaction.', 200_000, 1_000_000_000, 12_000_000),
    fee_cap_gwei: text('Highest price of a unit of gas.', '50'),
    replace_after_seconds: integer('Age at which a fee is raised.', 1, 3600, 20),
    gas_ratio_max: number('Most gas cost as a share of the price; 0: off.', 0),
    eth_price_usd: number('Price of ETH, in USD.', 4000),
    gas_per_day_wei: optional(gasPerDayWei),
    asset,
    sponsor: optional(sponsor),
  },
  closed,
)

const facilitator = Type.Object(
  {
    verify_per_minute: integer('Calls of /verify of one client.', 1, 1_000_000, 120),
    settle_per_minute: integer('Calls of /settle of one client.', 1, 1_000_000, 120),
    settle_wait_seconds: integer('Longest wait of a caller.', 1, 300, 60),
    pay_to: optional(
      Type.Union([Type.String(), Type.Array(Type.String())], {
        description: 'Payees: "own", "any" or a list of addresses.',
        default: 'own',
      }),
    ),
    assets: texts('Assets that are settled; empty: all of them.'),
    min_amount: text('Least amount, in USD.', '0'),
    api_keys: texts('SHA-256 of keys; with one, calls need a key.'),
    upto_without_keys: flag('Settle `upto` for callers without a key, too.', false),
  },
  closed,
)

const token = Type.Object(
  {
    symbol: Type.String({ description: 'Ticker.' }),
    name: Type.String({ description: 'Name of the company.' }),
    address: address('Contract of the token.'),
    pool: address('Uniswap V3 pool of token and asset.'),
    fee: Type.Integer({ description: 'Fee of the pool.', minimum: 1, maximum: 999_999 }),
    slippage_bps: integer('Most slippage.', 1, 5000, 100),
    feed: optional(address('Chainlink feed of the price.')),
  },
  closed,
)

const stock = Type.Object(
  {
    network: text('Network of the tokens.', 'eip155:4663'),
    min: text('Least order, in USD.', '1'),
    max: text('Largest order, in USD.', '1000'),
    fee_bps: integer('Fee on top of an order.', 0, 1000, 0),
    feed_distance_bps: integer('Most distance of pool and feed.', 1, 10_000, 300),
    feed_max_age_seconds: integer('Most age of a feed.', 1, 31_536_000, 93_600),
    factory: address('Uniswap V3 factory.'),
    router: address('SwapRouter02.'),
    quoter: address('QuoterV2.'),
    registry: address('Registry of the tokens.'),
    issuer_url: text('API of the issuer, for halts.'),
    explorer_url: text('API of a block explorer.'),
    tokens: Type.Array(token),
  },
  closed,
)

const param = Type.Object(
  {
    name: Type.String({ description: 'Name of the parameter.' }),
    in: oneOf('Whether it is in the query or in the path.', ['query', 'tail'], 'query'),
    required: flag('A request needs it.', false),
    description: text('What it means.', ''),
    schema: jsonSchema('JSON Schema of its value.'),
    example: optional(Type.Union([Type.String(), Type.Number(), Type.Boolean()])),
  },
  closed,
)

const unit = Type.Object(
  {
    name: Type.String({ description: 'Unit, such as input or output.' }),
    price: Type.String({ description: 'USD for `per` of it; up to 12 decimals.' }),
    per: integer('How many the price is for.', 1, 1_000_000_000, 1_000_000),
  },
  closed,
)

const limits = Type.Object(
  {
    models_only: flag('Refuses models that are not in the table.', false),
    max_output: optional(
      Type.Integer({
        description: 'Largest output limit of a request; set where it has none.',
        minimum: 1,
        maximum: 100_000_000,
      }),
    ),
    max_choices: optional(
      Type.Integer({ description: 'Most answers of a request.', minimum: 1, maximum: 1000 }),
    ),
  },
  closed,
)

const meterRequest = Type.Object(
  {
    model: text('JSON pointer to the model.'),
    max_output: texts('JSON pointers to the output limit; the upstream obeys the first.'),
    choices: texts('JSON pointers to the number of answers.'),
    stream: text('JSON pointer to what is true for a stream.'),
    on_stream: texts('JSON pointers that are set to true for a stream.'),
  },
  closed,
)

const meter = Type.Object(
  {
    preset: Type.Union(
      ['openai', 'anthropic', 'gemini', 'header', 'none'].map((word) => Type.Literal(word)),
      { description: 'Where an answer says what it used; see [pricing.md](pricing.md).' },
    ),
    base: text('Charged for every answer, in USD.', '0'),
    units: optional(Type.Array(unit)),
    missing: oneOf(
      'What an answer without usage costs: the ceiling or base.',
      ['max', 'base'],
      'max',
    ),
    timeouts: oneOf(
      'What a request by `upto` costs whose upstream does not answer in time: nothing or base.',
      ['free', 'base'],
      'free',
    ),
    models: optional(
      Type.Record(Type.String(), Type.Record(Type.String(), Type.String()), {
        description: 'By model: USD by unit, for the `per` of the unit above or 1,000,000.',
      }),
    ),
    limits: optional(limits),
    answer: byName('Preset "none": JSON pointer of each unit in a whole answer.'),
    events: byName('Preset "none": the same in an event of a stream; those of answer by default.'),
    part_of: byName('Preset "none": units that the number of another unit contains.'),
    request: optional(meterRequest),
  },
  closed,
)

const route = Type.Object(
  {
    path: Type.String({
      description: 'Path below /m/{slug}; "/" is each path that no other route has.',
    }),
    methods: texts('Methods; GET by default.'),
    price: Type.String({ description: 'Price, in USD; with a meter, the most of a request.' }),
    summary: text('Summary in documents.', ''),
    description: text('Description in documents.', ''),
    upstream: text('Upstream of this route.'),
    upstream_path: text('Path at the upstream; that of the route by default.'),
    tail: oneOf('Whether segments follow the path.', ['optional', 'required', 'none'], 'optional'),
    query: byName('Parameters that a request has by default.'),
    fixed_query: byName('Parameters that a request cannot change.'),
    body_max: text('Longest request body; that of the service by default.'),
    pass_headers: texts('Headers of the answer that are forwarded.'),
    rewrite: optional(
      Type.Record(Type.String(), Type.Record(Type.String(), Type.String()), {
        description: 'Values of parameters that are replaced for the upstream.',
      }),
    ),
    params: optional(Type.Array(param)),
    body: jsonSchema('JSON Schema of the request body.'),
    body_required: flag('A request needs a body.', false),
    answer: jsonSchema('JSON Schema of the answer, for documents.'),
    meter: optional(meter),
  },
  closed,
)

const merchant = Type.Object(
  {
    slug: Type.String({ description: 'First segment below /m/.' }),
    title: text('Name; the slug by default.'),
    tag: text('Category in documents.', 'Other'),
    description: text('Description in documents.', ''),
    upstream: text('URL that requests are forwarded to.'),
    builtin: oneOf('Served by the gateway itself.', ['catjoke', 'chain-stocks']),
    allow_private: flag('The upstream may be a private address or plain http.', false),
    headers: byName('Headers that are added for the upstream.'),
    timeout_ms: integer('Longest wait for the head of an answer.', 1, 600_000, 30_000),
    idle_ms: integer('Longest silence within an answer.', 1, 600_000, 60_000),
    concurrency_max: integer('Most sales of the merchant in progress.', 1, 12_000, 512),
    payer_credit: text(
      'USD by `upto` that one payer may have open, or has lost the merchant within an hour, beyond ' +
        'what it has paid to the merchant.',
      '0.2',
    ),
    losses_per_day: text('The same for all payers together within a day.', '5'),
    new_streams: oneOf(
      'Streams by `upto` to payers that never paid to the merchant wait for their charge, or pass.',
      ['held', 'passed'],
      'held',
    ),
    keep_alive: flag('Connections to the upstream are reused.', true),
    payout: text('Wallet that receives payments; that of the service by default.'),
    networks: texts('Networks that are offered; all by default.'),
    testnet_ok: flag('Test networks are offered, too.', false),
    routes: Type.Array(route),
  },
  closed,
)

const webhook = Type.Object(
  {
    url: Type.String({ description: 'Where messages are sent; https unless allow_private.' }),
    events: Type.Array(Type.String(), {
      description: 'Types of events, `order.*` or `*`; see [webhooks.md](webhooks.md).',
    }),
    secret: Type.Union([Type.String(), Type.Array(Type.String())], {
      description: 'Signing secret, `whsec_` and base64; during a rotation several.',
    }),
    allow_private: flag('The endpoint may be a private address or plain http.', false),
  },
  closed,
)

export const fileSchema = Type.Object(
  {
    service,
    networks: optional(
      Type.Record(Type.String(), network, {
        description: 'By CAIP-2 id. It completes or replaces keys of a network in the list.',
      }),
    ),
    facilitator: optional(facilitator),
    stock: optional(stock),
    merchants: Type.Array(merchant),
    webhooks: optional(Type.Array(webhook)),
  },
  closed,
)

/** A file that TOML has parsed, before its values are checked. */
export type File = Static<typeof fileSchema>
