import { parse as parseToml, TomlError } from 'smol-toml'
import type { Address } from 'viem'
import * as Crypto from '../protocol/Crypto'
import type * as Network from '../protocol/Network'
import { readAlerts } from './alerts'
import type { Config } from './Config'
import { crossCheck, reportUnpaidRefunds } from './cross-checks'
import { baseUrlOf, checkDomains } from './domains'
import { type Env, hasRefundKey, readEnv } from './env'
import { index } from './lines'
import { readMerchants } from './merchant'
import { readNetworks, selectNetworks } from './networks'
import { readFacilitator, readStock } from './products'
import { close, isTable, openTable, type Fault as Reported, type Source } from './reader'
import { readService } from './service'
import { substitute } from './substitute'
import { explainSyntax } from './syntax'
import { readWebhooks } from './webhooks'

/** A fault in the file: its place, and the correction. It contains no value of the environment. */
type Fault = Reported

/** Values that replace values of the file before the checks. */
export type Overrides = {
  /** Replaces `rpc_urls` of a listed network and clears its `ws_url`. */
  rpcUrls?: Readonly<Record<Network.Id, string>>
  /**
   * Replaces every upstream. A merchant whose new upstream is on this machine allows private
   * addresses.
   */
  upstream?: (url: URL) => URL
  /** Replaces `payout` of `[service]`. Payouts of merchants stay. */
  payout?: Address
  baseUrl?: string
  listen?: string
}

export type Options = {
  /** Name of the file in faults. */
  file: string
  /** Variables for `${NAME}` and `NAME_FILE`. */
  env: Env
  overrides?: Overrides
  /** Domains of `--domain`; the first is in the default `base_url`. */
  domains?: readonly string[]
  /**
   * Addresses of our own accounts, none of which may be a payout. Called only when there is no
   * other fault, because it may generate the keys that the networks need.
   */
  relayers?: (config: Pick<Config, 'networks'>) => readonly Address[]
}

type Result =
  | { config: Config; faults: readonly [] }
  | { config: undefined; faults: readonly Fault[] }

/**
 * Reads merchants.toml. Returns the configuration, or every fault of the file at once, in line
 * order. Never throws for the content of a file or the environment, and no message shows a value
 * that came from the environment.
 */
export function parseConfig(
  text: string,
  { file, env, overrides = {}, domains = [], relayers = () => [] }: Options,
): Result {
  const strange = text.indexOf('\ufffd')
  if (strange !== -1) {
    // A decoder replaces invalid bytes by U+FFFD, which would change a name or a key without an
    // error.
    const line = text.slice(0, strange).split('\n').length
    const message = 'the bytes here are not UTF-8: save the file as UTF-8'
    return { config: undefined, faults: [{ file, line, message }] }
  }
  let document: Record<string, unknown>
  try {
    document = parseToml(text, { unsafeKeyBehaviour: 'throw', maxDepth: 64 })
  } catch (error) {
    if (!(error instanceof TomlError)) throw error
    const fault = { file, line: error.line, message: explainSyntax(text, error) }
    return { config: undefined, faults: [fault] }
  }
  let lines: Source['lines'] | undefined
  const source: Source = {
    file,
    // Computed only for a fault.
    get lines() {
      lines ??= index(text)
      return lines
    },
    faults: new Map(),
    fromEnv: new Map(),
    unset: new Set(),
    closed: [],
  }
  const config = readConfig(document, source, { env, overrides, domains, relayers })
  const faults = [...source.faults.values()].sort((a, b) => a.line - b.line)
  if (faults.length > 0) return { config: undefined, faults }
  const hash = Crypto.sha256(text)
  return { config: { ...config, hash }, faults: [] }
}

/** `file:line: message`. */
export function format({ file, line, message }: Fault): string {
  return `${file}:${line}: ${message}`
}

function readConfig(
  document: Readonly<Record<string, unknown>>,
  source: Source,
  { env, overrides, domains, relayers }: Required<Omit<Options, 'file'>>,
): Omit<Config, 'hash'> {
  const selected = selectNetworks(withBaseUrl(document, domains), source)
  const overridden = override(selected, overrides)
  const { raw, unsetNames } = substitute(overridden, source, readEnv(env))
  const root = openTable(source, [], raw)
  const networks = readNetworks(root)
  const service = readService(root, networks)
  checkDomains(source, service.baseUrl, domains)
  const rawMerchants = Array.isArray(document.merchants) ? document.merchants : []
  const config = {
    service,
    networks,
    merchants: readMerchants(root, {
      service,
      networks,
      rawMerchants,
      unsetNames,
      mapUpstream: overrides.upstream,
    }),
    facilitator: readFacilitator(root, networks),
    stock: readStock(root, networks, overrides.upstream),
    webhooks: readWebhooks(root),
    alerts: readAlerts(root),
  }
  close(root)
  if (!hasRefundKey(env)) reportUnpaidRefunds(source, config)
  crossCheck(source, config, [])
  if (source.faults.size === 0) crossCheck(source, config, relayers(config))
  return config
}

/** The document with the `base_url` of the first domain, unless it has one. */
function withBaseUrl(
  document: Readonly<Record<string, unknown>>,
  domains: readonly string[],
): Readonly<Record<string, unknown>> {
  const { service } = document
  if (domains.length === 0 || (service !== undefined && !isTable(service))) return document
  return { ...document, service: { base_url: baseUrlOf(domains), ...service } }
}

/** The document with the overrides that replace plain keys, before `${NAME}` is looked up. */
function override(
  document: Readonly<Record<string, unknown>>,
  { rpcUrls, payout, baseUrl, listen }: Overrides,
): Record<string, unknown> {
  const result = { ...document }
  if (document.service === undefined || isTable(document.service)) {
    const own = { payout, base_url: baseUrl, listen }
    const set = Object.entries(own).filter(([, value]) => value !== undefined)
    if (set.length > 0) result.service = { ...document.service, ...Object.fromEntries(set) }
  }
  if (rpcUrls && isTable(document.networks)) {
    const urls = new Map(Object.entries(rpcUrls))
    const networks = Object.entries(document.networks).map(([id, network]) => {
      const url = urls.get(id)
      const isReplaced = url !== undefined && isTable(network)
      return [id, isReplaced ? { ...network, rpc_urls: [url], ws_url: '' } : network]
    })
    result.networks = Object.fromEntries(networks)
  }
  return result
}
