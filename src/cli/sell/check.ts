import { readFileSync } from 'node:fs'
import type { Address } from 'viem'
import { BesideError } from '../../../db/fault'
import type { Config, Merchant, NetworkConfig } from '../../config/Config'
import {
  databaseUrlOf,
  EnvironmentError,
  findAuthorizerKey,
  findOwnKeys,
  findRefundKey,
  findRelayerKeys,
  loadSecrets,
} from '../../config/env'
import { format, parseConfig } from '../../config/merchants'
import { warningsOf } from '../../config/warnings'
import * as Route from '../../gateway/Route'
import { cheaperAround } from '../../gateway/Territory'
import { hostOf } from '../../http/url'
import * as Pointer from '../../meter/Pointer'
import * as Entitlements from '../../paywall/entitlement/Entitlements'
import * as ByUse from '../../paywall/usage/ByUse'
import * as Amount from '../../protocol/Amount'
import * as Crypto from '../../protocol/Crypto'
import { findChannelsFault } from '../../settlement/channels/authorizer'
import type { Run } from '../commands'
import { deskKeyFault, findTarget, withLedger } from '../operate/database'
import { placed, salesOf, unreadable, warn } from '../words'
import { readCosts } from './gas-cost'
import { domainsOf } from './https'
import {
  type Accounts,
  type Finding,
  findMissingModels,
  findMissingProxies,
  findOnline,
  findRefused,
  findUnfunded,
  readRefundMoney,
} from './online'

type Options = Run<'check'>

/**
 * Validates merchants.toml. Prints each fault as `file:line: message`, or a summary with warnings
 * of the same form. Returns the exit code: 0 without faults, else 1. Writes nothing, and generates
 * no secrets.
 */
export async function check(options: Options): Promise<number> {
  const { file, env, online, dataDir, now, out } = options
  let text: string
  try {
    text = readFileSync(file, 'utf8')
  } catch (error) {
    out(unreadable(file, error))
    return 1
  }
  const problems: string[] = []
  const own = await tried(problems, () => findOwnKeys(options).map(Crypto.addressOf))
  const relayers = own ?? []
  const domains = (await tried(problems, () => domainsOf(options.domain))) ?? []
  const { config, faults } = parseConfig(text, { file, env, domains, relayers: () => relayers })
  await tried(problems, () => assertDatabase(options, config))
  const deskFault = config && deskKeyFault(config, env)
  const channelFault = await tried(problems, () => findChannelFault(options, config))
  const keyFaults = [deskFault, channelFault].filter((fault) => fault !== undefined)
  problems.push(...faults.map(format), ...keyFaults)
  const drift = config && (await findDriftFrom(options, config))
  if (config && (online || drift)) {
    const found = await Promise.all([
      ...(online
        ? [findOnline(config, { now }), findUnfunded(config, accountsOf(options, relayers))]
        : []),
      drift?.findings ?? [],
    ])
    const inOrder = placed(found.flat(), { file, text }).sort((a, b) => a.line - b.line)
    problems.push(...inOrder.map((each) => each.text))
  }
  // Costs are read even with faults: a failed upstream does not affect a chain.
  const costs = config && online ? await readCosts(config) : []
  if (config === undefined || problems.length > 0) {
    for (const line of [...costs, ...problems]) out(line)
    out(`${problems.length} fault${problems.length === 1 ? '' : 's'}`)
    return 1
  }
  const refunder = refunderOf(options, relayers)
  const refunds = online && refunder ? await readRefundMoney(config, refunder) : []
  for (const line of [...summarize(config, refunder), ...refunds, ...costs]) out(line)
  for (const key of drift?.unsold ?? []) out(`not sold   ${key}`)
  if (online && relayers.length === 0)
    out(
      `relayer    none yet: set RELAYER_KEYS, or start serve once, which makes a key in ${dataDir}`,
    )
  const finds = [findRefused, findMissingModels, findMissingProxies]
  const missing = online ? await Promise.all(finds.map((find) => find(config, { now }))) : []
  const warnings = [
    ...warningsOf(config, { hasOwnTls: domains.length > 0 }),
    ...findUnsold(config),
    ...findOverlaps(config.merchants),
    ...missing.flat(),
  ]
  for (const line of warn(warnings, { file, text })) out(line)
  out('ok')
  return 0
}

/** How the routes differ from the specification of --openapi. Only this loads its parsers. */
async function findDriftFrom({ openapi }: Options, config: Config) {
  if (openapi === undefined) return undefined
  const { readDocument } = await import('../openapi/document')
  const { findDrift } = await import('../openapi/drift')
  return findDrift(config, await readDocument(openapi))
}

/** The result of a part; without one, the faults of the environment are added to the problems. */
async function tried<T>(problems: string[], part: () => T | Promise<T>): Promise<T | undefined> {
  try {
    return await part()
  } catch (error) {
    if (!(error instanceof EnvironmentError)) throw error
    const known = new Set(problems)
    problems.push(...error.message.split('\n').filter((line) => !known.has(line)))
    return undefined
  }
}

/** Checks DATABASE_URL, and the secrets that must be given with it. Asks no server. */
async function assertDatabase(
  { dataDir, env }: Options,
  config: Pick<Config, 'networks'> | undefined,
): Promise<void> {
  const hasChannels = config?.networks.some(({ channels }) => channels !== undefined)
  if ((await findTarget(env)) !== undefined)
    loadSecrets({ dataDir, env, isShared: true, hasChannels })
}

/**
 * Why the start would refuse RECEIVER_AUTHORIZER_KEY, or networks without channels. With a database server
 * only that start asks.
 */
async function findChannelFault(
  options: Options,
  config: Pick<Config, 'networks'> | undefined,
): Promise<string | undefined> {
  if (databaseUrlOf(options.env) !== undefined) return undefined
  try {
    return await withLedger(options, ({ channels }) =>
      findChannelsFault(channels, findAuthorizerKey(options), config?.networks),
    )
  } catch (error) {
    // None yet, or of another version: then the start says what to do.
    if (error instanceof BesideError) return undefined
    throw error
  }
}

/** The accounts that need gas, of all accounts of ours. */
function accountsOf(options: Options, own: readonly Address[]): Accounts {
  // With a fault in the environment there would be no accounts.
  const relayers = own.length === 0 ? [] : findRelayerKeys(options).map(Crypto.addressOf)
  const authorizer = own.length === 0 ? undefined : findAuthorizerKey(options)
  const others = [...relayers, refunderOf(options, own), authorizer && Crypto.addressOf(authorizer)]
  return { relayers, desk: own.find((address) => !others.includes(address)) }
}

/** The account of refunds, which needs no gas. */
function refunderOf({ env }: Pick<Options, 'env'>, own: readonly Address[]): Address | undefined {
  const key = own.length === 0 ? undefined : findRefundKey(env)
  return key && Crypto.addressOf(key)
}

function summarize(config: Config, refunder: Address | undefined): string[] {
  const { service, networks, merchants, stock } = config
  const out = merchants.filter((merchant) => merchant.outOfService !== undefined)
  return [
    `${service.title} at ${service.baseUrl}, listening on ${hostOf(service.listen.hostname)}:${service.listen.port}`,
    `networks   ${networks.map(describe).join(', ')}`,
    `merchants  ${salesOf(merchants)}: ${merchants.map(({ slug }) => slug).join(', ')}`,
    `stock      ${stock ? `${stock.tokens.length} tokens on ${stock.network}` : 'none'}`,
    `metrics    ${readers[service.metrics]}`,
    ...(refunder === undefined
      ? []
      : [`refunds    from ${refunder}, at most ${usd(service.refundPerDayAtomic)} USD a day`]),
    ...failuresOf(merchants).map((line) => `free       ${line}`),
    ...entitlementsOf(config),
    ...out.map(({ slug, outOfService }) => `out of service: ${slug} (${outOfService} is not set)`),
  ]
}

function usd(amountAtomic: bigint): string {
  return Amount.toDecimal(amountAtomic, 6)
}

const readers: Readonly<Record<Config['service']['metrics'], string>> = {
  public: '/metrics is for everyone',
  token: '/metrics needs Authorization: Bearer ADMIN_TOKEN',
  off: '/metrics is off',
}

/** Which answers a meter takes for errors, which cost nothing. */
function failuresOf(merchants: Config['merchants']): readonly string[] {
  const lines = merchants.flatMap(({ routes }) =>
    routes.flatMap(({ meter }) => {
      const pointers = meter?.plan.failures.map(Pointer.format) ?? []
      if (meter === undefined || pointers.length === 0) return []
      return [`answers of preset ${meter.preset} with a value at ${pointers.join(' or ')}`]
    }),
  )
  return [...new Set(lines)]
}

/** Routes with an entitlement that a summary shows. */
const givenMax = 20

/** What wallets have at routes without a further payment. */
function entitlementsOf({ networks, merchants }: Config): readonly string[] {
  const lines = merchants.flatMap(({ slug, routes, networks: own }) => {
    const offered = networks.filter(({ id }) => own.includes(id))
    return routes.flatMap((route) =>
      Entitlements.linesOf(route, offered).map(
        ([kind, text]) => `${kind.padEnd(10)} ${slug}${route.path || '/'}: ${text}`,
      ),
    )
  })
  const more = lines.length - givenMax
  return more > 0 ? [...lines.slice(0, givenMax), `and ${more} more of these`] : lines
}

function describe({ name, id, asset, testnet, channels }: NetworkConfig): string {
  const more = [testnet && 'testnet', channels && 'channels'].filter((word) => word)
  return `${name} (${[id, asset.symbol, ...more].join(', ')})`
}

/**
 * Why the file itself keeps routes with a meter from being sold by the x402 scheme `upto`; they are
 * sold by `exact` then.
 */
function findUnsold({ service, merchants }: Config): Finding[] {
  const most = service.unsettledMaxAtomic
  return merchants.flatMap((merchant, i): Finding[] => {
    const { slug, timeoutMs, routes } = merchant
    const metered = routes.some(({ meter }) => meter !== undefined)
    if (metered && !ByUse.mayBeByUse(merchant)) {
      const message =
        `timeout_ms of ${slug} is ${timeoutMs}: above ${ByUse.timeoutMaxMs} its metered routes are not ` +
        'sold by upto, because the signature would end before a slow answer is settled'
      return [{ path: ['merchants', i, 'timeout_ms'], message }]
    }
    return routes.flatMap(({ meter, path, priceAtomic, schemes }, j): Finding[] => {
      if (meter === undefined || schemes?.includes('upto') === false) return []
      if (priceAtomic <= most) return []
      const message =
        `the price of ${slug}${path} is above unsettled_max (${usd(most)}): a request ` +
        'with a ceiling above it is not sold by upto'
      return [{ path: ['merchants', i, 'routes', j, 'price'], message }]
    })
  })
}

const namedMax = 3

/** Routes that forward to the upstream paths of dearer ones, one finding for each. */
function findOverlaps(merchants: readonly Merchant[]): Finding[] {
  const { all } = Route.compile(merchants)
  const dearer = new Map<Route.Match['route'], Set<string>>()
  for (const match of all)
    for (const { route } of match.target ? cheaperAround(match.target.territory, match) : []) {
      const names = dearer.get(route) ?? new Set()
      dearer.set(route, names.add(nameOf(match)))
    }
  return all.flatMap((match): Finding[] => {
    const names = [...(dearer.get(match.route) ?? [])]
    if (names.length === 0) return []
    const i = merchants.indexOf(match.merchant)
    const j = match.merchant.routes.indexOf(match.route)
    const more = names.length > namedMax ? ` and ${names.length - namedMax} more` : ''
    const message =
      `${nameOf(match)} forwards to paths that cost more at ${names.slice(0, namedMax).join(', ')}${more}: ` +
      'spellings that only the upstream knows get them at the lower price; write tail = "none", or ' +
      'another upstream_path'
    return [{ path: ['merchants', i, 'routes', j, 'path'], message }]
  })
}

function nameOf({ merchant, route }: Route.Match): string {
  return `${merchant.slug}${route.path || '/'}`
}
