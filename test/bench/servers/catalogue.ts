// The gateway with a generated catalogue, wired by app.ts as `serve` does. Arguments: RPC URLs by
// network id, and the size of the catalogue, both as JSON.

import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { start } from '../../../src/app'
import { loadSecrets } from '../../../src/config/env'
import { createLog } from '../../../src/log'
import { generatedConfig } from '../generated'
import { shippedEnv } from '../shipped'

const [rpcUrls = '{}', size = '{}'] = process.argv.slice(2)
const dataDir = mkdtempSync(join(tmpdir(), 'turnpike-bench-'))
const app = await start({
  config: generatedConfig(JSON.parse(size), JSON.parse(rpcUrls)),
  secrets: loadSecrets({ dataDir, env: shippedEnv }),
  dataDir,
  log: createLog(),
})
process.stdout.write(`${app.url}\n`)
