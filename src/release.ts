import { existsSync, mkdirSync, mkdtempSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { parseArgs } from 'node:util'
import manifest from '../package.json'
import { build, type Commit, commitOf } from './build'
import { type Headers, headersOf } from './release/headers'
import { fetchRuntime, RuntimeError } from './release/runtime'
import { runtimeVersion, type Target, targets } from './release/targets'

type ReleaseOptions = {
  targets: readonly Target[]
  /** Directory of the executables and of SHA256SUMS. */
  outdir: string
  commit: Commit | undefined
  out: (line: string) => void
  /** Builds the executable of a target; another one in tests. */
  make?: (target: Target, outfile: string, commit: Commit | undefined) => Promise<void>
}

/** Bytes of the smallest runtime are about 90 million: less is no complete executable. */
const leastBytes = 60_000_000

/**
 * Builds an executable for each target and writes SHA256SUMS. A target that fails is reported with
 * its reason and has no file; the others are built. Returns the exit code: 1 if one failed.
 */
export async function release(options: ReleaseOptions): Promise<number> {
  const { outdir, commit, out, make = compile } = options
  mkdirSync(outdir, { recursive: true })
  const sums: string[] = []
  const failed: string[] = []
  for (const target of options.targets) {
    const path = join(outdir, target.file)
    rmSync(path, { force: true })
    try {
      await make(target, path, commit)
      assertHeaders(target, path)
      const verdict = tryRun(target, path, commit)
      const megabytes = (statSync(path).size / 1e6).toFixed(0)
      out(`ok    ${target.file} (${megabytes} MB), ${verdict}`)
      sums.push(`${await digestOf(path)}  ${target.file}`)
    } catch (error) {
      rmSync(path, { force: true })
      failed.push(target.name)
      out(`FAIL  ${target.file}: ${error instanceof Error ? error.message : 'unknown'}`)
    }
  }
  await Bun.write(join(outdir, 'SHA256SUMS'), sums.map((line) => `${line}\n`).join(''))
  out(`${sums.length} of ${options.targets.length} in ${outdir}, with SHA256SUMS`)
  if (failed.length > 0) out(`not built: ${failed.join(', ')}`)
  return failed.length === 0 ? 0 : 1
}

/** Downloads the runtime and builds. */
async function compile(target: Target, outfile: string, commit: Commit | undefined): Promise<void> {
  const directory = mkdtempSync(join(tmpdir(), 'turnpike-release-'))
  try {
    const runtime = await fetchRuntime(target, join(directory, 'runtime'))
    const entry = join(import.meta.dir, 'main.ts')
    await build({ entry, outfile, target: target.compile, runtime, commit })
  } finally {
    rmSync(directory, { recursive: true, force: true })
  }
}

/** Throws unless the file is a whole executable of the target. */
function assertHeaders(target: Target, path: string): void {
  const found = headersOf(path)
  const { format, machine, loader } = target
  const expected: Headers = {
    format,
    machine,
    ...(loader === undefined ? {} : { loader }),
    ...(format === 'mach-o' ? { isSigned: true } : {}),
  }
  if (!Bun.deepEquals(found, expected))
    throw new Error(`its headers are ${JSON.stringify(found)}, not ${JSON.stringify(expected)}`)
  const { size } = statSync(path)
  if (size < leastBytes) throw new Error(`${size} bytes are too few for an executable`)
}

/** Runs the executable where this machine can. Returns what was found; throws when it is wrong. */
function tryRun(target: Target, path: string, commit: Commit | undefined): string {
  const reason = cannotRun(target)
  if (reason !== undefined) return `not run: ${reason}`
  const run = Bun.spawnSync([path, 'version', '--json'], { cwd: dirname(path), env: {} })
  const problems = run.stderr.toString()
  if (/libstdc\+\+/.test(problems) && target.loader?.includes('musl'))
    return 'not run: libstdc++ for musl is not installed (apk add libstdc++)'
  if (run.exitCode !== 0) throw new Error(`version ended with ${run.exitCode}: ${problems.trim()}`)
  const said = JSON.parse(run.stdout.toString())
  const expected = {
    version: manifest.version,
    commit: commit?.id ?? null,
    modified: commit?.modified ?? false,
  }
  for (const [name, value] of Object.entries(expected))
    if (said[name] !== value) throw new Error(`its ${name} is ${said[name]}, not ${value}`)
  return 'run: it names its version and commit'
}

/** Why an executable cannot run on this machine; undefined when it can. */
function cannotRun({ format, machine, loader }: Target): string | undefined {
  const platforms = { elf: 'linux', 'mach-o': 'darwin', pe: 'win32' } as const
  if (platforms[format] !== process.platform || machine !== process.arch)
    return `this machine is ${process.platform}-${process.arch}`
  return loader === undefined || existsSync(loader) ? undefined : `there is no ${loader}`
}

async function digestOf(path: string): Promise<string> {
  const hasher = new Bun.CryptoHasher('sha256')
  for await (const part of Bun.file(path).stream()) hasher.update(part)
  return hasher.digest('hex')
}

/** The targets with these names, or all. */
function selected(only: string | undefined): readonly Target[] {
  if (only === undefined) return targets
  return only.split(',').map((name) => {
    const target = targets.find((each) => each.name === name)
    if (target) return target
    throw new Error(`no target ${name}: there are ${targets.map((each) => each.name).join(', ')}`)
  })
}

if (import.meta.main) {
  const root = dirname(import.meta.dir)
  const { values } = parseArgs({
    options: { only: { type: 'string' }, outdir: { type: 'string' } },
  })
  // Bytecode is of one version of the runtime.
  if (Bun.version !== runtimeVersion)
    throw new RuntimeError(`this is bun ${Bun.version}: a release needs ${runtimeVersion}`)
  const commit = await commitOf(root)
  if (commit === undefined || commit.modified)
    process.stderr.write('turnpike: these sources are not a commit; the version will say so\n')
  process.exitCode = await release({
    targets: selected(values.only),
    outdir: values.outdir ?? join(root, 'dist', 'release'),
    commit,
    out: (line) => process.stdout.write(`${line}\n`),
  })
}
