import { readFileSync } from 'node:fs'
import type { Address } from 'viem'
import type { Config, NetworkConfig } from '../../config/Config'
import {
  type Env,
  EnvironmentError,
  findOwnKeys,
  findRelayerKeys,
  loadSecrets,
} from '../../config/env'
import { index, lineOf } from '../../config/lines'
import { format, parse } from '../../config/merchants'
import { warningsOf } from '../../config/warnings'
import { hostOf } from '../../http/url'
import * as Pointer from '../../meter/Pointer'
import * as Crypto from '../../protocol/Crypto'
import type { Run } from '../commands'
import { deskKeyFault, findTarget } from '../operate/database'
import { salesOf, unreadable, warn } from '../words'
import { findMissingProxies, findUnsold } from './by-use'
import { readCosts } from './gas-cost'
import { domainsOf } from './https'
import { findMissingModels } from './models'
import { findOnline, findRefused } from './online'
import { findOverlaps } from './overlaps'
import { type Accounts, findUnfunded } from './unfunded'

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
  await tried(problems, () => assertDatabase(options))
  const own = await tried(problems, () => findOwnKeys(options).map(Crypto.addressOf))
  const relayers = own ?? []
  const domains = (await tried(problems, () => domainsOf(options.domain))) ?? []
  const { config, faults } = parse(text, { file, env, domains, relayers: () => relayers })
  problems.push(...faults.map(format))
  const deskFault = config && deskKeyFault(config, env)
  if (deskFault !== undefined) problems.push(deskFault)
  if (config && online) {
    const lines = index(text)
    const found = await Promise.all([
      findOnline(config, { now }),
      findUnfunded(config, accountsOf({ dataDir, env }, relayers)),
    ])
    const placed = found
      .flat()
      .map(({ path, message }) => ({ file, line: lineOf(lines, path), message }))
    problems.push(...placed.sort((a, b) => a.line - b.line).map(format))
  }
  // Costs are read even with faults: a failed upstream does not affect a chain.
  const costs = config && online ? await readCosts(config) : []
  if (config && problems.length === 0) {
    for (const line of summarize(config)) out(line)
    for (const line of costs) out(line)
    if (online && relayers.length === 0)
      out(
        `relayer    none yet: set RELAYER_KEYS, or start serve once, which makes a key in ${dataDir}`,
      )
    const missing = online
      ? (
          await Promise.all([
            findRefused(config, { now }),
            findMissingModels(config),
            findMissingProxies(config),
          ])
        ).flat()
      : []
    const warnings = [
      ...warningsOf(config, { hasOwnTls: domains.length > 0 }),
      ...findUnsold(config),
      ...findOverlaps(config.merchants),
      ...missing,
    ]
    for (const line of warn(warnings, { file, text })) out(line)
    out('ok')
  }
  if (problems.length > 0) for (const line of costs) out(line)
  for (const problem of problems) out(problem)
  if (problems.length > 0) out(`${problems.length} fault${problems.length === 1 ? '' : 's'}`)
  return problems.length === 0 ? 0 : 1
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
async function assertDatabase({ dataDir, env }: Options): Promise<void> {
  if ((await findTarget(env)) !== undefined) loadSecrets({ dataDir, env, isShared: true })
}

/** The accounts that need gas, of all accounts of ours. */
function accountsOf(options: { dataDir: string; env: Env }, own: readonly Address[]): Accounts {
  // With a fault in the environment there would be no accounts.
  const relayers = own.length === 0 ? [] : findRelayerKeys(options).map(Crypto.addressOf)
  return { relayers, desk: own.find((address) => !relayers.includes(address)) }
}

function summarize(config: Config): string[] {
  const { service, networks, merchants, stock } = config
  const out = merchants.filter((merchant) => merchant.outOfService !== undefined)
  return [
    `${service.title} at ${service.baseUrl}, listening on ${hostOf(service.listen.hostname)}:${service.listen.port}`,
    `networks   ${networks.map(describe).join(', ')}`,
    `merchants  ${salesOf(merchants)}: ${merchants.map(({ slug }) => slug).join(', ')}`,
    `stock      ${stock ? `${stock.tokens.length} tokens on ${stock.network}` : 'none'}`,
    `metrics    ${readers[service.metrics]}`,
    ...failuresOf(merchants).map((line) => `free       ${line}`),
    ...out.map(({ slug, outOfService }) => `out of service: ${slug} (${outOfService} is not set)`),
  ]
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

function describe(network: NetworkConfig): string {
  return `${network.name} (${network.id}, ${network.asset.symbol}${network.testnet ? ', testnet' : ''})`
}
