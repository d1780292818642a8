import { afterAll, expect, test } from 'bun:test'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { databaseOf } from '../../db/sqlite/ledger'
import { open } from '../../db/sqlite/open'
import * as App from '../../src/app'
import { check } from '../../src/cli/sell/check'
import { loadSecrets } from '../../src/config/env'
import { silent } from '../../src/log'
import * as Crypto from '../../src/protocol/Crypto'
import { channelOf, onChain, pay } from '../harness/channel-rows'
import { exitCode } from '../harness/command'
import { configOf, payout, small } from '../harness/config'
import { outcomeOf } from '../harness/outcome'

/** The key by which channels are claimed: another one could claim none of those that are open. */

const directory = mkdtempSync(join(tmpdir(), 'turnpike-channel-key-'))
afterAll(() => rmSync(directory, { recursive: true, force: true }))

const text = small
  .replace('"127.0.0.1:4020"', '"127.0.0.1:0"')
  .replace('name = "Base"', 'name = "Base"\nchannels = {}')
  .replaceAll(/https:\/\/(rpc|sepolia)\.example\.com/g, 'http://127.0.0.1:1')
const key = '11'.repeat(32)
const environment = { PAYOUT: payout, ONE_KEY: 'a-key-of-one', RELAYER_KEYS: '22'.repeat(32) }

/** A data directory with an open channel of an authorizer, which may have been charged. */
async function dataWith(privateKey: string, amountAtomic = 0n): Promise<string> {
  const dataDir = mkdtempSync(join(directory, 'data-'))
  const database = databaseOf(open({ dataDir, now: Date.now }))
  const channel = channelOf('eip155:8453')
  const receiverAuthorizer = Crypto.addressOf(Crypto.bytes(privateKey))
  const config = { ...channel.config, receiverAuthorizer }
  const { channels } = database.ledger
  await channels.insert({ ...channel, config }, onChain(), Date.now())
  if (amountAtomic > 0n)
    await pay(channels, { ...channel, config }, { baseAtomic: 0n, amountAtomic })
  await database.close()
  return dataDir
}

async function checkWith(dataDir: string, env: Record<string, string>, configured = text) {
  const file = join(dataDir, 'm.toml')
  writeFileSync(file, configured)
  const lines: string[] = []
  const out = (line: string) => void lines.push(line)
  const options = { file, dataDir, env: { ...environment, ...env }, now: Date.now, out }
  const code = await exitCode(check, { ...options, online: false })
  return { code, lines }
}

test('error: another key than that of open channels is refused by check and by the start', async () => {
  const dataDir = await dataWith(key)
  const other = '33'.repeat(32)
  const [own, its] = [key, other].map((each) => Crypto.addressOf(Crypto.bytes(each)))
  const message =
    `RECEIVER_AUTHORIZER_KEY is that of ${its}, and the ledger has 1 open channel of ${own}, which ` +
    'no other key can claim or refund: set that key again'
  const refused = await checkWith(dataDir, { RECEIVER_AUTHORIZER_KEY: other })
  expect(refused).toEqual({ code: 1, lines: [message, '1 fault'] })
  const missing = await checkWith(dataDir, {})
  expect(missing.lines[0]).toBe(message.replace(`that of ${its}`, 'not set'))
  const start = (given: string) => {
    const env = { ...environment, RECEIVER_AUTHORIZER_KEY: given }
    const secrets = loadSecrets({ dataDir, env, hasChannels: true })
    return App.start({ config: configOf(text), secrets, dataDir, log: silent })
  }
  expect(await outcomeOf(start(other))).toThrow(message)
  const right = await checkWith(dataDir, { RECEIVER_AUTHORIZER_KEY: key })
  expect(right.code).toBe(0)
  expect(right.lines.join('\n')).toContain('Base (eip155:8453, USDC, channels)')
  const app = await start(key)
  await app.stop()
})

test('error: a network whose channels were charged keeps them until all is claimed', async () => {
  const without = text.replace('\nchannels = {}', '')
  const env = { RECEIVER_AUTHORIZER_KEY: key }
  const dataDir = await dataWith(key, 90n)
  const message =
    '[networks."eip155:8453".channels] is missing, and 0.000090 USD that channels were charged there is ' +
    'not claimed: put it back, and claim all on /admin/channels before you remove it'
  expect(await checkWith(dataDir, env, without)).toEqual({ code: 1, lines: [message, '1 fault'] })
  const secrets = loadSecrets({ dataDir, env: { ...environment, ...env } })
  const start = () => App.start({ config: configOf(without), secrets, dataDir, log: silent })
  expect(await outcomeOf(start())).toThrow(message)
  expect((await checkWith(dataDir, env)).code).toBe(0)
  expect((await checkWith(await dataWith(key), env, without)).code).toBe(0)
})

test('a data directory without channels, or without a database, takes any key', async () => {
  const dataDir = mkdtempSync(join(directory, 'data-'))
  const env = { RECEIVER_AUTHORIZER_KEY: key }
  expect((await checkWith(dataDir, env)).code).toBe(0)
  open({ dataDir, now: Date.now }).close()
  expect((await checkWith(dataDir, env)).code).toBe(0)
  expect((await checkWith(dataDir, {})).code).toBe(0)
})
