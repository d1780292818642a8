// The gateway with the shipped merchants.toml, wired by app.ts as `serve` does, on one chain and
// without the limits that a load from one address meets first. Arguments: the chain's URL and
// optionally a data directory.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { start } from '../../../../src/app'
import type { Config } from '../../../../src/config/Config'
import { loadSecrets } from '../../../../src/config/env'
import { createLog } from '../../../../src/log'
import { shippedConfig, shippedEnv } from '../../shipped'
import { networkId } from '../network'

const [rpcUrl = '', dataDir = mkdtempSync(join(tmpdir(), 'turnpike-bench-'))] =
  process.argv.slice(2)
// A profiler writes at exit. The data is not needed afterwards.
process.on('SIGTERM', () => {
  rmSync(dataDir, { recursive: true, force: true })
  process.exit(0)
})
const app = await start({
  config: unlimited(shippedConfig({ [networkId]: rpcUrl })),
  secrets: loadSecrets({ dataDir, env: shippedEnv }),
  dataDir,
  log: createLog(),
  isLasting: true,
})
await app.settlement.ready
process.stdout.write(`${app.url}\n`)

function unlimited(config: Config): Config {
  const budget = 10n ** 24n
  const gasPerDayWei = { gateway: budget, facilitator: budget, desk: budget, sponsor: budget }
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
