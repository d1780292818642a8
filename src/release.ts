import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { parseArgs } from 'node:util'
import manifest from '../package.json'
import { build, type Commit, commitOf } from './build'
import { libraryOf } from './release/c-library'
import { type Headers, headersOf } from './release/headers'
import { readSigningKey, type SigningKey, SigningKeyError, signatureOf } from './release/minisign'
import { names } from './release/names'
import { type Built, type Package, packagesOf } from './release/packages'
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
  /** The packages of the executables; none by default. */
  packagesOf?: (built: readonly Built[]) => readonly Package[]
  /** Signs SHA256SUMS, and with it all files. */
  key?: SigningKey | undefined
}

/** Bytes of the smallest runtime are about 90 million: less is no complete executable. */
const leastBytes = 60_000_000

/**
 * Builds an executable for each target, then the packages, and writes SHA256SUMS. What fails is
 * reported with its reason and has no file; the others are built. Returns the exit code: 1 if one
 * failed.
 */
export async function release(options: ReleaseOptions): Promise<number> {
  const { outdir, commit, out, make = compile, key } = options
  mkdirSync(outdir, { recursive: true })
  removeListed(outdir)
  const built: Built[] = []
  const sums: string[] = []
  const failed: string[] = []
  /** Makes a file; `write` says what was checked. */
  const attempt = async (file: string, name: string, write: (path: string) => Promise<string>) => {
    const path = join(outdir, file)
    rmSync(path, { force: true })
    try {
      const verdict = await write(path)
      const megabytes = (statSync(path).size / 1e6).toFixed(0)
      out(`ok    ${file} (${megabytes} MB)${verdict}`)
      const digest = await digestOf(path)
      sums.push(`${digest}  ${file}`)
      return { path, digest }
    } catch (error) {
      rmSync(path, { force: true })
      failed.push(name)
      out(`FAIL  ${file}: ${error instanceof Error ? error.message : 'unknown'}`)
      return undefined
    }
  }
  for (const target of options.targets) {
    const file = await attempt(target.file, target.name, async (path) => {
      await make(target, path, commit)
      assertHeaders(target, path)
      return `, ${tryRun(target, path, commit)}`
    })
    if (file) built.push({ target, ...file })
  }
  for (const { file, make } of options.packagesOf?.(built) ?? [])
    await attempt(file, file, async (path) => {
      await Bun.write(path, await make())
      return ''
    })
  const text = sums.map((line) => `${line}\n`).join('')
  await Bun.write(join(outdir, 'SHA256SUMS'), text)
  if (key) {
    const source = commit?.modified === false ? `commit ${commit.id}` : 'no commit'
    const comment = `${names.package} ${manifest.version}, ${source}, file:SHA256SUMS`
    await Bun.write(
      join(outdir, 'SHA256SUMS.minisig'),
      signatureOf(Buffer.from(text), comment, key),
    )
    out(`signed: minisign -Vm SHA256SUMS -P ${key.publicKey}`)
  }
  out(`${built.length} of ${options.targets.length} in ${outdir}, with SHA256SUMS`)
  if (failed.length > 0) out(`not built: ${failed.join(', ')}`)
  return failed.length === 0 ? 0 : 1
}

/** Removes the files of the release before: a package of a target that fails now must not stay. */
function removeListed(outdir: string): void {
  const list = join(outdir, 'SHA256SUMS')
  const text = existsSync(list) ? readFileSync(list, 'utf8') : ''
  const files = [...text.matchAll(/^[0-9a-f]{64} {2}(\w[\w.-]*)$/gm)].map(([, file = '']) => file)
  for (const file of [...files, 'SHA256SUMS.minisig']) rmSync(join(outdir, file), { force: true })
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

/** The key in a file of minisign. Throws SigningKeyError. */
function keyIn(path: string): SigningKey {
  if (!existsSync(path)) throw new SigningKeyError('there is no such file')
  return readSigningKey(readFileSync(path, 'utf8'), process.env.MINISIGN_PASSWORD)
}

/** Where the files will be downloaded from. */
function addressIn(url: string): string {
  if (/^https:\/\/[\w.-]+(:\d+)?(\/[\w.~/-]+)?$/.test(url)) return url.replace(/\/+$/, '')
  throw new RuntimeError('--url is an address such as https://example.com/turnpike/v1.0.0')
}

async function main(): Promise<number> {
  const root = dirname(import.meta.dir)
  const text = { type: 'string' } as const
  const { values } = parseArgs({
    options: { only: text, outdir: text, sign: text, url: text, debs: text },
  })
  // Bytecode is of one version of the runtime.
  if (Bun.version !== runtimeVersion)
    throw new RuntimeError(`this is bun ${Bun.version}: a release needs ${runtimeVersion}`)
  // A key that cannot sign must not end a release after minutes.
  const key = values.sign === undefined ? undefined : keyIn(values.sign)
  const url = values.url === undefined ? undefined : addressIn(values.url)
  const commit = await commitOf(root)
  if (commit === undefined || commit.modified)
    process.stderr.write('turnpike: these sources are not a commit; the version will say so\n')
  const packages = values.debs
  return release({
    targets: selected(values.only),
    outdir: values.outdir ?? join(root, 'dist', 'release'),
    commit,
    out: (line) => process.stdout.write(`${line}\n`),
    key,
    packagesOf: (built) =>
      packagesOf(built, { commit, url, libraryOf: (target) => libraryOf(target, { packages }) }),
  })
}

if (import.meta.main)
  process.exitCode = await main().catch((error) => {
    const isKey = error instanceof SigningKeyError
    if (!isKey && !(error instanceof RuntimeError)) throw error
    process.stderr.write(`turnpike: ${isKey ? '--sign: ' : ''}${error.message}\n`)
    return 1
  })
