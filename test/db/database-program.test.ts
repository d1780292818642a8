import { afterAll, beforeEach, describe, expect, test } from 'bun:test'
import {
  appendFileSync,
  existsSync,
  mkdtempSync,
  readdirSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { stockTable } from '../harness/config'
import { executable } from '../harness/executable'

/** The program with a DATABASE_URL that cannot be used: it ends with a message and writes nothing. */

const directory = mkdtempSync(join(tmpdir(), 'turnpike-dburl-'))
afterAll(() => rmSync(directory, { recursive: true, force: true }))

const url = 'postgres://seller:qzkxvw@127.0.0.1:1/shop'
const secrets = {
  RELAYER_KEYS: '11'.repeat(32),
  RECEIPT_KEY: '11'.repeat(32),
  CHALLENGE_SECRETS: '11'.repeat(32),
  ADMIN_TOKEN: 'an-admin-token-of-mine',
}
const refused =
  'turnpike: PostgreSQL at 127.0.0.1:1 does not listen there (ECONNREFUSED): start it, or correct ' +
  'host and port in DATABASE_URL\n'

const stock = stockTable('eip155:84532')

let dataDir = ''
let file = ''
beforeEach(() => {
  dataDir = mkdtempSync(join(directory, 'data-'))
  file = join(dataDir, 'merchants.toml')
  writeFileSync(
    file,
    `[service]
base_url = "http://127.0.0.1:4020"
listen = "127.0.0.1:0"
payout = "0x1111111111111111111111111111111111111111"
[networks."eip155:84532"]
name = "Base Sepolia"
testnet = true
rpc_urls = ["http://127.0.0.1:1"]
[networks."eip155:84532".asset]
symbol = "USDC"
address = "0x036CbD53842c5426634e7929541eC2318f3dCF7e"
eip712 = { name = "USDC", version = "2" }
[[merchants]]
slug = "weather"
title = "Weather"
upstream = "https://api.example.com"
networks = ["eip155:84532"]
testnet_ok = true
[[merchants.routes]]
path = "/forecast"
price = "0.01"
`,
  )
})

function run(args: readonly string[], env: Record<string, string>) {
  const child = Bun.spawnSync([executable, ...args], {
    cwd: dataDir,
    env: { PATH: process.env.PATH ?? '', ...env },
  })
  const text = `${child.stdout}${child.stderr}`
  expect(text).not.toContain('qzkxvw')
  return { code: child.exitCode, text }
}

describe('the program', () => {
  const data = () => readdirSync(dataDir).toSorted()

  test('error: serve ends when the server cannot be reached', () => {
    const before = data()
    const args = ['serve', '--config', file, '--data', dataDir]
    expect(run(args, { ...secrets, DATABASE_URL: url })).toEqual({ code: 1, text: refused })
    expect(data()).toEqual(before)
  })

  test('error: serve names every secret that is missing, and the fault of a URL', () => {
    const before = data()
    const args = ['serve', '--config', file, '--data', dataDir]
    const { code, text } = run(args, { DATABASE_URL: url, ADMIN_TOKEN: secrets.ADMIN_TOKEN })
    expect(code).toBe(1)
    for (const name of ['RELAYER_KEYS', 'CHALLENGE_SECRETS', 'RECEIPT_KEY'])
      expect(text).toContain(`${name} is not set. With DATABASE_URL every gateway has the same`)
    expect(text).not.toContain('ADMIN_TOKEN')
    const wrong = run(args, { ...secrets, DATABASE_URL: 'postgres://seller:qzk@xvw@h/shop' })
    expect([wrong.code, wrong.text]).toEqual([
      1,
      expect.stringContaining('must be percent-encoded: in a password write @ as %40'),
    ])
    expect(wrong.text).not.toMatch(/qzk|xvw/)
    expect(data()).toEqual(before)
    const both = run(args, { ...secrets, DATABASE_URL: url, DATABASE_URL_FILE: file })
    expect(both.text).toContain('DATABASE_URL and DATABASE_URL_FILE are both set')
  })

  test('error: with a desk, serve and check ask for DESK_KEY: another order of keys is another desk', () => {
    appendFileSync(file, stock)
    const before = data()
    const env = { ...secrets, DATABASE_URL: url }
    for (const args of [
      ['serve', '--config', file, '--data', dataDir],
      ['check', '--config', file, '--data', dataDir],
    ]) {
      const { code, text } = run(args, env)
      expect([code, text]).toEqual([1, expect.stringContaining('DESK_KEY is not set. With')])
      const named = run(args, { ...env, DESK_KEY: '22'.repeat(32) })
      expect(named.text).not.toContain('DESK_KEY')
    }
    expect(data()).toEqual(before)
  })

  test('error: the commands of the operator name the fault, and backup the tools', () => {
    const env = { DATABASE_URL: url }
    for (const args of [['orders', 'list'], ['webhooks', 'list'], ['sales']])
      expect(run(args, env)).toEqual({ code: 1, text: refused })
    expect(run(['backup', join(dataDir, 'copy')], env)).toEqual({
      code: 1,
      text: expect.stringContaining('pg_basebackup with the archive of the log, or pg_dump'),
    })
    expect(existsSync(join(dataDir, 'copy'))).toBe(false)
    const checked = run(['check', '--config', file, '--data', dataDir], env)
    expect(checked.code).toBe(1)
    expect(checked.text).toContain('RECEIPT_KEY is not set. With DATABASE_URL')
    expect(run(['check', '--config', file], { ...env, ...secrets })).toMatchObject({ code: 0 })
  })
})
