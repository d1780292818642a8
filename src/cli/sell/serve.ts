import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { DataDirectoryError, databaseName, openDirectory } from '../../../db/sqlite/directory'
import * as App from '../../app'
import type { Config } from '../../config/Config'
import {
  type Env,
  EnvironmentError,
  findOwnKeys,
  loadSecrets,
  ownKeys,
  readEnv,
  type Secrets,
} from '../../config/env'
import type { Path } from '../../config/lines'
import { format, parseConfig } from '../../config/merchants'
import { exposuresOf } from '../../config/warnings'
import { hostOf } from '../../http/url'
import { createLog, type Log } from '../../log'
import * as Crypto from '../../protocol/Crypto'
import { etherText } from '../../settlement/state/out-of-gas'
import type { Run } from '../commands'
import { deskKeyFault, findTarget, opening, serverFault } from '../operate/database'
import { createOperator } from '../operate/operator'
import { createMessages, createOutput, isTerminal } from '../output'
import { ownVersion } from '../version'
import { placed, salesOf, unreadable, warn } from '../words'
import { describeGasCost } from './gas-cost'
import { readHttps } from './https'

/** Exit code of a gateway that must send nothing more: EX_SOFTWARE of sysexits.h. */
const fencedCode = 70

/**
 * Serves until SIGTERM or SIGINT. Returns the exit code: 1, with a message, when it cannot start.
 */
export async function serve(options: Run<'serve'>): Promise<number> {
  const say = createMessages(Bun.stderr.writer())
  const configured = await configure(options, say)
  if (typeof configured === 'string') {
    say(configured)
    return 1
  }
  const { config, secrets, https, target, warnings } = configured
  const { log, output } = openLog(say)
  const { dataDir } = options
  let app: App.App | undefined
  const relayers = ownKeys(secrets).map(Crypto.addressOf)
  const operator = createOperator({
    file: options.file,
    dataDir,
    database: target === undefined ? join(dataDir, databaseName) : undefined,
    reload: async () =>
      app === undefined
        ? ['the service is starting: try again']
        : reload({ ...options, domains: https?.domains ?? [], app, relayers, log }),
  })
  // The fault of the lock has its own exit code, so that a supervisor can tell it from a crash.
  const onFenced = (reason: string) => {
    say(`turnpike: ${reason}: it ends\n`)
    process.exit(fencedCode)
  }
  const serving = {
    ...{ secrets, onFenced, isLossAccepted: options['accept-loss'] === true },
    warn: (line: string) => say(`turnpike: warning: ${line}\n`),
  }
  try {
    app = await App.start({
      ...{ config, secrets, dataDir, log, https, operator },
      openServer: target && opening(target, serving),
      version: ownVersion().version,
      droppedLines: output.dropped,
      fetchesMax: fetchesMax(options.env),
      isLasting: true,
    })
  } catch (error) {
    const cause = target === undefined ? error : await serverFault(target, error)
    say(`turnpike: ${startFault(cause, config.service)}\n`)
    return 1
  }
  const onReload = () => void operator.reload()
  // Install before the banner: a supervisor that reads the banner may send signals at once.
  process.on('SIGHUP', onReload)
  const stopped = stopSignal()
  const isGiven = readEnv(options.env)('ADMIN_TOKEN') !== undefined
  const tokenPlace = isGiven ? 'ADMIN_TOKEN' : `the token in ${join(dataDir, 'admin.token')}`
  say(banner(app, configured, tokenPlace) + warnings.map((line) => `${line}\n`).join(''))
  await stopped
  process.off('SIGHUP', onReload)
  // Without a listener a late SIGHUP would end the process before paid work is finished.
  process.on('SIGHUP', () => undefined)
  log('stopping', { limitSeconds: config.service.stopSeconds })
  await app.stop()
  await output.end()
  // Work that waits for a database server that is away must not keep the process running.
  if (target !== undefined) process.exit(0)
  return 0
}

/**
 * Opens the log on stdout. When stdout is closed or blocked, stderr gets one line and the service
 * continues.
 */
function openLog(say: (text: string) => void) {
  const output = createOutput({
    sink: Bun.stdout.writer(),
    onLoss(reason) {
      say(`turnpike: the log cannot be written (${reason}): lines are dropped\n`)
    },
    onResumed: (missing) => log('log-lines-dropped', { missing }),
  })
  const log = createLog({ write: output.write, pretty: isTerminal() })
  return { log, output }
}

/** Configuration and secrets, or a text with all faults in them. */
async function configure(options: Run<'serve'>, say: (text: string) => void) {
  const { file, dataDir, env } = options
  let text: string
  try {
    text = readFileSync(file, 'utf8')
  } catch (error) {
    return `turnpike: ${unreadable(file, error)}\n`
  }
  try {
    const https = readHttps(options, env)
    const target = await findTarget(env)
    let secrets: Secrets | undefined
    // A file with faults must not cause secrets to be generated.
    const relayers = ({ networks }: Pick<Config, 'networks'>) => {
      for (const warning of openDirectory(dataDir)) say(`turnpike: warning: ${warning}\n`)
      const hasChannels = networks.some(({ channels }) => channels !== undefined)
      secrets = loadSecrets({ dataDir, env, isShared: target !== undefined, hasChannels })
      return ownKeys(secrets).map(Crypto.addressOf)
    }
    const domains = https?.domains ?? []
    const { config, faults } = parseConfig(text, { file, env, domains, relayers })
    if (config === undefined || secrets === undefined) return `${faults.map(format).join('\n')}\n`
    const fault = deskKeyFault(config, env)
    if (fault !== undefined) return `turnpike: ${fault}\n`
    const hasOwnTls = https !== undefined
    const warnings = warn(exposuresOf(config, { hasOwnTls }), { file, text })
    return { config, secrets, https, target, warnings }
  } catch (error) {
    if (error instanceof EnvironmentError || error instanceof DataDirectoryError)
      return `turnpike: ${error.message}\n`
    throw error
  }
}

/** The runtime's limit of fetches, which it read from the environment at its start. */
function fetchesMax(env: Env): number | undefined {
  const value = Number(env.BUN_CONFIG_MAX_HTTP_REQUESTS)
  return Number.isInteger(value) && value > 0 ? value : undefined
}

function stopSignal(): Promise<void> {
  return new Promise((resolve) => {
    // Not `once`: a supervisor and the npm package may both send it, and a second signal would
    // end the process before paid requests are answered. `stop_seconds` limits the wait.
    for (const signal of ['SIGTERM', 'SIGINT']) process.on(signal, () => resolve())
  })
}

/** The banner: the URL, the relayers, the merchants, and each part that is not ready. */
function banner(
  app: App.App,
  { config, secrets }: { config: Config; secrets: Secrets },
  tokenPlace: string,
): string {
  const lines = [`turnpike listens on ${app.url} as ${config.service.baseUrl}`]
  lines.push(`  pages for buyers ${config.service.baseUrl}/`)
  lines.push(`  pages for you    ${config.service.baseUrl}/admin  sign in with ${tokenPlace}`)
  for (const { domain, reason } of app.certificateFaults())
    lines.push(`  ${domain}: ${reason}; the log says when it is issued`)
  for (const path of secrets.generated) lines.push(`  generated ${path}; back it up`)
  if (app.upgrade !== undefined) {
    const { from, to, backup } = app.upgrade
    const copy = backup === undefined ? '' : `; its copy from before: ${backup}`
    lines.push(`  migrated the database from ${from} to ${to}${copy}`)
  }
  for (const status of app.settlement.status()) {
    const { network, ready, reason, relayer, balanceWei, relayers } = status
    const priced = config.networks.find(({ id }) => id === network)
    const isKnown = balanceWei !== undefined && priced !== undefined
    const balance = isKnown ? `, ${etherText(balanceWei, priced)}` : ''
    lines.push(
      `  ${network}  relayer ${relayer}${balance}  ${ready ? 'ready' : `not ready: ${reason}`}`,
    )
    const remedies = new Set([status, ...relayers].map(({ remedy }) => remedy))
    for (const remedy of remedies) if (remedy !== undefined) lines.push(`    ${remedy}`)
  }
  for (const network of config.networks) {
    const cost = app.settlement.costOf(network.id)
    // A network that does not answer has no cost line.
    if (cost.priceWei > 0n) lines.push(`  ${describeGasCost(config, network, cost)}`)
  }
  if (secrets.refundKey !== undefined)
    lines.push(`  refunds are paid by ${Crypto.addressOf(secrets.refundKey)}, which needs no ETH`)
  const served = config.merchants.filter((merchant) => merchant.outOfService === undefined)
  lines.push(`  ${salesOf(served)}`)
  for (const { slug, outOfService } of config.merchants)
    if (outOfService !== undefined)
      lines.push(`  ${slug} is out of service: ${outOfService} is not set`)
  return `${lines.join('\n')}\n`
}

/** Why the service could not start, and what to do. */
export function startFault(error: unknown, { listen }: Pick<Config['service'], 'listen'>): string {
  if (!(error instanceof Error)) return 'it could not start: report this'
  const isListen = 'syscall' in error && error.syscall === 'listen'
  const code = 'code' in error ? String(error.code) : undefined
  const address = `${hostOf(listen.hostname)}:${listen.port}`
  if (code === 'EADDRINUSE')
    return (
      `${address} is in use by another program: stop that program, or name another port by ` +
      'listen under [service]'
    )
  if (isListen && code === 'EACCES')
    return (
      `${address} cannot be opened by this user (EACCES), because ports below 1024 are for root: ` +
      'name a higher port by listen under [service], or give the program CAP_NET_BIND_SERVICE'
    )
  if (isListen)
    return (
      `${address} is no address to listen on here (${code}): name one of this machine, or ` +
      `0.0.0.0 for all, by listen under [service]`
    )
  return error.message
}

type ReloadOptions = Pick<Run<'serve'>, 'file' | 'dataDir' | 'env'> & {
  app: App.App
  /** Domains of `--domain`. */
  domains: readonly string[]
  /** Accounts of the keys with which the process runs, the desk's last. */
  relayers: readonly `0x${string}`[]
  log: Log
}

/**
 * Reads the file again and applies it, or keeps the present configuration and logs every reason as
 * `file:line: message`. Returns these reasons: none when the file was applied. Never throws.
 */
async function reload(options: ReloadOptions): Promise<readonly string[]> {
  const { app, file, env, domains, log } = options
  try {
    const text = readFileSync(file, 'utf8')
    const faults = changedKeys(options)
    const result = parseConfig(text, { file, env, domains, relayers: () => options.relayers })
    faults.push(...result.faults.map(format))
    if (result.config !== undefined && faults.length === 0) {
      const places = await app.reload(result.config)
      if (places.length === 0) {
        const { merchants, hash } = result.config
        const routes = merchants.reduce((sum, merchant) => sum + merchant.routes.length, 0)
        log('reloaded', { file, merchants: merchants.length, routes, hash })
        return []
      }
      const message = (path: Path) => `${path.join('.')} has changed, which needs a restart`
      const changed = places.map((path) => ({ path, message: message(path) }))
      faults.push(...placed(changed, { file, text }).map((each) => each.text))
    }
    log('reload-refused', { faults })
    return faults
  } catch (error) {
    const isOurs = error instanceof EnvironmentError
    log('reload-refused', { faults: isOurs ? [error.message] : [], error })
    return [isOurs ? error.message : 'the file cannot be read or applied; the log has the error']
  }
}

/** Key files can change. Payments in progress were signed with the keys of the start. */
function changedKeys({ dataDir, env, relayers }: ReloadOptions): string[] {
  const found = findOwnKeys({ dataDir, env }).map(Crypto.addressOf)
  if (found.join() === relayers.join()) return []
  return [
    'the relayer keys, DESK_KEY, REFUND_KEY or RECEIVER_AUTHORIZER_KEY are not those of the start: restart to change them',
  ]
}
