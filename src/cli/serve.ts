import { readFile } from 'node:fs/promises'
import { DatabaseLockedError } from '../../db/sqlite/lock'
import * as App from '../app'
import type { HttpsOptions } from '../app/options'
import type { Config } from '../config/Config'
import { type Env, EnvironmentError, loadSecrets, ownKeys, type Secrets } from '../config/env'
import { format, parse } from '../config/merchants'
import { hostOf } from '../http/url'
import { createLog } from '../log'
import * as Crypto from '../protocol/Crypto'
import { describe } from './gascost'
import { type HttpsFlags, readHttps } from './https'
import { createOutput } from './output'
import { reload } from './reload'

export type ServeOptions = { file: string; dataDir: string; env: Env; flags: HttpsFlags }

/**
 * Serves until SIGTERM or SIGINT. Returns the exit code: 1, with a message, when it cannot start.
 */
export async function serve(options: ServeOptions): Promise<number> {
  const configured = await configure(options)
  if (typeof configured === 'string') {
    process.stderr.write(configured)
    return 1
  }
  const { config, secrets, https } = configured
  const { log, output } = openLog()
  const droppedLines = output.dropped
  const { dataDir } = options
  let app: App.App
  try {
    app = await App.start({
      config,
      secrets,
      dataDir,
      log,
      https,
      droppedLines,
      fetchesMax: fetchesMax(options.env),
      isLasting: true,
    })
  } catch (error) {
    process.stderr.write(`turnpike: ${startFault(error, config)}\n`)
    return 1
  }
  const relayers = ownKeys(secrets).map(Crypto.addressOf)
  const domains = https?.domains
  const onReload = () => void reload({ ...options, domains, app, relayers, log })
  // Install before the banner: a supervisor that reads the banner may send signals at once.
  process.on('SIGHUP', onReload)
  const stopped = stopSignal()
  process.stderr.write(banner(app, config, secrets))
  await stopped
  process.off('SIGHUP', onReload)
  // Without a listener a late SIGHUP would end the process before paid work is finished.
  process.on('SIGHUP', () => undefined)
  log('stopping', { limitSeconds: config.service.stopSeconds })
  await app.stop()
  await output.end()
  return 0
}

/**
 * Opens the log on stdout. When stdout is closed or blocked, stderr gets one line and the service
 * continues.
 */
function openLog() {
  // An 'error' event without a listener would end the program.
  process.stderr.on('error', () => undefined)
  const output = createOutput({
    sink: Bun.stdout.writer(),
    onLoss(reason) {
      process.stderr.write(`turnpike: the log cannot be written (${reason}): lines are dropped\n`)
    },
    onResumed: (missing) => log.warn('log-lines-dropped', { missing }),
  })
  const log = createLog({ write: output.write })
  return { log, output }
}

/** Configuration and secrets, or a text with all faults in them. */
async function configure(
  options: ServeOptions,
): Promise<{ config: Config; secrets: Secrets; https: HttpsOptions | undefined } | string> {
  const { file, dataDir, env, flags } = options
  let text: string
  try {
    text = await readFile(file, 'utf8')
  } catch {
    return `turnpike: ${file} cannot be read. Run it where merchants.toml is, or name one with --config.\n`
  }
  try {
    const https = readHttps(flags, env)
    let secrets: Secrets | undefined
    // A file with faults must not cause secrets to be generated.
    const relayers = () => {
      secrets = loadSecrets({ dataDir, env })
      return ownKeys(secrets).map(Crypto.addressOf)
    }
    const domains = https?.domains ?? []
    const { config, faults: found } = parse(text, { file, env, domains, relayers })
    if (config === undefined || secrets === undefined) return faults(found)
    return { config, secrets, https }
  } catch (error) {
    if (error instanceof EnvironmentError) return `turnpike: ${error.message}\n`
    throw error
  }
}

function faults(found: readonly Parameters<typeof format>[0][]): string {
  return `${found.map(format).join('\n')}\n`
}

function startFault(error: unknown, config: Config): string {
  if (error instanceof DatabaseLockedError) return error.message
  const { hostname, port } = config.service.listen
  const address = `${hostOf(hostname)}:${port}`
  const code = error instanceof Error && 'code' in error ? error.code : undefined
  if (code === 'EADDRINUSE') return `${address} is in use by another program.`
  const isListen = error instanceof Error && 'syscall' in error && error.syscall === 'listen'
  if (isListen)
    return `${address} is no address to listen on here (${code}): see listen in the file.`
  return error instanceof Error ? error.message : 'it could not start'
}

/** The runtime's limit of fetches, which it read from the environment at its start. */
function fetchesMax(env: Env): number | undefined {
  const value = Number(env.BUN_CONFIG_MAX_HTTP_REQUESTS)
  return Number.isInteger(value) && value > 0 ? value : undefined
}

function stopSignal(): Promise<void> {
  return new Promise((resolve) => {
    process.once('SIGTERM', () => resolve())
    process.once('SIGINT', () => resolve())
  })
}

/** The banner: the URL, the relayers, the merchants, and each part that is not ready. */
function banner(app: App.App, config: Config, secrets: Secrets): string {
  const lines = [`turnpike listens on ${app.url} as ${config.service.baseUrl}`]
  for (const { domain, reason } of app.certificateFaults())
    lines.push(`  ${domain}: ${reason}; the log says when it is issued`)
  for (const path of secrets.generated) lines.push(`  generated ${path}; back it up`)
  for (const { network, ready, reason, relayer, balanceWei } of app.settlement.status()) {
    const balance = balanceWei === undefined ? '' : `, ${Number(balanceWei) / 1e18} native`
    lines.push(
      `  ${network}  relayer ${relayer}${balance}  ${ready ? 'ready' : `not ready: ${reason}`}`,
    )
  }
  for (const network of config.networks) {
    const cost = app.settlement.costOf(network.id)
    // A network that does not answer has no cost line.
    if (cost.priceWei > 0n) lines.push(`  ${describe(config, network, cost)}`)
  }
  const served = config.merchants.filter((merchant) => merchant.outOfService === undefined)
  const routes = served.reduce((sum, merchant) => sum + merchant.routes.length, 0)
  lines.push(`  ${served.length} merchants, ${routes} routes`)
  for (const { slug, outOfService } of config.merchants)
    if (outOfService !== undefined)
      lines.push(`  ${slug} is out of service: ${outOfService} is not set`)
  return `${lines.join('\n')}\n`
}
