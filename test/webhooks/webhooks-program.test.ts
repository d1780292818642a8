import { afterAll, expect, test } from 'bun:test'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { webhooks } from '../../src/cli/operate/webhooks'
import { account } from '../../src/demo/accounts'
import { exitCode } from '../harness/command'
import { executable } from '../harness/executable'
import { secret, startReceiver, verify } from '../harness/receiver'
import { configText } from '../harness/target'
import { until } from '../harness/world'

/** The program with a webhook, whose networks do not answer: each start reports them as paused. */

const directory = mkdtempSync(join(tmpdir(), 'turnpike-webhooks-'))
const dataDir = join(directory, 'data')
const file = join(directory, 'merchants.toml')
const receiver = startReceiver()
afterAll(async () => {
  await receiver.stop()
  rmSync(directory, { recursive: true, force: true })
})

// No service is at this address; the program listens all the same.
const nowhere = 'http://127.0.0.1:9'
const entry = (url: string) => `
[[webhooks]]
url = "${url}"
events = ["network.paused"]
secret = "\${HOOK_SECRET}"
allow_private = true
`
const write = (url: string) =>
  writeFileSync(file, configText({ usdc: nowhere, usdg: nowhere, upstream: nowhere }) + entry(url))

function serve() {
  const child = Bun.spawn([executable, 'serve', '--config', file, '--data', dataDir], {
    env: { RELAYER_KEYS: account(0).privateKey, HOOK_SECRET: secret },
    stdout: 'pipe',
    stderr: 'pipe',
    cwd: directory,
  })
  const said: string[] = []
  void (async () => {
    for await (const part of child.stdout) said.push(new TextDecoder().decode(part))
  })()
  void (async () => {
    for await (const part of child.stderr) said.push(new TextDecoder().decode(part))
  })()
  return { child, said: () => said.join('') }
}

async function command(verb: string, id = '', waitMs = 120_000) {
  const lines: string[] = []
  const out = (line: string) => void lines.push(line)
  const run = (options: Parameters<typeof webhooks>[0]) => webhooks(options, waitMs)
  const code = await exitCode(run, { dataDir, verb, operand: id, out })
  return { code, text: lines.join('\n') }
}

test('messages survive kill -9 before and during their sending, with the same id', async () => {
  write(receiver.url)
  const gate = Promise.withResolvers<undefined>()
  receiver.answer = () => gate.promise
  const first = serve()
  await until('both networks are reported', () => receiver.received.length === 2)
  first.child.kill('SIGKILL')
  await first.child.exited
  const ids = receiver.ids()
  expect((await command('list')).text).toContain('2 waiting')

  // The endpoint is removed, so that the second start writes to another one, and cannot send.
  write('http://127.0.0.1:1/refuses')
  const second = serve()
  await until('it has written its messages', async () =>
    (await command('list')).text.includes('4 waiting'),
  )
  second.child.kill('SIGKILL')
  await second.child.exited
  expect(receiver.received).toHaveLength(2)

  gate.resolve(undefined)
  receiver.answer = undefined
  receiver.received.length = 0
  write(receiver.url)
  const third = serve()
  await until('all have arrived', () => receiver.received.length === 4)
  expect(receiver.ids()).toEqual(expect.arrayContaining(ids))
  expect(new Set(receiver.ids()).size).toBe(4)
  for (const message of receiver.received)
    expect(verify(message)).toMatchObject({
      type: 'network.paused',
      data: {
        network: expect.stringMatching(/^eip155:(8453|4663)$/),
        reason: expect.stringContaining('no usable answer'),
      },
    })

  // Beside the running service: list and resend.
  const { text } = await command('list')
  expect(text).toContain(receiver.url)
  expect(text).not.toContain(secret)
  const [id = ''] = ids
  const again = await command('resend', id)
  expect([again.code, again.text]).toEqual([
    0,
    expect.stringContaining('delivered  network.paused'),
  ])
  expect(again.text).toMatch(/2 attempts {2}status 204$/)
  expect(receiver.ids().filter((each) => each === id)).toHaveLength(2)

  // SIGHUP changes the endpoints.
  const other = startReceiver()
  write(`${other.url}/new`)
  third.child.kill('SIGHUP')
  await until('it is reloaded', () => third.said().includes('"reloaded"'))
  expect(await command('resend', id, 0)).toMatchObject({
    code: 1,
    text: expect.stringContaining('No effect yet'),
  })
  third.child.kill('SIGTERM')
  expect(await third.child.exited).toBe(0)
  expect(third.said()).not.toContain(secret.slice(6))
  await other.stop()
})

test('error: an unknown message and a missing database are reported', async () => {
  expect(await command('resend', 'evt_x')).toEqual({
    code: 1,
    text: 'turnpike: there is no message evt_x: see turnpike webhooks list',
  })
  const lines: string[] = []
  const options = { dataDir: directory, verb: 'list' }
  expect(await exitCode(webhooks, { ...options, out: (line) => void lines.push(line) })).toBe(1)
  expect(lines).toEqual([
    `turnpike: there is no database in ${directory}: name its directory by --data`,
  ])
})
