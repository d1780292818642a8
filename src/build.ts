import { dirname, join } from 'node:path'
import { parseArgs } from 'node:util'
import manifest from '../package.json'

/** Not in the executable: `demo --once` and tools load these packages from a checkout. */
export const external = ['mppx', '@x402/*', 'solc', 'drizzle-kit', '@foundry-rs/*']

export type Options = {
  entry: string
  /** Path of the executable. Its source map is written next to it. */
  outfile: string
  /** Value for `bun build --target`, to build for another system. */
  target?: string
}

/** Builds one executable from an entry. Throws with the compiler's output on failure. */
export async function build(options: Options): Promise<void> {
  const flags = [
    '--compile',
    '--production',
    '--minify',
    // Without the format, bytecode is built and then fails at the first top-level await.
    '--bytecode',
    '--format=esm',
    '--sourcemap=linked',
    // Split, so that each command loads only its own modules before it runs.
    '--splitting',
    // Without these flags the executable loads what it finds in its current directory.
    '--no-compile-autoload-dotenv',
    '--no-compile-autoload-bunfig',
    `--define=VERSION=${JSON.stringify(manifest.version)}`,
    ...external.map((name) => `--external=${name}`),
    ...(options.target ? [`--target=${options.target}`] : []),
    `--outfile=${options.outfile}`,
  ]
  const compiler = Bun.spawn([process.execPath, 'build', options.entry, ...flags], {
    // The builder's NODE_ENV would override --production.
    env: { ...process.env, NODE_ENV: 'production' },
    stdout: 'pipe',
    stderr: 'pipe',
  })
  const [out, problems, code] = await Promise.all([
    compiler.stdout.text(),
    compiler.stderr.text(),
    compiler.exited,
  ])
  if (code !== 0) throw new Error(`bun build ended with ${code}\n${out}${problems}`)
}

if (import.meta.main) {
  const root = dirname(import.meta.dir)
  const { values } = parseArgs({
    options: { target: { type: 'string' }, outfile: { type: 'string' } },
  })
  const outfile = values.outfile ?? join(root, 'dist', 'turnpike')
  const target = values.target ? { target: values.target } : {}
  await build({ entry: join(import.meta.dir, 'main.ts'), outfile, ...target })
  const megabytes = (Bun.file(outfile).size / 1e6).toFixed(0)
  process.stdout.write(`${outfile} ${manifest.version} (${megabytes} MB)\n`)
}
