import { join } from 'node:path'
import { cached } from './cache'

type Options = {
  entry: string
  /** Packages that are loaded from node_modules, as without a bundle. */
  external?: readonly string[]
}

/**
 * Path of a program in a few files, for `process.execPath`: it starts without looking for hundreds of
 * modules and compiling each.
 */
export async function bundled(name: string, options: Options): Promise<string> {
  return join(await cached(name, (directory) => bundle(name, options, directory)), `${name}.js`)
}

async function bundle(name: string, options: Options, directory: string): Promise<void> {
  const { entry, external = [] } = options
  const flags = ['--target=bun', '--splitting', `--outdir=${directory}`]
  const command = [process.execPath, 'build', entry, ...flags, `--entry-naming=${name}.js`]
  const compiler = Bun.spawn([...command, ...external.map((each) => `--external=${each}`)], {
    // Otherwise the NODE_ENV of tests would be built in.
    env: { ...process.env, NODE_ENV: undefined },
    stdout: 'ignore',
    stderr: 'pipe',
  })
  const problems = await compiler.stderr.text()
  if ((await compiler.exited) !== 0) throw new Error(`bun build: ${problems}`)
}
