import type { Config, Merchant, NetworkConfig, Param, Route } from '../../src/config/Config'

/** A route with defaults. */
export function route(path: string, fields: Partial<Route> = {}): Route {
  return {
    path,
    methods: ['GET'],
    priceAtomic: 5_000n,
    summary: `Summary of ${path}`,
    description: `Description of ${path}`,
    upstreamPath: path,
    pathSecrets: [],
    passOf: undefined,
    again: undefined,
    trial: undefined,
    pass: undefined,
    isTailExact: false,
    upstream: undefined,
    tail: 'optional',
    query: {},
    fixedQuery: {},
    bodyMaxBytes: 1_000_000,
    passHeaders: [],
    rewrite: {},
    params: [],
    body: undefined,
    bodyRequired: false,
    answer: undefined,
    meter: undefined,
    schemes: undefined,
    ...fields,
  }
}

/** A merchant with defaults; loopback upstreams need `allowPrivate`. */
export function merchant(slug: string, fields: Partial<Merchant> = {}): Merchant {
  return {
    slug,
    title: slug,
    tag: 'Data',
    description: `Merchant ${slug}`,
    upstream: new URL('https://api.example.com'),
    builtin: undefined,
    allowPrivate: false,
    headers: {},
    secrets: [],
    timeoutMs: 5_000,
    idleMs: 5_000,
    ownConnections: false,
    concurrencyMax: 100,
    payerCreditAtomic: 1_000_000_000n,
    lossesPerDayAtomic: 1_000_000_000n,
    newStreams: 'passed',
    refund: 'by-hand',
    payout: '0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC',
    networks: ['eip155:4663', 'eip155:8453'],
    routes: [],
    hash: '',
    outOfService: undefined,
    ...fields,
  }
}

export function param(name: string, fields: Partial<Param> = {}): Param {
  return {
    name,
    in: 'query',
    required: false,
    description: '',
    schema: { type: 'string' },
    example: undefined,
    ...fields,
  }
}

/** A configuration with two networks around the merchants. */
export function config(merchants: readonly Merchant[]): Config {
  return {
    service: {
      title: 'Turnpike',
      lead: undefined,
      logo: undefined,
      accent: undefined,
      baseUrl: 'http://localhost:4020',
      listen: { hostname: '127.0.0.1', port: 0 },
      connectionsMax: 10_000,
      facilitatorUrl: 'http://localhost:4020',
      stockBaseUrl: 'http://localhost:4020',
      contact: 'ops@example.com',
      guidance: 'Each path is an independent paid endpoint.',
      payout: '0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC',
      trustProxy: 0,
      discoveryNetwork: 'eip155:4663',
      mppOrder: ['eip155:8453', 'eip155:4663'],
      x402V1: true,
      stopSeconds: 30,
      confirmTwiceAboveAtomic: 10_000_000n,
      unsettledMaxAtomic: 1_000_000n,
      payoutExclusive: false,
      settleWaitSeconds: 25,
      bodyMaxBytes: 10_485_760,
      unpaidBodyMaxBytes: 1_048_576,
      bufferedMaxBytes: 268_435_456,
      paidPerMinute: 600,
      concurrencyMax: 1_000,
      metrics: 'public',
      refundPerDayAtomic: 100_000_000n,
      stalledStreamsMax: 32,
      quotePerMinute: 120,
    },
    networks: [network4663, network8453],
    merchants,
    facilitator: {
      verifyPerMinute: 120,
      settlePerMinute: 120,
      settleWaitSeconds: 60,
      payTo: 'own',
      assets: [],
      minAmountAtomic: 0n,
      apiKeyHashes: [],
      uptoWithoutKeys: false,
    },
    stock: undefined,
    webhooks: [],
    alerts: [],
    hash: '',
  }
}

const settling = {
  rpcUrls: ['http://127.0.0.1:1'],
  wsUrl: '',
  confirmations: 1,
  reorgDepth: 16,
  batchMax: 64,
  batchGasMax: 12_000_000,
  feeCapWei: 50_000_000_000n,
  replaceAfterSeconds: 20,
  gasRatioMax: 0,
  ethPriceUsd: 4000,
  gasPerDayWei: { gateway: 1n, facilitator: 1n, desk: 1n, sponsor: 1n, channels: 1n },
  sponsor: undefined,
  channels: undefined,
  testnet: false,
}

const network4663: NetworkConfig = {
  ...settling,
  id: 'eip155:4663',
  chainId: 4663,
  name: 'Robinhood Chain',
  asset: {
    symbol: 'USDG',
    address: '0x5fc5360D0400a0Fd4f2af552ADD042D716F1d168',
    decimals: 6,
    transfer: ['permit2', 'eip3009'],
    eip712: { name: 'Global Dollar', version: '1' },
    revertsOnUsedNonce: false,
    eip2612: true,
  },
}

const network8453: NetworkConfig = {
  ...settling,
  id: 'eip155:8453',
  chainId: 8453,
  name: 'Base',
  asset: {
    symbol: 'USDC',
    address: '0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913',
    decimals: 6,
    transfer: ['eip3009'],
    eip712: { name: 'USD Coin', version: '2' },
    revertsOnUsedNonce: true,
    eip2612: true,
  },
}
