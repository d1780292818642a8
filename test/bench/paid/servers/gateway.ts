import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type App, start } from '../../../../src/app'
import { findTarget, opening } from '../../../../src/cli/operate/database'
import { createOutput } from '../../../../src/cli/output'
import type { Config } from '../../../../src/config/Config'
import { type Env, loadSecrets } from '../../../../src/config/env'
import { createLog } from '../../../../src/log'
import { shippedEnv } from '../../shipped'
import { networkId } from '../network'

export type GatewayOptions = {
  dataDir?: string
  /** Secrets and the like in place of those of all benchmarks. */
  env?: Env
  /** The clock, unix ms. */
  now?: () => number
  /** Called before the first request. */
  onStart?: (app: App) => void
}

/**
 * Runs the gateway as `serve` does, wired by app.ts, on the one network of the benchmark and without
 * the limits that a load from one address meets first. Prints its URL.
 */
export async function serveGateway(config: Config, options: GatewayOptions = {}): Promise<void> {
  const { now, onStart, env = shippedEnv } = options
  const dataDir = options.dataDir ?? mkdtempSync(join(tmpdir(), 'turnpike-bench-'))
  // A profiler writes at exit. The data is not needed afterwards.
  process.on('SIGTERM', () => {
    rmSync(dataDir, { recursive: true, force: true })
    process.exit(0)
  })
  const target = await findTarget(env)
  const secrets = loadSecrets({ dataDir, env, isShared: target !== undefined })
  const warn = (line: string) => void process.stderr.write(`${line}\n`)
  const onFenced = () => process.exit(70)
  const sink = Bun.stdout.writer()
  const output = createOutput({ sink, onLoss: warn, onResumed: () => undefined })
  const app = await start({
    config: unlimited(config),
    secrets,
    openServer: target && opening(target, { secrets, warn, onFenced }),
    dataDir,
    log: createLog({ write: output.write, pretty: false }),
    isLasting: true,
    ...(now && { now }),
  })
  onStart?.(app)
  await app.settlement.ready
  output.write(app.url)
}

function unlimited(config: Config): Config {
  const budget = 10n ** 24n
  const spent = { gateway: budget, facilitator: budget, desk: budget }
  const gasPerDayWei = { ...spent, sponsor: budget, channels: budget }
  return {
    ...config,
    service: { ...config.service, paidPerMinute: 1e9, mppOrder: [networkId] },
    facilitator: { ...config.facilitator, verifyPerMinute: 1e9, settlePerMinute: 1e9 },
    networks: config.networks
      .filter(({ id }) => id === networkId)
      .map((network) => ({ ...network, gasPerDayWei })),
    merchants: config.merchants.map((merchant) => ({ ...merchant, networks: [networkId] })),
  }
}
