import { expect, test } from 'bun:test'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { eventTypes } from '../../src/protocol/Webhook'
import { read, small } from '../harness/config'
import { endpointOf, startSender } from '../harness/outbox'
import { secret, secretOf } from '../harness/receiver'
import { until } from '../harness/world'

/** What docs/webhooks.md says. */

const page = await Bun.file(join(import.meta.dir, '../../docs/webhooks.md')).text()
const blockOf = (language: string) =>
  new RegExp(`\`\`\`${language}\n(.*?)\`\`\``, 's').exec(page)?.[1] ?? ''

/** Runs the example of the page as it is; only the place of the package is resolved from here. */
async function startExample(directory: string, key: string) {
  const file = join(directory, 'receiver.ts')
  const library = Bun.resolveSync('standardwebhooks', import.meta.dir)
  writeFileSync(file, blockOf('ts').replace("'standardwebhooks'", `'${library}'`))
  const child = Bun.spawn([process.execPath, file], {
    env: { WEBHOOK_SECRET: key, PORT: '0' },
    stdout: 'pipe',
    stderr: 'inherit',
  })
  let said = ''
  void (async () => {
    for await (const part of child.stdout) said += new TextDecoder().decode(part)
  })()
  const urlOf = () => /listens on (http:\S+)/.exec(said)?.[1]
  await until('it listens', () => urlOf() !== undefined)
  const { port } = new URL(urlOf() ?? '')
  return { url: `http://127.0.0.1:${port}/`, said: () => said, child }
}

test('the receiver of the page accepts messages, and each only once', async () => {
  const directory = mkdtempSync(join(tmpdir(), 'turnpike-receiver-'))
  const right = await startExample(directory, secret)
  const wrong = await startExample(directory, secretOf(9))
  await using own = await startSender({ endpoints: [endpointOf(right.url), endpointOf(wrong.url)] })
  await own.add('pay_1', { data: { payment: 'pay_1' } })
  await own.pass(0)
  expect(own.rows().map(({ last_status }) => last_status)).toEqual([204, 400])
  const { id } = own.rows()[0] as { id: string }
  await own.ledger.webhooks.resend(id, { at: own.clock.ms, expiresAt: own.clock.ms + 1_000 })
  await own.pass(0)
  expect(own.rows()[0]).toMatchObject({ state: 'delivered', attempts: 2 })
  for (const { child } of [right, wrong]) {
    child.kill()
    await child.exited
  }
  expect(right.said().match(/"payment":"pay_1"/g)).toHaveLength(1)
  expect(wrong.said()).not.toContain('pay_1')
  rmSync(directory, { recursive: true })
})

test('the configuration of the page is valid', () => {
  const text = `${small}\n${blockOf('toml').replace(`\${WEBHOOK_SECRET}`, secret)}`
  expect(read(text).config?.webhooks).toHaveLength(1)
})

test('the page has a row for each type of event', () => {
  const named = [...page.matchAll(/^\| `([a-z]+\.[a-z]+)` \| [^|]+ \| the \w+ \|$/gm)]
  expect(named.map(([, type]) => type)).toEqual(expect.arrayContaining([...eventTypes]))
  expect(named).toHaveLength(eventTypes.length)
})
