import { Database } from 'bun:sqlite'
import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { BackupError, writeBackup } from '../../db/sqlite/backup'
import { open } from '../../db/sqlite/open'
import { verifyReceipt } from '../../src/cli/buy/receipt'
import type { Command } from '../../src/cli/Command'
import { commands } from '../../src/cli/commands'
import { explainCommand } from '../../src/cli/help'
import { account } from '../../src/demo/accounts'
import * as Crypto from '../../src/protocol/Crypto'
import * as Receipt from '../../src/protocol/Receipt'
import { ask, payMpp, payX402 } from '../harness/buyer'
import { exitCode } from '../harness/command'
import { payout } from '../harness/config'
import { executable } from '../harness/executable'
import { type TestWorld, testWorld } from '../harness/world'

// Programs start in some tests, perhaps beside other work.
let world: TestWorld
let directory: string
/** Values of the receipt headers of two purchases. */
let mpp: string
let x402: string
beforeAll(async () => {
  directory = mkdtempSync(join(tmpdir(), 'turnpike-cli-'))
  world = await testWorld()
  const url = `${world.url}/m/catjoke/joke`
  const buyer = account(1).local()
  const asked = await ask(url)
  const [challenge] = asked.challenges
  if (challenge === undefined) throw new Error('no challenge')
  const authorization = await payMpp(challenge, buyer)
  mpp = (await fetch(url, { headers: { authorization } })).headers.get('payment-receipt') ?? ''
  const terms = { network: 'eip155:4663', method: 'permit2' } as const
  const payment = await payX402(asked.required, buyer, terms)
  const paid = await fetch(url, { headers: { 'payment-signature': payment } })
  x402 = paid.headers.get('payment-response') ?? ''
})
afterAll(async () => {
  await world?.stop()
  rmSync(directory, { recursive: true, force: true })
})

async function run(args: readonly string[], stdin = '') {
  const child = Bun.spawn([executable, ...args], {
    cwd: join(import.meta.dir, '../..'),
    env: { PATH: process.env.PATH ?? '', PAYOUT: payout },
    stdin: new Blob([stdin]),
    stdout: 'pipe',
    stderr: 'pipe',
  })
  const [out, err] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
  ])
  return { code: await child.exited, out, err }
}

describe('receipt verify', () => {
  const verify = async (
    receipt: string,
    how: Partial<Parameters<typeof verifyReceipt>[0]>,
    stdin = '',
  ) => {
    const lines: string[] = []
    const run = (options: Parameters<typeof verifyReceipt>[0]) =>
      verifyReceipt(options, async () => stdin)
    const out = (line: string) => void lines.push(line)
    const code = await exitCode(run, { operand: receipt, ...how, out })
    return { code, text: lines.join('\n') }
  }
  const key = () => world.app.receiptAddress

  test('a receipt of either protocol is checked against the published key', async () => {
    for (const value of [mpp, x402])
      for (const how of [{ key: key() }, { url: world.url }, { url: `${world.url}/m/catjoke` }]) {
        const { code, text } = await verify(value, how)
        expect([code, text]).toEqual([
          0,
          expect.stringContaining('valid: signed by the receipt key'),
        ])
        expect(text).toContain('resource     http://localhost/m/catjoke/joke')
        expect(text).toContain(`paid by      ${account(1).address}`)
        expect(text).toMatch(/transaction {2}0x[0-9a-f]{64}/)
        expect(text).toContain(`signed by    ${key()}`)
        const coin = value === mpp ? 'USDC' : 'USDG'
        const date = String.raw`\d{4}-\d\d-\d\d \d\d:\d\d UTC\.`
        expect(text).toMatch(
          new RegExp(`\nYou paid 0.01 ${coin} to catjoke at localhost, ${date}\n`),
        )
      }
  })

  test('a receipt is valid for the request that was paid for, and for no other', async () => {
    const url = `${world.url}/m/catjoke/joke`
    for (const value of [mpp, x402]) {
      const of = (request: string, more: Partial<Parameters<typeof verifyReceipt>[0]> = {}) =>
        verify(value, { key: key(), request, ...more })
      expect(await of(url)).toEqual({
        code: 0,
        text: expect.stringMatching(/request {6}sha256 [0-9a-f]{64}\namount {7}\d+ atomic\n/),
      })
      const file = join(directory, 'body')
      writeFileSync(file, '{}')
      for (const other of [
        await of(`${url}?symbol=B`),
        await of(url, { method: 'POST' }),
        await of(url, { body: '{}' }),
        await of(url, { body: `@${file}` }),
      ])
        expect(other).toEqual({
          code: 1,
          text: expect.stringContaining('NOT VALID: it is for another request'),
        })
      const missing = await of(url, { body: '@/does/not/exist' })
      expect(missing).toEqual({ code: 1, text: expect.stringContaining('--body names a file') })
      expect((await of('joke')).text).toContain('--request is a URL')
    }
    const json = JSON.parse(Buffer.from(x402, 'base64').toString())
    const more = await verify(JSON.stringify({ ...json, amount: '999' }), { key: key() })
    expect(more).toEqual({ code: 1, text: expect.stringContaining('NOT VALID: amount beside') })
  })

  test('a receipt may be JSON, in a file, on stdin, or in the head of an answer', async () => {
    const json = Buffer.from(x402, 'base64').toString()
    const { extensions } = JSON.parse(json)
    const signed = JSON.stringify(extensions['offer-receipt'].info.receipt)
    const head = `HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nPayment-Receipt: ${mpp}\r\n\r\n`
    const file = join(directory, 'receipt.txt')
    for (const text of [json, signed, `${mpp}\n`, head, `< payment-response: ${x402}`]) {
      writeFileSync(file, text)
      expect((await verify(file, { key: key() })).code).toBe(0)
      expect((await verify('-', { key: key() }, text)).code).toBe(0)
    }
  })

  test('the amount of a payment by a channel is what was charged, not that of a deposit', async () => {
    const signing = Crypto.bytes('55'.repeat(32))
    const network = 'eip155:8453'
    const payer = account(1).address
    const url = 'https://pay.example.com/m/weather/forecast'
    const resourceUrl = Receipt.urlOf(url, { request: 'ab', amount: '5000' })
    const fields = {
      network,
      resourceUrl,
      payer,
      issuedAt: 1_893_456_000,
      transaction: '',
    } as const
    const receipt = Receipt.sign(fields, signing)
    const responseOf = (chargedAmount: string) => {
      const settled = { success: true, transaction: '', network, payer, receipt } as const
      return Receipt.x402({ ...settled, amount: '500000', extra: { chargedAmount } })
    }
    const how = { key: Crypto.addressOf(signing) }
    const { code, text } = await verify(responseOf('5000'), how)
    expect([code, text]).toEqual([0, expect.stringContaining('transaction  none: by a payment')])
    expect(text).toContain('You paid 0.005 USDC')
    expect((await verify(responseOf('5001'), how)).text).toContain('NOT VALID: amount beside')
  })

  test('error: a receipt of another key, or one that was changed, is not valid', async () => {
    const json = JSON.parse(Buffer.from(x402, 'base64').toString())
    const receipt: Receipt.Signed & { payload: Receipt.Fields } =
      json.extensions['offer-receipt'].info.receipt
    const forged = Receipt.sign(receipt.payload, Crypto.bytes('55'.repeat(32)))
    const changed = { ...receipt, payload: { ...receipt.payload, payer: account(2).address } }
    const other = { ...json, transaction: `0x${'ab'.repeat(32)}` }
    const cases = [
      [JSON.stringify(forged), 'NOT VALID: the receipt key is'],
      [JSON.stringify(changed), 'NOT VALID: the receipt key is'],
      [JSON.stringify(other), 'NOT VALID: transaction beside the signed receipt'],
    ] as const
    for (const [text, message] of cases) {
      const judged = await verify(text, { url: world.url })
      expect([judged.code, judged.text]).toEqual([1, expect.stringContaining(message)])
      expect(judged.text).not.toContain('valid: signed')
    }
    expect((await verify(mpp, { key: account(3).address })).code).toBe(1)
  })

  test('error: an unreadable receipt is reported, and its text cannot control the terminal', async () => {
    const wrong: [string, { key?: string; url?: string }, string][] = [
      ['nothing!', { key: key() }, 'malformed'],
      ['{', { key: key() }, 'malformed'],
      ['{"success":false}', { key: key() }, 'malformed'],
      [mpp, {}, '--key ADDRESS, or its service by --url'],
      [mpp, { key: `0x${'12'.repeat(32)}` }, '--key is the address'],
      [mpp, { url: 'pay.example.com' }, '--url is the base URL'],
      [mpp, { url: 'file:///etc/passwd' }, '--url is the base URL'],
      [mpp, { url: world.upstreams.url }, 'publishes no receipt key'],
      [mpp, { url: 'http://127.0.0.1:1' }, 'publishes no receipt key'],
      ['x'.repeat(1024 * 1024 + 1), { key: key() }, 'too long'],
    ]
    for (const [receipt, how, message] of wrong) {
      const { code, text } = await verify(receipt, how)
      expect([code, text]).toEqual([1, expect.stringContaining(message)])
      expect(text).not.toContain('1212')
    }
    const fields = {
      network: 'eip155:1',
      resourceUrl: 'https://x/\u001b[2J',
      payer: account(1).address,
      issuedAt: 9e15,
      transaction: '0x',
    } as const
    const hostile = Receipt.sign(fields, Crypto.bytes('55'.repeat(32)))
    expect((await verify(JSON.stringify(hostile), { key: key() })).text).not.toContain('\u001b')
  })
})

describe('backup', () => {
  const count = (file: string) => {
    const database = new Database(file, { readonly: true })
    const row = database.query<{ n: number }, []>('SELECT count(*) AS n FROM payments').get()
    database.close()
    return row?.n
  }

  test('backup copies the database of a running gateway, which keeps serving', async () => {
    const file = join(directory, 'copy.sqlite')
    const ran = await run(['backup', file, '--data', world.dataDir])
    expect([ran.code, ran.err]).toEqual([0, ''])
    expect(ran.out).toContain(`${file}: `)
    expect(count(file)).toBe(2)
    expect(statSync(file).mode & 0o777).toBe(0o600)
    expect(readdirSync(directory).filter((name) => name.startsWith('copy'))).toEqual([
      'copy.sqlite',
    ])
    expect((await fetch(`${world.url}/healthz`)).status).toBe(200)
  })

  test('the copy is consistent while the database is being written', () => {
    const dataDir = join(directory, 'busy')
    const db = open({ dataDir, now: () => 1 })
    db.sqlite.run('CREATE TABLE pairs (side TEXT, n INTEGER)')
    const add = db.sqlite.transaction((n: number) => {
      db.sqlite.run("INSERT INTO pairs VALUES ('left', ?), ('right', ?)", [n, n])
    })
    for (let n = 0; n < 50; n++) add.immediate(n)
    // A change that is not committed is not in the copy.
    db.sqlite.run('BEGIN IMMEDIATE')
    db.sqlite.run("INSERT INTO pairs VALUES ('left', 50)")
    const file = join(directory, 'moment.sqlite')
    expect(writeBackup({ dataDir, file })).toBeGreaterThan(0)
    db.sqlite.run('ROLLBACK')
    db.close()
    const restored = join(directory, 'restored')
    mkdirSync(restored)
    writeFileSync(join(restored, 'turnpike.sqlite'), readFileSync(file))
    const again = open({ dataDir: restored, now: () => 2 })
    const sides = again.sqlite.query('SELECT side, count(*) AS n FROM pairs GROUP BY side').all()
    expect(sides).toEqual([
      { side: 'left', n: 50 },
      { side: 'right', n: 50 },
    ])
    again.close()
  })

  test('error: backup overwrites no file, and leaves none after a failure', () => {
    const { dataDir } = world
    const taken = join(directory, 'taken')
    writeFileSync(taken, '')
    const link = join(directory, 'link')
    symlinkSync(join(directory, 'target'), link)
    const missing = join(directory, 'missing')
    const broken = join(directory, 'broken')
    mkdirSync(broken)
    writeFileSync(join(broken, 'turnpike.sqlite'), 'this is not a database, but it is long enough')
    const faults: [string, string, string][] = [
      [dataDir, taken, 'exists: name a new file'],
      [dataDir, link, 'exists: name a new file'],
      [dataDir, directory, 'exists: name a new file'],
      [dataDir, join(missing, 'copy'), 'cannot be written'],
      [missing, join(directory, 'none'), 'there is no database in'],
      [broken, join(directory, 'none'), 'cannot be copied'],
    ]
    for (const [from, file, message] of faults) {
      expect(() => writeBackup({ dataDir: from, file })).toThrow(BackupError)
      expect(() => writeBackup({ dataDir: from, file })).toThrow(message)
    }
    expect(statSync(taken).size).toBe(0)
    for (const name of ['target', 'none', 'missing'])
      expect(existsSync(join(directory, name))).toBe(false)
  })
})

describe('the command line', () => {
  /** Exit code and messages of a command whose output goes to the redirection of a shell. */
  const runInto = async (redirection: string, args: string) => {
    const script = `${redirection} && "$0" ${args} >&3 3>&- && echo 0 >&2 || echo $? >&2`
    const child = Bun.spawn(['bash', '-c', script, executable], {
      cwd: join(import.meta.dir, '../..'),
      env: { PATH: process.env.PATH ?? '', PAYOUT: account(3).address },
      stderr: 'pipe',
    })
    return (await new Response(child.stderr).text()).trim().split('\n')
  }

  test.each(['--help', 'help sales', 'check'])(
    'error: %s ends in silence when its reader has left, and with one line on a full disk',
    async (args) => {
      // The reader ends before the command starts.
      expect(await runInto('exec 3> >(:) && wait $!', args)).toEqual(['141'])
      expect(await runInto('exec 3>/dev/full', args)).toEqual([
        'turnpike: the output cannot be written: ENOSPC: no space left on device, write',
        '1',
      ])
    },
  )

  test('help lists every command, and check prints line by line', async () => {
    const { out } = await run(['--help'])
    const lines = out.split('\n')
    for (const name of Object.keys(commands))
      expect(lines).toContainEqual(expect.stringMatching(new RegExp(`^  ${name} `)))
    // One screen of the usual terminal.
    expect(lines.length).toBeLessThanOrEqual(24)
    for (const line of lines) expect(line.length).toBeLessThanOrEqual(80)
    const checked = await run(['check', '--data', join(directory, 'none')])
    expect(checked.code).toBe(0)
    expect(checked.out.split('\n')).toContain('ok')
  })

  test('each command explains itself with an example, and an option has one type', async () => {
    const types = new Map<string, string>()
    for (const [name, command] of Object.entries<Command>(commands)) {
      const text = explainCommand(name, command)
      for (const example of command.examples) {
        expect(text).toContain(`  turnpike ${example}`)
        expect(example.startsWith(name)).toBe(true)
      }
      for (const [option, { value }] of Object.entries(command.options)) {
        const type = value === undefined ? 'boolean' : 'string'
        expect([option, types.get(option) ?? type]).toEqual([option, type])
        types.set(option, type)
      }
    }
    for (const args of [
      ['pay', '--help'],
      ['help', 'pay'],
      ['pay', '-h'],
    ])
      expect(await run(args)).toEqual({
        code: 0,
        out: explainCommand('pay', commands.pay),
        err: '',
      })
    const [asked, flagged] = [await run(['version']), await run(['--version'])]
    expect(asked).toMatchObject({ code: 0, out: expect.stringMatching(/^turnpike /) })
    expect(flagged).toEqual(asked)
  })

  test('error: a wrong command, operand or option is reported with what may be meant', async () => {
    const listen = ': write listen = "127.0.0.1:4020" below [service]; with --domain: --https-port'
    const cases: [string[], string][] = [
      [['receipt'], 'receipt needs verify'],
      [['receipt', 'show', 'x'], 'unknown command "receipt show"'],
      [['receipt', 'verify'], 'receipt verify needs a receipt'],
      [['receipt', 'verify', 'x', 'y'], 'unexpected argument "y"'],
      [['backup'], 'backup needs a file'],
      [['backup', 'x', '--key', 'y'], 'backup does not take --key'],
      [['pay'], 'pay needs a URL'],
      [
        ['pay', 'https://x', '--data', '{}'],
        'pay does not take --data: the request body is --body',
      ],
      [['orders'], 'orders needs list or show or retry'],
      [['orders', 'show'], 'orders show needs the id of an order'],
      [['help', 'nothing'], 'unknown command "nothing"\nRun'],
      [['srve'], 'unknown command "srve"; did you mean serve?'],
      [['webhooks', 'lst'], 'unknown command "webhooks lst"; did you mean webhooks list?'],
      [['serve', '--port', '1'], `serve does not take --port${listen}`],
      [['--host=::'], `serve does not take --host${listen}`],
      [['-p', '1'], `serve does not take -p${listen}`],
      [['--onlin', 'check'], 'check does not take --onlin; did you mean --online?'],
      [
        ['serve', '--domains', 'a.example'],
        'serve does not take --domains; did you mean --domain?',
      ],
      [['check', '--port', '1'], 'check does not take --port\nRun'],
      [['check', '--config'], "'--config <value>' argument missing"],
    ]
    const runs = await Promise.all(cases.map(([args]) => run(args)))
    for (const [index, [, message]] of cases.entries())
      expect(runs[index]).toMatchObject({ code: 2, err: expect.stringContaining(message) })
  })
})
