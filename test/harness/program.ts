import { join } from 'node:path'
import { external } from '../../src/build'
import { cached } from './cache'

/**
 * Path of the program in a few files, for `process.execPath`: what a checkout runs. A start from the
 * sources takes about 0.4 s of processor time to load them, a start from here 0.3 s, and one of
 * harness/executable.ts 0.1 s.
 */
export const main = join(await cached('bundle', bundle), 'main.js')

async function bundle(directory: string): Promise<void> {
  const entry = join(import.meta.dir, '..', '..', 'src', 'main.ts')
  const flags = ['--target=bun', '--splitting', `--outdir=${directory}`]
  const command = [process.execPath, 'build', entry, ...flags]
  const compiler = Bun.spawn([...command, ...external.map((name) => `--external=${name}`)], {
    // Otherwise the NODE_ENV of tests would be built in.
    env: { ...process.env, NODE_ENV: undefined },
    stdout: 'ignore',
    stderr: 'pipe',
  })
  const problems = await compiler.stderr.text()
  if ((await compiler.exited) !== 0) throw new Error(`bun build: ${problems}`)
}
