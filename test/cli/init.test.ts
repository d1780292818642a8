import { afterAll, beforeEach, describe, expect, test } from 'bun:test'
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { init, slugOf } from '../../src/cli/sell/init'
import { developmentAccounts, documentedPayout } from '../../src/config/cross-checks'
import * as Route from '../../src/gateway/Route'
import { exitCode } from '../harness/command'
import { configOf, payout } from '../harness/config'
import { executable } from '../harness/executable'
import { temporary, until } from '../harness/settlement'

const directory = temporary()
afterAll(directory.remove)

let serial = 0
let file: string
beforeEach(() => {
  file = join(directory.path, `m${++serial}.toml`)
})

const right = { upstream: 'https://api.open-meteo.com', price: '0.005', networks: 'base', payout }
type Given = Partial<Record<keyof typeof right, string | undefined>> & {
  [Name in 'rpc' | 'title' | 'listen' | 'openapi' | 'price-for']?: string
}

/** Runs init; `typed` are the lines of a terminal, which ends after them. Without it there is none. */
async function run(given: Given, typed?: readonly string[], env: Record<string, string> = {}) {
  const out: string[] = []
  const err: string[] = []
  const asked: string[] = []
  const rest = [...(typed ?? [])]
  const ask =
    typed &&
    (async (question: string) => {
      asked.push(question.split('\n')[0] ?? '')
      return rest.shift()
    })
  const asking = (options: Parameters<typeof init>[0]) => init(options, ask)
  const code = await exitCode(asking, {
    ...given,
    file,
    dataDir: join(directory.path, 'data'),
    env,
    out: (line) => void out.push(line),
    err: (line) => void err.push(line),
  })
  return { code, out: out.join('\n'), err, asked }
}

const written = () => readFileSync(file, 'utf8')

describe('the file of init', () => {
  for (const [name, more] of [
    ['one network', {}],
    ['two networks', { networks: 'base, robinhood' }],
    ['test money', { networks: 'base-sepolia' }],
    ['test money beside real money', { networks: 'base base-sepolia' }],
    [
      'a local API on a local chain',
      { upstream: 'http://127.0.0.1:8080', rpc: 'http://127.0.0.1:1' },
    ],
    [
      'a local API and test money on a local chain',
      { upstream: 'http://localhost:8080', networks: 'base-sepolia', rpc: 'http://127.0.0.1:1' },
    ],
    ['a wallet of the environment', { payout: `\${WALLET}` }],
  ] as const)
    test(`${name} takes at most 25 lines, without a fault or a warning`, async () => {
      const { code, out } = await run({ ...right, ...more }, undefined, { WALLET: payout })
      expect([code, out]).toEqual([0, expect.stringContaining('\nok\n')])
      expect(out).toStartWith(`wrote ${file}\nTurnpike at http://localhost:4020`)
      expect(out).toContain('1 merchant sells 1 route')
      expect(out).not.toContain('warning')
      const lines = written().split('\n')
      expect(lines.pop()).toBe('')
      expect(lines.length).toBeLessThanOrEqual(25)
      expect(Math.max(...lines.map(({ length }) => length))).toBeLessThanOrEqual(105)
      expect(existsSync(join(directory.path, 'data'))).toBe(false)
    })

  test('the file sells every path of the API but its free document', async () => {
    await run({ ...right, upstream: 'https://api.open-meteo.com/v1' })
    const { merchants, networks, service } = configOf(written())
    expect([networks.map(({ id }) => id), service.contact]).toEqual([['eip155:8453'], undefined])
    const matcher = Route.compile(merchants)
    const target = (path: string) => {
      const match = Route.match(matcher, path)
      return match?.target && Route.upstreamUrl(match.target, match.tail, '?q=1').href
    }
    expect(target('/m/open-meteo')).toBe('https://api.open-meteo.com/v1?q=1')
    expect(target('/m/open-meteo/forecast/now')).toBe(
      'https://api.open-meteo.com/v1/forecast/now?q=1',
    )
    expect(target('/m/open-meteo/openapi.json')).toBeUndefined()
    expect(merchants[0]?.routes[0]).toMatchObject({ priceAtomic: 5_000n, methods: ['GET', 'POST'] })
  })

  test('the comments of the file become a second route, a node and a key of the upstream', async () => {
    await run(right)
    const text = written()
      .replaceAll(/^# (?!What|contact)/gm, '')
      .replace('https://...', 'https://node.test')
    const { merchants, networks } = configOf(text, { env: { API_KEY: 'k3y' } })
    expect(merchants[0]?.routes.map(({ path, priceAtomic }) => [path, priceAtomic])).toEqual([
      ['', 5_000n],
      ['/report', 50_000n],
    ])
    expect(merchants[0]?.headers).toEqual({ Authorization: 'Bearer k3y' })
    expect(networks[0]?.rpcUrls).toEqual(['https://node.test'])
  })

  test('a test key of the environment is refused by the check after the file is written', async () => {
    const { code, out } = await run(right, undefined, {
      RELAYER_KEYS: '0xac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80',
    })
    expect(code).toBe(1)
    const names = 'RELAYER_KEYS, DESK_KEY, REFUND_KEY or RECEIVER_AUTHORIZER_KEY'
    expect(out).toContain(`${file}:5: ${names} has the public test key of 0xf39F`)
    expect(out).toContain(`Correct it, then run `)
  })

  test('the slug is the name of the API', () => {
    for (const [url, slug] of [
      ['https://api.open-meteo.com/v1', 'open-meteo'],
      ['https://www.example.co.uk', 'example'],
      ['https://weather.api.example.com', 'weather'],
      ['https://203.0.113.7', 'api'],
      ['https://[2001:db8::1]', 'api'],
      ['http://localhost:1', 'api'],
      ['https://api.com', 'api'],
      ['nothing', 'api'],
    ] as const)
      expect([url, slugOf(url)]).toEqual([url, slug])
  })
})

describe('questions on a terminal', () => {
  test('five questions are asked, and an empty answer takes the usual one', async () => {
    const { code, asked, out } = await run({}, [right.upstream, '', '', '  ', ` ${payout} `])
    expect(code).toBe(0)
    expect(asked).toEqual([
      'What API do you sell? Its URL, such as https://api.example.com',
      'What is your service called, on its pages? [Open meteo]',
      'What does a request cost, in USD? [0.01]',
      'Which networks? Of base, robinhood and base-sepolia (test money), with commas [base]',
      'Which wallet is paid? Its address, 0x...',
    ])
    expect(out).toContain('curl -i http://localhost:4020/m/open-meteo')
    const { merchants, service } = configOf(written())
    expect([service.title, merchants[0]?.routes[0]?.priceAtomic]).toEqual(['Open meteo', 10_000n])
    expect(written().trimEnd().split('\n').length).toBeLessThanOrEqual(25)
  })

  test('each wrong answer is asked again', async () => {
    const wrong = [
      'api.example.com',
      right.upstream,
      'Weather',
      'free',
      '$1',
      'bass',
      'base',
      '0x12',
      payout,
    ]
    const { code, asked, out } = await run({}, wrong)
    expect([code, asked.length]).toEqual([0, 9])
    for (const message of [
      'The upstream must be an absolute URL, such as "https://host".',
      'The price must be a decimal number, such as "0.005" (found "free").',
      'The networks must be one of "base", "base-sepolia", "robinhood", or a CAIP-2 id such as',
      'The payout must be an address: 0x and 40 hex digits (found "0x12").',
    ])
      expect(out).toContain(message)
    expect(configOf(written()).merchants[0]?.routes[0]?.priceAtomic).toBe(1_000_000n)
  })

  test('a node of the options is of one network', async () => {
    const given = { ...right, networks: undefined, rpc: 'http://127.0.0.1:1' }
    const { code, out } = await run(given, ['Node', 'base, robinhood', 'robinhood'])
    expect([code, out]).toEqual([0, expect.stringContaining('networks must be one: --rpc names')])
    expect(configOf(written()).networks.map(({ id, rpcUrls }) => [id, rpcUrls])).toEqual([
      ['eip155:4663', ['http://127.0.0.1:1']],
    ])
  })

  test('only what the options leave open is asked', async () => {
    const given = { ...right, title: 'Weather', price: undefined }
    const { code, asked } = await run(given, ['2'])
    expect([code, asked]).toEqual([0, ['What does a request cost, in USD? [0.01]']])
  })

  test('a title alone is not asked for, and listen is in the address that is printed', async () => {
    const { code, asked, out } = await run({ ...right, listen: '0.0.0.0:4444' }, [])
    expect([code, asked]).toEqual([0, []])
    expect(out).toContain('curl -i http://localhost:4444/m/open-meteo')
    expect(configOf(written()).service.listen).toEqual({ hostname: '0.0.0.0', port: 4444 })
  })

  test('error: a terminal that ends leaves no file', async () => {
    const { code, err } = await run({}, [right.upstream, 'Weather'])
    expect([code, err]).toEqual([
      1,
      ['turnpike: nothing is written: the answers ended before the last question'],
    ])
    expect(existsSync(file)).toBe(false)
  })
})

describe('options', () => {
  for (const [name, more, message] of [
    [
      'upstream',
      { upstream: 'localhost:80' },
      '--upstream must be an absolute URL, such as "https://host"',
    ],
    [
      'upstream with a key',
      { upstream: 'https://api.example.com/?key=s3cret' },
      '--upstream must not have a query, fragment, blank or backslash',
    ],
    ['price', { price: '1e3' }, '--price must be a decimal number, such as "0.005" (found "1e3")'],
    [
      'price of zero',
      { price: '0' },
      '--price must be above zero: the smallest is "0.000001" (found "0")',
    ],
    ['no network', { networks: ',' }, '--networks is empty; write networks = ["base"]'],
    [
      'network that is not built in',
      { networks: 'eip155:10' },
      '--networks: eip155:10 is not built in: describe it in [networks."eip155:10"], or remove it here',
    ],
    ['network twice', { networks: 'base,base' }, '--networks names this network twice'],
    [
      'wallet',
      { payout: '0x036cbD53842c5426634e7929541eC2318f3dCF7e' },
      '--payout has a wrong EIP-55 checksum: check every digit; if the digits are right, write ' +
        '0x036CbD53842c5426634e7929541eC2318f3dCF7e (found "0x036cbD53842c5426634e7929541eC2318f3dCF7e")',
    ],
    [
      'wallet that is a private key',
      { payout: 'c0ffee254729296a45a3885639ac7e10f9d54979d5e5e5f9b5f2a7c0ffee2547' },
      '--payout looks like a private key: treat it as leaked',
    ],
    [
      'wallet of the test mnemonic',
      { payout: developmentAccounts[1] },
      '--payout is a public development account that anyone can empty: write a wallet of yours',
    ],
    [
      'wallet of the documents',
      { payout: documentedPayout },
      '--payout is the example of the documents: write a wallet of yours',
    ],
    [
      'wallet of an unset name',
      { payout: `\${WALLET}` },
      '--payout: the environment has no WALLET: set WALLET or WALLET_FILE, or write the value here',
    ],
    ['node', { rpc: '127.0.0.1:8545' }, '--rpc must be an absolute URL, such as "https://host"'],
    [
      'node of two networks',
      { networks: 'base,robinhood', rpc: 'http://127.0.0.1:1' },
      '--rpc is a node of one network: name one by --networks',
    ],
  ] as const)
    test(`error: a wrong option is named with the correction: ${name}`, async () => {
      const { code, err } = await run({ ...right, ...more })
      expect([code, err]).toEqual([2, [`turnpike: ${message}`]])
      expect(existsSync(file)).toBe(false)
    })

  test('error: all wrong options are named at once', async () => {
    const { code, err } = await run({ upstream: '', price: '', networks: 'x', payout: '' })
    expect([code, err.length]).toEqual([2, 4])
  })

  test('error: without a terminal the missing options are named', async () => {
    const { code, err } = await run({ upstream: right.upstream, networks: 'base' })
    expect([code, err[0]]).toEqual([
      2,
      'turnpike: init has no terminal to ask on; add --price, --payout',
    ])
    expect(err[1]).toContain('init --upstream https://api.example.com --price 0.01')
  })

  test('error: a file that is there is not overwritten, also by a race', async () => {
    writeFileSync(file, 'mine')
    const { code, err } = await run(right)
    expect([code, err]).toEqual([
      1,
      [`turnpike: ${file} is there already, and init overwrites nothing: name another by --config`],
    ])
    expect(written()).toBe('mine')
    file = join(directory.path, `m${++serial}.toml`)
    // Another program creates it while a question is open.
    const { code: late, err: said } = await raced()
    expect([late, said]).toEqual([
      1,
      [`turnpike: ${file} cannot be written (EEXIST): name another place by --config`],
    ])
    expect(written()).toBe('theirs')
  })

  async function raced() {
    const err: string[] = []
    const asking = (options: Parameters<typeof init>[0]) =>
      init(options, async () => {
        writeFileSync(file, 'theirs')
        return '1'
      })
    const code = await exitCode(asking, {
      ...right,
      price: undefined,
      file,
      dataDir: directory.path,
      err: (line) => void err.push(line),
    })
    return { code, err }
  }
})

describe('the program', () => {
  const environment = { PATH: process.env.PATH ?? '', TERM: 'xterm' }

  async function piped(args: readonly string[]) {
    const child = Bun.spawn([executable, ...args], {
      cwd: directory.path,
      env: environment,
      stdin: 'ignore',
      stdout: 'pipe',
      stderr: 'pipe',
    })
    const [out, err] = await Promise.all([child.stdout.text(), child.stderr.text()])
    return { code: await child.exited, out, err }
  }

  test('the program asks on a terminal', async () => {
    let seen = ''
    const decoder = new TextDecoder()
    const child = Bun.spawn([executable, 'init', '--config', file, '--networks', 'base'], {
      cwd: directory.path,
      env: environment,
      terminal: {
        cols: 120,
        rows: 40,
        data(_: unknown, bytes: Uint8Array) {
          seen += decoder.decode(bytes)
        },
      },
    })
    for (const [question, answer] of [
      ['What API', 'http://localhost:8080'],
      ['What is your service called', 'Mine'],
      ['What does a request cost', ''],
      ['Which wallet', payout],
    ] as const) {
      await until(() => seen.includes(question))
      child.terminal?.write(`${answer}\r`)
    }
    expect(await child.exited).toBe(0)
    await until(() => seen.includes(`${executable} serve --config ${file}`))
    expect(configOf(written()).merchants[0]?.slug).toBe('api')
  })

  test('error: the program alone in an empty directory says what to do', async () => {
    const { code, out, err } = await piped([])
    expect([code, out, err]).toEqual([
      1,
      '',
      `turnpike: there is no merchants.toml.
  turnpike init  asks five questions and writes it
  turnpike demo  runs samples on local chains, without a file and without keys
`,
    ])
    expect(readdirSync(directory.path)).not.toContain('merchants.toml')
    expect(readdirSync(directory.path)).not.toContain('data')
  })

  test('error: without a terminal the program ends with code 2', async () => {
    const { code, out, err } = await piped(['init'])
    expect([code, out, err]).toEqual([
      2,
      '',
      expect.stringContaining('add --upstream, --price, --networks, --payout'),
    ])
  })
})
