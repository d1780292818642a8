// Writes src/start.order: the functions that a start runs. The build puts their bytecode side by side, so
// that a start touches fewer pages of the executable. A function that has changed since is left out.
// So run it again before a release.

import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { build } from '../../src/build'
import { startChains } from '../harness/chains'
import { until } from '../harness/world'
import { freePort, localText } from './cold'
import { rpcUrlsOf, shippedConfig, shippedEnv } from './shipped'

const sources = join(import.meta.dir, '..', '..', 'src')
const directory = mkdtempSync(join(tmpdir(), 'turnpike-order-'))
const chains = await startChains(shippedConfig().networks)
try {
  const file = join(directory, 'turnpike')
  await build({ entry: join(sources, 'main.ts'), outfile: file })
  const port = freePort()
  writeFileSync(join(directory, 'merchants.toml'), localText(rpcUrlsOf(chains), port))
  const recorded = join(directory, 'order')
  const child = Bun.spawn([file], {
    cwd: directory,
    env: { ...shippedEnv, BUN_BYTECODE_ORDER_OUT: recorded },
    stdout: 'ignore',
    stderr: 'ignore',
  })
  const url = `http://127.0.0.1:${port}/m/catjoke/joke`
  const statusOf = () =>
    fetch(url).then(
      ({ status }) => status,
      () => undefined,
    )
  await until('it sells', async () => (await statusOf()) === 402)
  // Until what follows the start has run.
  await Bun.sleep(3_000)
  child.kill('SIGTERM')
  await child.exited
  // Functions and modules. The order of strings and of constants saves nothing.
  const lines = readFileSync(recorded, 'utf8').split('\n')
  const kept = lines.filter((line) => /^(v2$|[FM] )/.test(line))
  writeFileSync(join(sources, 'start.order'), `${kept.join('\n')}\n`)
  process.stdout.write(`src/start.order: ${kept.length - 1} functions and modules\n`)
} finally {
  await Promise.all(chains.map((chain) => chain.stop()))
  rmSync(directory, { recursive: true, force: true })
}
process.exit(0)
