import { readFileSync } from 'node:fs'
import type { Config, NetworkConfig } from '../config/Config'
import { type Env, EnvironmentError, findRelayerKeys } from '../config/env'
import { format, parse } from '../config/merchants'
import * as Crypto from '../protocol/Crypto'

export type Options = {
  /** Path of merchants.toml. */
  file: string
  env: Env
  /** Whether to ask every RPC and upstream too. */
  online: boolean
  dataDir: string
  /** Takes one line. */
  out: (line: string) => void
}

const requestTimeoutMs = 10_000

/**
 * Validates merchants.toml: prints each fault as `file:line: message`, or a summary. Returns the exit
 * code: 0 when everything is right, else 1. Writes nothing, and generates no secrets.
 */
export async function check({ file, env, online, dataDir, out }: Options): Promise<number> {
  let text: string
  try {
    text = readFileSync(file, 'utf8')
  } catch {
    out(`${file} cannot be read; run turnpike where merchants.toml is, or name another file`)
    return 1
  }
  const problems: string[] = []
  const relayers = relayersOf({ dataDir, env }, problems)
  const { config, faults } = parse(text, { file, env, relayers: () => relayers })
  problems.push(...faults.map(format))
  if (config && online) problems.push(...(await findOnlineProblems(config)))
  if (config && problems.length === 0) for (const line of summarize(config)) out(line)
  for (const problem of problems) out(problem)
  if (problems.length > 0) out(`${problems.length} fault${problems.length === 1 ? '' : 's'}`)
  return problems.length === 0 ? 0 : 1
}

function relayersOf(options: { dataDir: string; env: Env }, problems: string[]) {
  try {
    return findRelayerKeys(options).map(Crypto.addressOf)
  } catch (error) {
    if (!(error instanceof EnvironmentError)) throw error
    problems.push(error.message)
    return []
  }
}

function summarize(config: Config): string[] {
  const { service, networks, merchants, stock } = config
  const routes = merchants.flatMap((merchant) => merchant.routes)
  const out = merchants.filter((merchant) => merchant.outOfService !== undefined)
  return [
    `${service.title} at ${service.baseUrl}, listening on ${service.listen.hostname}:${service.listen.port}`,
    `networks   ${networks.map(describe).join(', ')}`,
    `merchants  ${merchants.length} with ${routes.length} routes: ${merchants.map(({ slug }) => slug).join(', ')}`,
    `stock      ${stock ? `${stock.tokens.length} tokens on ${stock.network}` : 'none'}`,
    ...out.map(({ slug, outOfService }) => `out of service: ${slug} (${outOfService} is not set)`),
    'ok',
  ]
}

function describe(network: NetworkConfig): string {
  return `${network.name} (${network.id}, ${network.asset.symbol}${network.testnet ? ', testnet' : ''})`
}

/** Asks every RPC and every upstream at once. Names them by their place: their text may be secret. */
async function findOnlineProblems(config: Config): Promise<string[]> {
  const origins = new Map<string, string>()
  for (const { slug, upstream, routes, outOfService } of config.merchants) {
    if (outOfService !== undefined) continue
    if (upstream) origins.set(upstream.origin, slug)
    for (const route of routes) {
      if (route.upstream) origins.set(route.upstream.origin, `${slug}${route.path}`)
    }
  }
  const found = await Promise.all([
    ...config.networks.flatMap((network) =>
      network.rpcUrls.map((url, i) => askRpc(network, url, `${network.id} rpc_urls[${i}]`)),
    ),
    ...[...origins].map(([origin, name]) => askUpstream(origin, name)),
  ])
  return found.filter((problem) => problem !== undefined)
}

/** Checks chain id and asset of one RPC. */
async function askRpc(
  network: NetworkConfig,
  url: string,
  name: string,
): Promise<string | undefined> {
  try {
    const chainId = BigInt(await call(url, 'eth_chainId', []))
    if (chainId !== BigInt(network.chainId)) {
      return `${name}: the chain id is ${chainId}, not ${network.chainId}`
    }
    const code = await call(url, 'eth_getCode', [network.asset.address, 'latest'])
    return code.length > 2
      ? undefined
      : `${name}: no contract at the address of ${network.asset.symbol}`
  } catch {
    return `${name}: no answer to eth_chainId and eth_getCode`
  }
}

async function call(url: string, method: string, params: readonly unknown[]): Promise<string> {
  const response = await fetch(url, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ jsonrpc: '2.0', id: 1, method, params }),
    signal: AbortSignal.timeout(requestTimeoutMs),
  })
  const answer: unknown = await response.json()
  if (typeof answer === 'object' && answer !== null && 'result' in answer) {
    if (typeof answer.result === 'string') return answer.result
  }
  throw new Error('no result')
}

/** Any HTTP answer shows that somebody is there. */
async function askUpstream(origin: string, name: string): Promise<string | undefined> {
  try {
    const signal = AbortSignal.timeout(requestTimeoutMs)
    await fetch(origin, { method: 'HEAD', redirect: 'manual', signal })
    return undefined
  } catch {
    return `upstream of ${name}: no answer`
  }
}
