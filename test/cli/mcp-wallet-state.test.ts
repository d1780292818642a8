import { Database } from 'bun:sqlite'
import { afterAll, describe, expect, test } from 'bun:test'
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { openSpending, type Payment } from '../../src/cli/mcp/spending'
import { account } from '../../src/demo/accounts'
import { executable } from '../harness/executable'
import { offer, offers, paid, startFake, tool } from '../harness/fake-gateway'
import { newState, removeStates, startWallet } from '../harness/mcp-wallet'

const directory = mkdtempSync(join(tmpdir(), 'turnpike-state-'))
afterAll(() => {
  rmSync(directory, { recursive: true, force: true })
  removeStates()
})

function replace(file: string): void {
  copyFileSync(file, `${file}.copy`)
  renameSync(`${file}.copy`, file)
}

let made = 0
const payment = (more: Partial<Payment> = {}): Payment => {
  made++
  return {
    id: `id-${made}`,
    call: `call-${made}`,
    tool: 'a',
    args: '{}',
    network: 'eip155:8453',
    asset: account(0).address,
    method: 'eip3009',
    scheme: 'exact',
    payer: account(1).address,
    payee: account(2).address,
    nonce: `0x${made.toString(16).padStart(64, '0')}`,
    signedMicros: 5000n,
    amount: '0.005000 USDC',
    validBefore: 1_800_000_000,
    credential: '{}',
    ...more,
  }
}
const now = () => Date.parse('2026-11-22T12:00:00Z')

describe('the state file', () => {
  test('only its owner can read the state file, also when it was readable before', () => {
    const file = newState()
    openSpending(file, now).close()
    expect(statSync(file).mode & 0o777).toBe(0o600)
    expect(statSync(dirname(file)).mode & 0o777).toBe(0o700)
    chmodSync(file, 0o644)
    const open = openSpending(file, now)
    open.reserve(payment(), 5000n)
    for (const each of ['', '-wal', '-shm'])
      expect(statSync(`${file}${each}`).mode & 0o777).toBe(0o600)
    open.close()
  })

  test('amounts add up without rounding, by the day', () => {
    let at = now()
    const { reserve, today } = openSpending(newState(), () => at)
    const most = 999_999_999_999_999_999n
    const almost = payment({ signedMicros: most - 1n })
    expect(reserve(almost, most)).toMatchObject(almost)
    expect(today()).toEqual({ spentMicros: most - 1n, payments: 1 })
    const two = payment({ signedMicros: 2n })
    expect(reserve(two, most)).toEqual({ spentMicros: most - 1n })
    const one = payment({ signedMicros: 1n })
    expect(reserve(one, most)).toMatchObject(one)
    at += 86_400_000
    expect(today()).toEqual({ spentMicros: 0n, payments: 0 })
    expect(reserve(two, most)).toMatchObject(two)
  })

  test('attack: processes that start at once all open the new file', async () => {
    const files = Array.from({ length: 300 }, newState)
    const script = join(directory, 'open.ts')
    writeFileSync(
      script,
      `import { openSpending } from '${join(import.meta.dir, '../../src/cli/mcp/spending')}'
      console.log('ready')
      await Bun.stdin.text()
      for (const file of ${JSON.stringify(files)}) openSpending(file, Date.now).close()`,
    )
    const children = [1, 2].map(() =>
      Bun.spawn([process.execPath, script], { stdin: 'pipe', stdout: 'pipe', stderr: 'pipe' }),
    )
    for (const { stdout } of children) await stdout.getReader().read()
    for (const { stdin } of children) await stdin.end()
    for (const { stderr } of children) expect(await stderr.text()).toBe('')
  })

  test('attack: a call has one unfinished payment, and a nonce is written once', () => {
    const { reserve, update } = openSpending(newState(), now)
    const first = payment()
    reserve(first, 100_000n)
    const second = payment({ call: first.call })
    expect(reserve(second, 100_000n)).toMatchObject({ id: first.id, credential: '{}' })
    update(first.id, { state: 'delivered' })
    expect(reserve(second, 100_000n)).toMatchObject(second)
    expect(() => reserve(payment({ nonce: first.nonce }), 100_000n)).toThrow(
      'cannot be written (SQLITE_CONSTRAINT_UNIQUE).',
    )
  })

  test('a proven end is not changed, and a delivered answer is not void', () => {
    const { reserve, update, settle, today, unsettled } = openSpending(newState(), now)
    const [exact, byUse] = [payment(), payment({ scheme: 'upto', method: 'permit2' })]
    for (const each of [exact, byUse]) reserve(each, 100_000n)
    update(exact.id, { state: 'delivered' })
    update(byUse.id, { state: 'delivered', transaction: '0x1' })
    expect(unsettled().map(({ id, transaction }) => [id, transaction])).toEqual([[byUse.id, '0x1']])
    settle(exact.id, { kind: 'void' })
    settle(byUse.id, { kind: 'charged', micros: 700n })
    settle(byUse.id, { kind: 'void' })
    expect(today().spentMicros).toBe(5700n)
  })

  test('finished payments are removed after a month, unfinished ones are not', () => {
    const file = newState()
    const first = openSpending(file, now)
    const [done, open] = [payment(), payment()]
    for (const each of [done, open]) first.reserve(each, 100_000n)
    first.update(done.id, { state: 'over' })
    first.close()
    const later = openSpending(file, () => now() + 31 * 86_400_000)
    const last = payment()
    later.reserve(last, 100_000n)
    later.close()
    openSpending(file, () => now() + 31 * 86_400_000).close()
    const db = new Database(file)
    expect(db.query('SELECT id FROM payments ORDER BY signed_at').all()).toEqual([
      { id: open.id },
      { id: last.id },
    ])
    db.close()
  })

  test('attack: a clock that is set back, or ahead and back, does not free the limit', () => {
    let at = now()
    const file = newState()
    const first = openSpending(file, () => at)
    const spent = payment()
    first.reserve(spent, 5000n)
    first.update(spent.id, { state: 'delivered' })
    at -= 86_400_000
    expect(first.reserve(payment(), 5000n)).toEqual({ spentMicros: 5000n })
    first.close()
    at += 40 * 86_400_000
    openSpending(file, () => at).close()
    at = now()
    const again = openSpending(file, () => at)
    expect(again.reserve(payment(), 5000n)).toEqual({ spentMicros: 5000n })
  })

  test('attack: a file that was removed, or replaced by a copy, takes no payment', () => {
    for (const change of [rmSync, replace]) {
      const file = newState()
      const { reserve, update, close } = openSpending(file, now)
      const first = payment()
      reserve(first, 100_000n)
      change(file)
      const message = `The state file ${file} was removed or replaced: start turnpike mcp again.`
      expect(() => reserve(payment(), 100_000n)).toThrow(message)
      // What was signed may end.
      expect(() => update(first.id, { state: 'delivered' })).not.toThrow()
      close()
    }
  })

  test('error: a file of another program or of a newer version is refused', () => {
    const text = join(directory, 'text')
    writeFileSync(text, 'this is not a database, and long enough to be read as one'.repeat(20))
    expect(() => openSpending(text, now)).toThrow(
      `The state file ${text} cannot be used (SQLITE_NOTADB).`,
    )
    for (const sql of ['CREATE TABLE other (a)', 'PRAGMA user_version = 3']) {
      const file = join(directory, `${made++}.sqlite`)
      const db = new Database(file, { create: true })
      db.run(sql)
      db.close()
      expect(() => openSpending(file, now)).toThrow(
        `${file} is not a state file of this version of turnpike mcp: name another with --state.`,
      )
    }
  })

  test('attack: when a payment cannot be written, nothing leaves the process', async () => {
    const fake = startFake((_, paying) => (paying ? paid('goods') : offers([offer('5000')])))
    const { call, state } = startWallet({ url: fake.url, busyMs: 50 })
    const other = new Database(state)
    other.run('BEGIN IMMEDIATE')
    expect((await call('a')).text).toBe(
      `The state file ${state} cannot be written (SQLITE_BUSY). Nothing was paid. Ask the user to make ` +
        'the file writable for turnpike mcp.',
    )
    expect(fake.payments()).toEqual([])
    other.run('ROLLBACK')
    other.close()
    expect((await call('a')).isError).toBe(false)
    fake.stop()
  })
})

async function run(args: readonly string[], env: Record<string, string>, stdin = '') {
  const child = Bun.spawn([executable, 'mcp', ...args], {
    env: { HOME: directory, ...env },
    stdin: new Blob([stdin]),
    stdout: 'pipe',
    stderr: 'pipe',
  })
  const [out, err] = await Promise.all([child.stdout.text(), child.stderr.text()])
  return { code: await child.exited, out, err }
}

const key = { PAY_KEY: account(1).privateKey }
const limits = ['--max-per-call', '0.05', '--max-per-day', '2']
const url = 'http://127.0.0.1:1'

describe.concurrent('the start', () => {
  const secret = join(directory, 'key')
  writeFileSync(secret, `${account(1).privateKey}\n`)
  const faults: [args: readonly string[], env: Record<string, string>, text: string][] = [
    [['example.com', ...limits], key, 'example.com is not an absolute URL.'],
    [['ftp://example.com', ...limits], key, 'The gateway needs an http or https URL.'],
    [
      ['https://a:b@example.com', ...limits],
      key,
      'The URL of the gateway takes no user name and no password.',
    ],
    [
      [url, '--max-per-call', '1'],
      key,
      'Name the limits in dollars, such as --max-per-call 0.05 --max-per-day 2.',
    ],
    [
      [url, '--max-per-call', '1', '--max-per-day', '-2'],
      key,
      "Option '--max-per-day' argument is ambiguous",
    ],
    [
      [url, '--max-per-call', '0.0000001', '--max-per-day', '2'],
      key,
      '--max-per-call is an amount in dollars such as 0.05.',
    ],
    [[url, ...limits, '--scheme', 'x'], key, '--scheme is exact, upto or channel.'],
    [
      [url, ...limits, '--network', '8453'],
      key,
      '--network is base, base-sepolia, robinhood or a CAIP-2 id such as eip155:8453.',
    ],
    [[url, ...limits, '--rpc', 'x'], key, '--rpc is an http or https URL.'],
    [
      [url, ...limits],
      {},
      'A private key is needed: set PAY_KEY, or PAY_KEY_FILE to a file that has it. Use a wallet of ' +
        'its own for the agent, with no more money than it may spend.',
    ],
    [[url, ...limits], { PAY_KEY: '0x1234' }, 'The key is not 32 bytes of hex.'],
    [
      [url, ...limits],
      { ...key, PAY_KEY_FILE: secret },
      'PAY_KEY and PAY_KEY_FILE are both set: unset one of them',
    ],
    [
      [url, ...limits, '--state', '/proc/none/x'],
      key,
      'The state file /proc/none/x cannot be used',
    ],
  ]
  for (const [args, env, text] of faults)
    test(`error: ${text.slice(0, 60)}`, async () => {
      const { code, out, err } = await run(args, env)
      expect([code, out]).toEqual([text.startsWith('Option') ? 2 : 1, ''])
      expect(err).toStartWith(`turnpike: ${text}`)
      expect(err).not.toContain('1234')
    })

  test('stdout has only JSON-RPC, the key may be in a file, and the end of stdin ends it', async () => {
    const fake = startFake(({ method }, paying) => {
      if (method === 'tools/list') return { tools: [tool('a')] }
      return paying ? paid('goods') : offers([offer('5000')])
    })
    const messages = [
      {
        id: 1,
        method: 'initialize',
        params: {
          protocolVersion: '2025-06-18',
          capabilities: {},
          clientInfo: { name: 'x', version: '1' },
        },
      },
      { method: 'notifications/initialized' },
      { id: 2, method: 'tools/list' },
      { id: 3, method: 'tools/call', params: { name: 'a', arguments: { q: 1 } } },
    ]
    const stdin = messages
      .map((each) => `${JSON.stringify({ jsonrpc: '2.0', ...each })}\n`)
      .join('')
    const env = { PAY_KEY_FILE: secret, XDG_STATE_HOME: directory }
    const { code, out, err } = await run([fake.url, ...limits], env, stdin)
    const answers = out
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line))
    expect(answers.map(({ jsonrpc, id }) => [jsonrpc, id]).toSorted()).toEqual([
      ['2.0', 1],
      ['2.0', 2],
      ['2.0', 3],
    ])
    expect(answers.find(({ id }) => id === 3).result.content[0].text).toBe('goods')
    expect(code).toBe(0)
    expect(err).toContain(`state in ${join(directory, 'turnpike', 'mcp.sqlite')}`)
    expect(fake.messages.map(({ params }) => params.name)).toEqual([undefined, 'a', 'a'])
    fake.stop()
  })

  test('error: a message above the limit of the transport ends the process', async () => {
    const args = ['https://gateway.invalid', ...limits]
    const long = 'x'.repeat(11 * 1024 * 1024)
    const { code, err } = await run(args, { ...key, XDG_STATE_HOME: join(directory, 'long') }, long)
    expect(code).toBe(0)
    expect(err).toContain('ReadBuffer exceeded maximum size')
  })

  test('error: a gateway that is not encrypted and not on this machine is warned about', async () => {
    const { code, err } = await run(['http://192.0.2.1:4020/x/', ...limits], {
      ...key,
      XDG_STATE_HOME: join(directory, 'other'),
    })
    expect(code).toBe(0)
    expect(err).toContain('the tools of http://192.0.2.1:4020/x/mcp are paid by')
    expect(err).toContain(
      'http://192.0.2.1:4020 is not encrypted: others on the way can change offers and answers',
    )
  })
})

describe('docs/machines.md', () => {
  const page = readFileSync(join(import.meta.dir, '../../docs/machines.md'), 'utf8')
  const blockOf = (language: string) => {
    const mark = '<!-- run by: test/cli/mcp-wallet-state.test.ts -->'
    const [, block = ''] = page.split(`${mark}\n\`\`\`${language}\n`)
    return block.split('\n```')[0] ?? ''
  }

  test('the command of docs/machines.md shows what the agent may spend', async () => {
    const cwd = mkdtempSync(join(directory, 'shell-'))
    writeFileSync(join(cwd, 'turnpike'), `#!/bin/sh\nexec ${executable} "$@"\n`, { mode: 0o755 })
    const text = blockOf('sh')
    expect(text).toContain('turnpike mcp http://localhost:4020 ')
    const child = Bun.spawn(['bash', '-c', `set -e\n${text}`], {
      cwd,
      env: { PATH: `${cwd}:${process.env.PATH}`, HOME: cwd },
      stdin: 'ignore',
      stdout: 'pipe',
      stderr: 'pipe',
    })
    const { id, result } = JSON.parse(await child.stdout.text())
    expect(await child.exited).toBe(0)
    expect(id).toBe(1)
    expect(result.content[0].text).toContain('Today: 0.00 USD in 0 payments, 2.00 USD left.')
    expect(existsSync(join(cwd, 'agent.sqlite'))).toBe(true)
  })

  test('the set-up of a client in docs/machines.md starts a wallet', async () => {
    const { command, args, env } = JSON.parse(blockOf('json')).mcpServers.turnpike
    expect([command, args[0], env]).toEqual([
      'turnpike',
      'mcp',
      { PAY_KEY_FILE: '/path/to/private-key' },
    ])
    const ran = await run(args.slice(1), { ...key, XDG_STATE_HOME: join(directory, 'setup') })
    expect(ran.code).toBe(0)
    expect(ran.err).toContain('the tools of https://api.example.com/mcp are paid by')
  })

  test('the texts that docs/machines.md lists are those of the wallet', () => {
    const sentences = readFileSync(join(import.meta.dir, '../../src/cli/mcp/Sentences.ts'), 'utf8')
    const rows = page.split('| Text begins with |')[1]?.split('\n').slice(2) ?? []
    const texts = rows.flatMap((row) => [...(row.split('|')[1] ?? '').matchAll(/`([^`]+)`/g)])
    expect(texts.length).toBeGreaterThan(9)
    const stated = sentences + readFileSync(join(import.meta.dir, '../../src/cli/mcp/spending.ts'))
    for (const [, text = ''] of texts)
      for (const part of text.split(/0\.005000 USDC|0x\.\.\./)) expect(stated).toContain(part)
  })
})
