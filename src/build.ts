import { chmodSync, mkdtempSync, realpathSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, dirname, join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import manifest from '../package.json'

/** Not in the executable: `demo --once` and tools load these packages from a checkout. */
export const external = ['mppx', '@x402/*', 'solc', 'drizzle-kit', '@foundry-rs/*']

/** What an executable was built from. */
export type Commit = {
  /** 40 or 64 hex digits. */
  id: string
  /** Whether the files differ from the commit. */
  modified: boolean
}

type Options = {
  entry: string
  /** Path of the executable, the only file that is written. */
  outfile: string
  /** Value for `bun build --target`, to build for another system. */
  target?: string
  /** Path of the runtime of that system. Without it the compiler downloads one, unchecked. */
  runtime?: string
  /** The commit that the executable names; without it the commit is unknown. */
  commit?: Commit | undefined
}

/**
 * Builds one executable from an entry. The same commit gives the same bytes, whatever the
 * directory. Throws with the compiler's output on failure.
 */
export async function build(options: Options): Promise<void> {
  const outfile = resolve(options.outfile)
  // The compiler writes a source map for each module beside the executable, which contains them.
  const directory = mkdtempSync(join(tmpdir(), 'turnpike-build-'))
  try {
    const built = join(directory, basename(outfile))
    await compile({ ...options, outfile: built })
    rmSync(outfile, { force: true })
    await Bun.write(outfile, Bun.file(built))
    chmodSync(outfile, 0o755)
  } finally {
    rmSync(directory, { recursive: true, force: true })
  }
}

async function compile(options: Options): Promise<void> {
  const { commit } = options
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
    // A start runs most code once. `app.ts#warmUp` and `main.ts` set the usual thresholds.
    '--compile-jit-policy=8',
    // Without these flags the executable loads what it finds in its current directory.
    '--no-compile-autoload-dotenv',
    '--no-compile-autoload-bunfig',
    `--define=VERSION=${JSON.stringify(manifest.version)}`,
    `--define=COMMIT=${JSON.stringify(commit?.id ?? '')}`,
    `--define=MODIFIED=${commit?.modified ?? false}`,
    ...external.map((name) => `--external=${name}`),
    ...(options.target ? [`--target=${options.target}`] : []),
    ...(options.runtime ? [`--compile-executable-path=${resolve(options.runtime)}`] : []),
    `--outfile=${options.outfile}`,
  ]
  const command = [process.execPath, 'build', resolve(options.entry), ...flags]
  const { out, problems, code } = await runProgram(command, {
    // The compiler writes paths relative to its directory into the executable.
    cwd: dirname(resolve(options.entry)),
    // The builder's NODE_ENV would override --production.
    env: { ...process.env, NODE_ENV: 'production' },
  })
  if (code !== 0) throw new Error(`bun build ended with ${code}\n${out}${problems}`)
}

/** Runs a program to its end, by default in this directory and environment. */
export async function runProgram(
  command: readonly string[],
  options: { cwd?: string; env?: NodeJS.ProcessEnv } = {},
): Promise<{ out: string; problems: string; code: number }> {
  const pipes = { stdout: 'pipe', stderr: 'pipe' } as const
  const child = Bun.spawn([...command], { env: process.env, ...options, ...pipes })
  const [out, problems] = await Promise.all([child.stdout.text(), child.stderr.text()])
  return { out, problems, code: await child.exited }
}

/** The commit of a checkout; undefined outside git, or where git is missing. */
export async function commitOf(root: string): Promise<Commit | undefined> {
  const top = await git(root, 'rev-parse', '--show-toplevel')
  // A copy of the files may be inside the checkout of another project.
  if (top === undefined || realpathSync(top.trim()) !== realpathSync(root)) return undefined
  const id = (await git(root, 'rev-parse', 'HEAD'))?.trim()
  const changes = await git(root, 'status', '--porcelain')
  if (id === undefined || changes === undefined) return undefined
  return { id, modified: changes !== '' }
}

/** What git prints; undefined when it fails. */
async function git(root: string, ...args: readonly string[]): Promise<string | undefined> {
  const path = Bun.which('git')
  if (path === null) return undefined
  // Without the locks, so that a build does not disturb another git command.
  const { out, code } = await runProgram([path, '--no-optional-locks', '-C', root, ...args], {
    // A hook of git sets these for another directory.
    env: {
      ...process.env,
      GIT_DIR: undefined,
      GIT_WORK_TREE: undefined,
      GIT_INDEX_FILE: undefined,
    },
  })
  return code === 0 ? out : undefined
}

/** The commit that `--commit` names, for a build without .git, as in a container. */
function namedCommit(id: string | undefined): Commit | undefined {
  if (id === undefined || id === '') return undefined
  if (/^([0-9a-f]{40}|[0-9a-f]{64})$/.test(id)) return { id, modified: false }
  throw new Error('--commit is what git rev-parse HEAD prints')
}

if (import.meta.main) {
  const root = dirname(import.meta.dir)
  const text = { type: 'string' } as const
  const { values } = parseArgs({ options: { target: text, outfile: text, commit: text } })
  const outfile = values.outfile ?? join(root, 'dist', 'turnpike')
  const target = values.target ? { target: values.target } : {}
  const commit = (await commitOf(root)) ?? namedCommit(values.commit)
  await build({ entry: join(import.meta.dir, 'main.ts'), outfile, ...target, commit })
  const megabytes = (Bun.file(outfile).size / 1e6).toFixed(0)
  const state = commit === undefined ? 'no commit' : commit.id.slice(0, 12)
  const label = commit?.modified ? `${state}, modified` : state
  process.stdout.write(`${outfile} ${manifest.version} (${label}, ${megabytes} MB)\n`)
}
