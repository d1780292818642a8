import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  renameSync,
  rmSync,
  statSync,
} from 'node:fs'
import { join } from 'node:path'
import { external } from '../../src/build'

const root = join(import.meta.dir, '..', '..')
// Below node_modules, so that external packages are found from here.
const cache = join(root, 'node_modules', '.cache', 'turnpike-test')

/**
 * Path of the program in a few files, for `process.execPath`. A start from the sources takes about
 * 0.4 s of processor time to load them, a start from here less than 0.1 s. It is bundled once for
 * each state of the sources, and shared by the files and the runs that test that state.
 */
export const main = join(await bundled(), 'main.js')

async function bundled(): Promise<string> {
  const directory = join(cache, await stateOf(['src', 'db', 'package.json', 'bun.lock']))
  if (existsSync(directory)) return directory
  mkdirSync(cache, { recursive: true })
  removeOld()
  const made = mkdtempSync(join(cache, 'new-'))
  const flags = ['--target=bun', '--splitting', `--outdir=${made}`]
  const command = [process.execPath, 'build', join(root, 'src', 'main.ts'), ...flags]
  const compiler = Bun.spawn([...command, ...external.map((name) => `--external=${name}`)], {
    // Otherwise the NODE_ENV of tests would be built in.
    env: { ...process.env, NODE_ENV: undefined },
    stdout: 'ignore',
    stderr: 'pipe',
  })
  const problems = await compiler.stderr.text()
  if ((await compiler.exited) !== 0) throw new Error(`bun build: ${problems}`)
  try {
    renameSync(made, directory)
  } catch (error) {
    // Another process has made the same bundle first.
    rmSync(made, { recursive: true })
    if (!existsSync(directory)) throw error
  }
  return directory
}

/** A digest of the files with these names and below these folders. */
async function stateOf(names: readonly string[]): Promise<string> {
  const files = names.flatMap((name) =>
    statSync(join(root, name)).isFile()
      ? [name]
      : [...new Bun.Glob('**/*').scanSync({ cwd: join(root, name) })].map((file) =>
          join(name, file),
        ),
  )
  const hasher = new Bun.CryptoHasher('sha256').update(Bun.version)
  for (const file of files.sort())
    hasher.update(`\0${file}\0`).update(await Bun.file(join(root, file)).bytes())
  return hasher.digest('hex')
}

/** Removes bundles of runs before yesterday. */
function removeOld(): void {
  const yesterday = Date.now() - 86_400_000
  for (const name of readdirSync(cache)) {
    const path = join(cache, name)
    if (statSync(path).mtimeMs < yesterday) rmSync(path, { recursive: true, force: true })
  }
}
