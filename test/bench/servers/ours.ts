// The gateway with the shipped merchants.toml, wired by app.ts as `serve` does. Argument: RPC URLs by
// network id, as JSON.

import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { start } from '../../../src/app'
import { loadSecrets } from '../../../src/config/env'
import { createLog } from '../../../src/log'
import { shippedConfig, shippedEnv } from '../shipped'

const [rpcUrls = '{}', dataDir = mkdtempSync(join(tmpdir(), 'turnpike-bench-'))] =
  process.argv.slice(2)
const secrets = loadSecrets({ dataDir, env: shippedEnv })
const app = await start({
  config: shippedConfig(JSON.parse(rpcUrls)),
  secrets,
  dataDir,
  log: createLog(),
})
process.stdout.write(`${app.url}\n`)
