import { afterAll, expect, test } from 'bun:test'
import {
  copyFileSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import manifest from '../../package.json'
import { build, commitOf } from '../../src/build'
import { describeVersion, ownVersion } from '../../src/cli/version'
import { outcomeOf } from '../harness/outcome'

const directory = mkdtempSync(join(tmpdir(), 'turnpike-build-'))
afterAll(() => rmSync(directory, { recursive: true }))

const program = `
import { createLog } from ${JSON.stringify(join(import.meta.dir, '../../src/log'))}
declare const VERSION: string
const version = await Promise.resolve(VERSION)
createLog({ pretty: false, now: () => 0 })('reloaded', {
  version,
  mode: process.env.NODE_ENV ?? 'unset',
  injected: process.env.INJECTED ?? 'nothing',
  // Only in a checkout: the executable must not contain it and must start without it.
  peer: await import('mppx').then(() => 'there', () => 'not there'),
})
`

test('the executable starts in a hostile directory with its version and top-level await', async () => {
  const entry = join(directory, 'entry.ts')
  const outfile = join(directory, 'program')
  writeFileSync(entry, program)
  await build({ entry, outfile })
  // Files that it must not load from its current directory.
  writeFileSync(join(directory, '.env'), 'INJECTED=env')
  writeFileSync(join(directory, 'bunfig.toml'), 'preload = ["./preload.ts"]')
  writeFileSync(join(directory, 'preload.ts'), 'process.env.INJECTED = "preload"')
  const run = Bun.spawn([outfile], { cwd: directory, env: {}, stdout: 'pipe', stderr: 'pipe' })
  const [out, problems] = await Promise.all([run.stdout.text(), run.stderr.text()])
  expect(problems).toBe('')
  expect(JSON.parse(out)).toMatchObject({
    event: 'reloaded',
    version: manifest.version,
    mode: 'production',
    injected: 'nothing',
    peer: 'not there',
  })
  expect(await run.exited).toBe(0)
})

const mcp = `
const { serveMessage } = await import(${JSON.stringify(join(import.meta.dir, '../../src/gateway/mcp/server'))})
const message = { jsonrpc: '2.0', id: 1, method: 'tools/list' }
const request = new Request('http://localhost/mcp', {
  method: 'POST',
  headers: { 'content-type': 'application/json', accept: 'application/json, text/event-stream' },
})
const handlers = { title: '', instructions: '', list: () => ({ tools: [] }), call: () => {} }
console.log(await (await serveMessage(request, message, handlers)).text())
`

test('the MCP SDK, loaded at its first use, works inside the executable, the only file of a build', async () => {
  const entry = join(directory, 'mcp.ts')
  const outfile = join(directory, 'dist', 'mcp')
  writeFileSync(entry, mcp)
  await build({ entry, outfile })
  expect(readdirSync(join(directory, 'dist'))).toEqual(['mcp'])
  const run = Bun.spawn([outfile], { cwd: directory, env: {}, stdout: 'pipe', stderr: 'pipe' })
  const [out, problems] = await Promise.all([run.stdout.text(), run.stderr.text()])
  expect(problems).toBe('')
  expect(JSON.parse(out)).toEqual({ jsonrpc: '2.0', id: 1, result: { tools: [] } })
})

test('error: a source that does not compile is reported with the compiler text', async () => {
  const entry = join(directory, 'broken.ts')
  writeFileSync(entry, 'import { nothing } from "./nowhere"\nconsole.log(nothing)\n')
  const outcome = build({ entry, outfile: join(directory, 'broken') })
  expect(await outcomeOf(outcome)).toThrow('nowhere')
})

/** Runs git in a directory, with a name and without the configuration of this machine. */
function git(at: string, ...args: readonly string[]): string {
  const names = [
    '-c',
    'user.name=a',
    '-c',
    'user.email=a@example.com',
    '-c',
    'commit.gpgsign=false',
  ]
  const run = Bun.spawnSync(['git', '-C', at, ...names, ...args], {
    env: { PATH: process.env.PATH ?? '', GIT_CONFIG_GLOBAL: '/dev/null' },
  })
  if (run.exitCode !== 0) throw new Error(run.stderr.toString())
  return run.stdout.toString().trim()
}

test('the commit of a checkout is found, and a change of its files marks it', async () => {
  const checkout = join(directory, 'checkout')
  mkdirSync(join(checkout, 'inside'), { recursive: true })
  expect(await commitOf(checkout)).toBeUndefined()
  git(checkout, 'init', '-q')
  // Without a commit there is nothing to name.
  expect(await commitOf(checkout)).toBeUndefined()
  writeFileSync(join(checkout, 'a.ts'), '1')
  git(checkout, 'add', '.')
  git(checkout, 'commit', '-q', '-m', 'a')
  const id = git(checkout, 'rev-parse', 'HEAD')
  expect(id).toMatch(/^[0-9a-f]{40}$/)
  expect(await commitOf(checkout)).toEqual({ id, modified: false })
  // A copy of the sources inside another project is not at the commit of that project.
  expect(await commitOf(join(checkout, 'inside'))).toBeUndefined()
  writeFileSync(join(checkout, 'b.ts'), '2')
  expect(await commitOf(checkout)).toEqual({ id, modified: true })
  rmSync(join(checkout, 'b.ts'))
  writeFileSync(join(checkout, 'a.ts'), '2')
  expect(await commitOf(checkout)).toEqual({ id, modified: true })
})

const versions = `
import { describeVersion, ownVersion } from ${JSON.stringify('./version')}
console.log(describeVersion(ownVersion()))
console.log(JSON.stringify(ownVersion()))
`

test('an executable names its commit, and the same commit gives the same bytes', async () => {
  const id = '0123456789abcdef0123456789abcdef01234567'
  const made = await Promise.all(
    [
      { id, modified: false },
      { id, modified: false },
      { id, modified: true },
    ].map(async (commit, index) => {
      // The name of a directory must not reach the bytes.
      const at = join(directory, `version-${'x'.repeat(index + 1)}`)
      mkdirSync(at)
      const [entry, outfile] = [join(at, 'entry.ts'), join(at, 'turnpike')]
      writeFileSync(entry, versions)
      copyFileSync(join(import.meta.dir, '../../src/cli/version.ts'), join(at, 'version.ts'))
      await build({ entry, outfile, commit })
      const run = Bun.spawnSync([outfile], { cwd: at, env: {} })
      const [line = '', json = ''] = run.stdout.toString().split('\n')
      const digest = new Bun.CryptoHasher('sha256').update(readFileSync(outfile)).digest('hex')
      return { line, version: JSON.parse(json), digest }
    }),
  )
  const [first, again, changed] = made
  expect(first).toMatchObject({
    line: `turnpike ${manifest.version} (commit 0123456789ab)`,
    version: { version: manifest.version, commit: id, modified: false, bun: Bun.version },
  })
  expect(again).toEqual(first as NonNullable<typeof first>)
  expect(changed?.line).toBe(`turnpike ${manifest.version} (commit 0123456789ab, modified)`)
  expect(changed?.version).toMatchObject({ commit: id, modified: true })
  expect(new Set(made.map(({ digest }) => digest)).size).toBe(2)
})

test('a run of the sources, and a build outside git, say so', () => {
  const own = ownVersion()
  expect(describeVersion(own)).toBe('turnpike development (run from its sources)')
  expect(describeVersion({ ...own, version: '0.1.0' })).toBe(
    'turnpike 0.1.0 (commit unknown: not built from a git checkout)',
  )
})
