import { afterAll, expect, test } from 'bun:test'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { account } from '../../src/demo/accounts'
import { executable } from '../harness/executable'
import { main } from '../harness/program'
import { configText } from '../harness/target'
import { until } from '../harness/world'

const directory = mkdtempSync(join(tmpdir(), 'turnpike-limit-'))
const children: Bun.Subprocess[] = []
afterAll(() => {
  // A test that fails leaves its program running.
  for (const child of children) child.kill('SIGKILL')
  rmSync(directory, { recursive: true, force: true })
})

const name = 'BUN_CONFIG_MAX_HTTP_REQUESTS'

// No service is at this address; the program listens all the same.
const nowhere = 'http://127.0.0.1:9'
const file = join(directory, 'merchants.toml')
writeFileSync(file, configText({ usdc: nowhere, usdg: nowhere, upstream: nowhere }))

const checkout = [process.execPath, main]
const shipped = [executable]

function serve(
  program: readonly string[],
  env: Record<string, string>,
  args: readonly string[] = [],
) {
  const data = join(directory, crypto.randomUUID())
  // In a shell without an environment, as with `env -i`, except for the variables here.
  const command = [...program, 'serve', '--config', file, '--data', data, ...args]
  const child = Bun.spawn(command, { env, stdout: 'pipe', stderr: 'pipe', cwd: directory })
  children.push(child)
  const limit = () => {
    const all = readFileSync(`/proc/${child.pid}/environ`, 'utf8').split('\0')
    return all.find((entry) => entry.startsWith(`${name}=`))?.slice(name.length + 1)
  }
  return { child, limit }
}

const isLinux = process.platform === 'linux'

test.if(isLinux)('serve runs with a raised limit in the process that was started', async () => {
  const { child, limit } = serve(checkout, { RELAYER_KEYS: account(0).privateKey })
  let said = ''
  void (async () => {
    for await (const part of child.stderr) said += new TextDecoder().decode(part)
  })()
  await until('it listens', () => said.includes('turnpike listens on') || child.exitCode !== null)
  expect(limit()).toBe('16384')
  // Files that the first start left open would be listed twice.
  // A thread that starts another one blocks all signals for that time.
  const status = () => readFileSync(`/proc/${child.pid}/status`, 'utf8')
  await until('no signal is blocked', () => /SigBlk:\s+0+\n/.test(status()))
  child.kill('SIGTERM')
  expect(await child.exited).toBe(0)
})

test.if(isLinux)('a limit that the operator sets stays', async () => {
  const { child, limit } = serve(shipped, { RELAYER_KEYS: account(0).privateKey, [name]: '300' })
  let said = ''
  void (async () => {
    for await (const part of child.stderr) said += new TextDecoder().decode(part)
  })()
  await until('it listens', () => said.includes('turnpike listens on') || child.exitCode !== null)
  expect(limit()).toBe('300')
  child.kill('SIGTERM')
  expect(await child.exited).toBe(0)
})

test('error: a restarted program keeps the exit code and the output of a failed start', async () => {
  const { child } = serve(shipped, {}, ['--config', join(directory, 'none.toml')])
  expect(await child.exited).toBe(1)
  expect(await child.stderr.text()).toContain('there is no ')
})
