import { afterAll, expect, test } from 'bun:test'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import manifest from '../package.json'
import { build } from '../src/build'

const directory = mkdtempSync(join(tmpdir(), 'turnpike-build-'))
afterAll(() => rmSync(directory, { recursive: true }))

const program = `
import { createLog } from ${JSON.stringify(join(import.meta.dir, '../src/log'))}
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

test('behavior: the executable starts in a hostile directory with its version and top-level await', async () => {
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
const { serve } = await import(${JSON.stringify(join(import.meta.dir, '../src/proxy/mcp/server'))})
const message = { jsonrpc: '2.0', id: 1, method: 'tools/list' }
const request = new Request('http://localhost/mcp', {
  method: 'POST',
  headers: { 'content-type': 'application/json', accept: 'application/json, text/event-stream' },
})
const handlers = { title: '', instructions: '', list: () => ({ tools: [] }), call: () => {} }
console.log(await (await serve(request, message, handlers)).text())
`

test('behavior: the MCP SDK, loaded at its first use, works inside the executable', async () => {
  const entry = join(directory, 'mcp.ts')
  const outfile = join(directory, 'mcp')
  writeFileSync(entry, mcp)
  await build({ entry, outfile })
  const run = Bun.spawn([outfile], { cwd: directory, env: {}, stdout: 'pipe', stderr: 'pipe' })
  const [out, problems] = await Promise.all([run.stdout.text(), run.stderr.text()])
  expect(problems).toBe('')
  expect(JSON.parse(out)).toEqual({ jsonrpc: '2.0', id: 1, result: { tools: [] } })
})

test('error: what does not compile is reported with the compiler text', async () => {
  const entry = join(directory, 'broken.ts')
  writeFileSync(entry, 'import { nothing } from "./nowhere"\nconsole.log(nothing)\n')
  const outcome = build({ entry, outfile: join(directory, 'broken') })
  await expect(outcome).rejects.toThrow('nowhere')
})
