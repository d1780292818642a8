import { afterAll, describe, expect, test } from 'bun:test'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Address } from 'viem'
import { privateKeyToAccount } from 'viem/accounts'
import { check } from '../../src/cli/sell/check'
import { findOnline } from '../../src/cli/sell/online'
import type { NetworkConfig } from '../../src/config/Config'
import { account } from '../../src/demo/accounts'
import * as Channel from '../../src/protocol/Channel'
import * as Permit from '../../src/protocol/Permit'
import * as Upto from '../../src/protocol/Upto'
import { exitCode } from '../harness/command'
import { configOf, lineWith, payout, small } from '../harness/config'
import { executable } from '../harness/executable'
import { testWorld } from '../harness/world'

const directory = mkdtempSync(join(tmpdir(), 'turnpike-online-'))
const world = await testWorld({ exchange: true })
afterAll(async () => {
  await world.stop()
  rmSync(directory, { recursive: true, force: true })
})

function chainOf(chainId: number) {
  const chain = world.chains[`eip155:${chainId}`]
  if (chain === undefined) throw new Error(`no chain ${chainId}`)
  return chain
}

const privateKey = `0x${'ab'.repeat(32)}` as const
const unfunded = { privateKey, address: privateKeyToAccount(privateKey).address }
/** Rounded to two digits; local chains have a base fee. */
const amountToSend =
  /send about 0\.0*[1-9]\d? ETH \([\d.e-]+ USD\) to 0x\w{40} on .+ \(eip155:\d+\): it pays for 1,000 sales at the current fee$/

const urlOf = (chainId: number) => chainOf(chainId).url

async function place(codes: Readonly<Record<Address, string>>): Promise<void> {
  for (const [address, code] of Object.entries(codes))
    await chainOf(4663).rpc('anvil_setCode', [address, code])
}

async function run(text: string, env: Readonly<Record<string, string>> = {}) {
  const name = join(directory, 'check.toml')
  writeFileSync(name, text)
  const lines: string[] = []
  const code = await exitCode(check, {
    file: name,
    env: {
      PAYOUT: payout,
      ASSISTANT_KEY: 'key-of-assistant',
      ...env,
    },
    online: true,
    dataDir: join(directory, 'none'),
    now: Date.now,
    out: (line) => void lines.push(line.replaceAll(name, 'check.toml')),
  })
  return { code, lines }
}

/** The file with one text replaced, which must occur in it. */
function edited(from: string, to: string): string {
  if (!file.includes(from)) throw new Error(`not in the file: ${from}`)
  return file.replace(from, () => to)
}

const { stock } = world.config
if (stock === undefined) throw new Error('no stock')
const shipped = await Bun.file(join(import.meta.dir, '../..', 'merchants.toml')).text()
/** The shipped file on the world's chains and upstreams. */
const file = [4663, 8453, 84532]
  .reduce(
    (text, chainId) =>
      text.replace(
        new RegExp(`(\\[networks\\."eip155:${chainId}"\\][^[]*rpc_urls = )\\[[^\\]]*\\]`),
        `$1["${urlOf(chainId)}"]`,
      ),
    shipped,
  )
  .replaceAll(/^upstream = "https:\/\/[^"/]+/gm, `upstream = "${world.upstreams.url}`)
  .replaceAll(/^slug = .*$/gm, (line) =>
    /catjoke|chain-stocks/.test(line) ? line : `${line}\nallow_private = true`,
  )

describe('check --online', () => {
  test('check --online reports no fault when chains and upstreams match the file', async () => {
    const { code, lines } = await run(file)
    expect([code, lines.at(-1)]).toEqual([0, 'ok'])
    expect(lines).toContain(
      `relayer    none yet: set RELAYER_KEYS, or start serve once, which makes a key in ${directory}/none`,
    )
    // The gas cost of a sale on each network: the local chains have a base fee.
    const costs = lines.filter((line) => line.startsWith('gas on '))
    expect(costs).toHaveLength(3)
    for (const line of costs) {
      expect(line).toMatch(
        /: \d+\.\d{6} USD a sale now \(\d+ gas at [\d.e+-]+ gwei, 4000 USD an ETH\), /,
      )
      expect(line).toMatch(/, [\d.e+-]+ % of the cheapest price \(0\.\d+\)$/)
    }
    const dearer = edited('name = "Base"\n', 'name = "Base"\neth_price_usd = 8000\n')
    expect(
      (await run(dearer)).lines.filter((line) => line.includes('8000 USD an ETH')),
    ).toHaveLength(1)
    const socket = edited('ws_url = ""', `ws_url = "${chainOf(4663).wsUrl}"`)
    const { lines: last } = await run(socket, { REFUND_KEY: account(1).privateKey })
    expect(last.at(-1)).toBe('ok')
    expect(last.filter((line) => line.startsWith('refunds    the account has '))).toEqual(
      ['USDG on Robinhood Chain', 'USDC on Base', 'USDC on Base Sepolia'].map(
        (what) => `refunds    the account has 10000.000000 ${what}`,
      ),
    )
  })

  test('serve prints the gas cost of a sale at its start', async () => {
    const name = join(directory, 'serve.toml')
    writeFileSync(name, file.replace(/^listen = .*$/m, 'listen = "127.0.0.1:0"'))
    const data = join(directory, 'served')
    const child = Bun.spawn([executable, 'serve', '--config', name, '--data', data], {
      env: {
        PATH: process.env.PATH ?? '',
        PAYOUT: payout,
        RELAYER_KEYS: `${account(0).privateKey},${unfunded.privateKey}`,
        REFUND_KEY: account(1).privateKey,
      },
      stdout: 'ignore',
      stderr: 'pipe',
    })
    try {
      let said = ''
      const decoder = new TextDecoder()
      for await (const chunk of child.stderr) {
        said += decoder.decode(chunk, { stream: true })
        if (/\d+ merchants? sells? \d+ routes?/.test(said)) break
      }
      const costs = said.split('\n').filter((line) => line.startsWith('  gas on '))
      expect(costs).toHaveLength(3)
      for (const line of costs) expect(line).toMatch(/ USD a sale now \(.*% of the cheapest price/)
      expect(said).toContain(`  refunds are paid by ${account(1).address}, which needs no ETH\n`)
      // The relayer without gas, on each network.
      const toSend = said.split('\n').filter((line) => line.startsWith('    send about '))
      expect(toSend).toHaveLength(3)
      for (const line of toSend) expect(line).toMatch(amountToSend)
    } finally {
      child.kill('SIGKILL')
      await child.exited
    }
  })

  test('error: for a relayer that cannot pay for gas the amount to send is reported', async () => {
    const funded = await run(file, { RELAYER_KEYS: account(0).privateKey })
    expect([funded.code, funded.lines.at(-1)]).toEqual([0, 'ok'])
    const { code, lines } = await run(file, { RELAYER_KEYS: unfunded.privateKey })
    expect([code, lines.at(-1)]).toEqual([1, '3 faults'])
    const line = lineWith(file, '[networks."eip155:8453"]')
    const [fault = ''] = lines.filter((each) => each.startsWith(`check.toml:${line}: `))
    expect(fault).toContain(
      `relayer ${unfunded.address} holds 0 ETH (0.00 USD), too little for gas: send`,
    )
    expect(fault).toMatch(amountToSend)
    expect(fault).toContain(`to ${unfunded.address} on Base (eip155:8453): `)
    // The desk's own account needs gas on the network of the desk only.
    const desk = await run(file, {
      RELAYER_KEYS: account(0).privateKey,
      DESK_KEY: unfunded.privateKey,
    })
    expect([desk.code, desk.lines.at(-1)]).toEqual([1, '1 fault'])
    expect(desk.lines.at(-2)).toContain('(eip155:4663)')
  })

  const [no, other] = [`0x${'12'.repeat(20)}`, `0x${'34'.repeat(20)}`]
  const usdg = '0x5fc5360D0400a0Fd4f2af552ADD042D716F1d168'
  const faults: readonly (readonly [what: string, () => string, at: string, message: string])[] = [
    [
      'an asset without code',
      () => edited(`address = "${usdg}"`, `address = "${no}"`),
      `address = "${no}"`,
      `USDG: no such contract at ${no} on eip155:4663`,
    ],
    [
      'another signing domain',
      () => edited('name = "USD Coin"', 'name = "USDC"'),
      'eip712 = { name = "USDC", version = "2" }',
      'USDC: DOMAIN_SEPARATOR is not that of "USDC" "2"',
    ],
    [
      'another chain',
      () => edited(`["${urlOf(8453)}"]`, `["${urlOf(8453)}", "${urlOf(4663)}"]`),
      `["${urlOf(8453)}", "${urlOf(4663)}"]`,
      'rpc_urls[1] of eip155:8453: the chain id is 4663, not 8453',
    ],
    [
      'a node that is not there',
      () => edited(`["${urlOf(84532)}"]`, `["${urlOf(84532)}", "http://127.0.0.1:1"]`),
      `["${urlOf(84532)}", "http://127.0.0.1:1"]`,
      'rpc_urls[1] of eip155:84532: no answer to eth_chainId',
    ],
    [
      'a socket that is not there',
      () => edited('ws_url = ""', 'ws_url = "ws://127.0.0.1:1"'),
      'ws_url = "ws://127.0.0.1:1"',
      'ws_url of eip155:4663: no answer to eth_chainId',
    ],
    [
      'a pool that the factory does not know',
      () => edited('pool = "0xd4EB21209C4D6093f80B5b84f5C45cc093EA14a3"', `pool = "${other}"`),
      `pool = "${other}"`,
      'NVDA: factory: its pool of USDG, NVDA and 500 is 0xd4EB21209C4D6093f80B5b84f5C45cc093EA14a3',
    ],
    [
      'another fee',
      () => edited('\nfee = 500', '\nfee = 3000'),
      'fee = 3000',
      'NVDA: the fee of the pool is 500, not 3000',
    ],
    [
      'a token without code',
      () =>
        edited(
          'address = "0xd0601CE157Db5bdC3162BbaC2a2C8aF5320D9EEC"\npool',
          `address = "${no}"\npool`,
        ),
      `address = "${no}"`,
      `NVDA: no such contract at ${no} on eip155:4663`,
    ],
    [
      'a feed without code',
      () => edited('feed = "0x379EC4f7C378F34a1B47E4F3cbeBCbAC3E8E9F15"', `feed = "${no}"`),
      `feed = "${no}"`,
      `NVDA: feed: no such contract at ${no}`,
    ],
    ...(['factory', 'router', 'quoter', 'registry'] as const).map(
      (key) =>
        [
          `a ${key} without code`,
          () => edited(`${key} = "${stock[key]}"`, `${key} = "${no}"`),
          key === 'factory' ? 'router = ' : `${key} = "${no}"`,
          key === 'factory'
            ? 'router: its factory is 0x1f7d7550B1b028f7571E69A784071F0205FD2EfA'
            : `${key}: no such contract at ${no}`,
        ] as const,
    ),
    [
      'an upstream that is not there',
      () => edited(`upstream = "${world.upstreams.url}`, 'upstream = "http://127.0.0.1:1'),
      'upstream = "http://127.0.0.1:1',
      'upstream of assistant: no answer',
    ],
  ]
  for (const [what, edit, at, message] of faults)
    test(`error: the fault names the line of ${what}`, async () => {
      const text = edit()
      const { code, lines } = await run(text)
      expect(code).toBe(1)
      expect(lines.join('\n')).toContain(`check.toml:${lineWith(text, at)}: ${message}`)
      expect(lines.at(-1)).toMatch(/^\d+ faults?$/)
      expect(lines.join('')).not.toContain('http://')
    })

  test('check --online warns of an upstream that refuses the key of its merchant', async () => {
    const refusing = Bun.serve({
      hostname: '127.0.0.1',
      port: 0,
      fetch: ({ headers }) =>
        new Response('{}', { status: headers.get('authorization') === 'Bearer right' ? 200 : 401 }),
    })
    const warned = async (key: string) => {
      const text = `${file}
[[merchants]]
slug = "keyed"
upstream = "${refusing.url.origin}"
allow_private = true
headers = { Authorization = "Bearer ${key}" }
[[merchants.routes]]
path = "/data"
price = "0.01"
`
      const { code, lines } = await run(text)
      const about = lines.filter((each) => each.includes('is its key right'))
      expect(about.join('')).not.toContain(key)
      return [code, about.map((each) => each.replace(/:\d+:/, ':'))]
    }
    const message = 'the upstream answers 401 to /data of keyed: is its key right?'
    expect(await warned('wrong')).toEqual([0, [`warning: check.toml: ${message}`]])
    expect(await warned('right')).toEqual([0, []])
    await refusing.stop(true)
  })

  test('check --online warns of models that the upstream does not list', async () => {
    const id = '"~openai/gpt-latest"'
    const text = file.replaceAll(id, '"gone/model-1"')
    const { code, lines } = await run(text)
    const line = lineWith(text, '"gone/model-1" = {')
    const message = 'the upstream of assistant does not list the model gone/model-1'
    const about = lines.filter((each) => each.includes('does not list'))
    expect([code, about]).toEqual([0, [`warning: check.toml:${line}: ${message}`]])
    expect((await run(file)).lines.join()).not.toContain('does not list')
  })

  test('check --online warns of networks without the contracts of channels', async () => {
    const address = Channel.permit2CollectorAddress
    const code = await chainOf(4663).rpc('eth_getCode', [address, 'latest'])
    const header = '[networks."eip155:4663"]'
    const text = file.replace(header, `${header}\nchannels = {}`)
    const isAbout = (each: string) => each.includes('Collector')
    try {
      await place({ [address]: '0x' })
      expect((await run(file)).lines.filter(isAbout)).toEqual([])
      const said = `Permit2DepositCollector: no contract at ${address} on eip155:4663`
      const { code: exit, lines } = await run(text)
      expect([exit, lines.filter(isAbout)]).toEqual([
        0,
        [
          `warning: check.toml:${lineWith(text, header)}: ${said}: nothing is sold by channel there`,
        ],
      ])
    } finally {
      await place({ [address]: String(code) })
    }
    expect((await run(text)).lines.filter(isAbout)).toEqual([])
  })

  test('check --online warns of networks without the contracts of the scheme upto', async () => {
    const code = await chainOf(4663).rpc('eth_getCode', [Upto.proxyAddress, 'latest'])
    const line = lineWith(file, '[networks."eip155:4663"]')
    const said = `x402UptoPermit2Proxy: no contract at ${Upto.proxyAddress} on eip155:4663`
    const isAbout = (each: string) => each.includes('upto')
    expect((await run(file)).lines.filter(isAbout)).toEqual([])
    try {
      await place({ [Upto.proxyAddress]: '0x' })
      const { code: exit, lines } = await run(file)
      expect([exit, lines.filter(isAbout)]).toEqual([
        0,
        [`warning: check.toml:${line}: ${said}: nothing is sold by upto there`],
      ])
      // Without a meter nothing is sold by it in any case.
      const from = file.indexOf('[merchants.routes.meter]')
      const to = file.indexOf('[merchants.routes.body]', from)
      const flat = file.slice(0, from) + file.slice(to)
      expect((await run(flat)).lines.filter(isAbout)).toEqual([])
    } finally {
      await place({ [Upto.proxyAddress]: `${code}` })
    }
  })

  test('the gas cost of a sale is printed in addition to faults', async () => {
    const away = edited(`upstream = "${world.upstreams.url}`, 'upstream = "http://127.0.0.1:1')
    const { code, lines } = await run(away)
    expect(code).toBe(1)
    expect(lines.filter((line) => line.startsWith('gas on '))).toHaveLength(3)
  })

  test('error: contracts that the file does not name are checked, too', async () => {
    const { chainId } = chainOf(4663)
    const code = await chainOf(4663).rpc('eth_getCode', [Permit.proxyAddress, 'latest'])
    const multicall = '0xcA11bde05977b3631167028862bE2a173976CA11'
    const aggregate = `${await chainOf(4663).rpc('eth_getCode', [multicall, 'latest'])}`
    try {
      await place({ [Permit.proxyAddress]: '0x' })
      const line = lineWith(file, 'transfer = ["permit2"')
      const { lines } = await run(file)
      expect(lines.filter((each) => !each.startsWith('gas on '))).toEqual([
        `check.toml:${line}: x402ExactPermit2Proxy: no contract at ${Permit.proxyAddress} on eip155:${chainId}`,
        '1 fault',
      ])
      await place({ [multicall]: '0x' })
      expect((await run(file)).lines.join('\n')).toContain(
        `check.toml:${lineWith(file, '[networks."eip155:4663"]')}: Multicall3: no contract at`,
      )
    } finally {
      await place({ [Permit.proxyAddress]: `${code}`, [multicall]: aggregate })
    }
  })

  test('error: an upstream whose name resolves only to this machine is a fault, unless that is allowed', async () => {
    const config = configOf(small)
    const networks: readonly NetworkConfig[] = []
    const resolve = async (hostname: string) => [hostname.startsWith('one') ? '10.0.0.1' : '::1']
    const found = await findOnline({ ...config, networks }, { now: Date.now, resolve })
    expect(found).toEqual([
      {
        path: ['merchants', 0, 'upstream'],
        message: expect.stringContaining('upstream of one: its name leads to a private address'),
      },
      {
        path: ['merchants', 1, 'upstream'],
        message: expect.stringContaining('upstream of two: its name leads to a private address'),
      },
    ])
    const nowhere = async () => Promise.reject(new Error('ENOTFOUND'))
    const lost = await findOnline({ ...config, networks }, { now: Date.now, resolve: nowhere })
    expect(lost.map(({ message }) => message)).toEqual([
      'upstream of one: its name cannot be resolved',
      'upstream of two: its name cannot be resolved',
    ])
  })
})
