import { afterAll, beforeAll, expect, test } from 'bun:test'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { ExactEvmScheme } from '@x402/evm/exact/client'
import {
  createSIWxClientExtension,
  createSIWxClientHook,
  wrapFetchWithSIWx,
} from '@x402/extensions/sign-in-with-x'
import {
  decodePaymentResponseHeader,
  wrapFetchWithPayment,
  x402Client,
  x402HTTPClient,
} from '@x402/fetch'
import { Mppx } from 'mppx/client'
import { assets, charge } from 'mppx/evm/client'
import { type Address, encodeFunctionData, parseAbi } from 'viem'
import { account, type DemoAccount } from '../../src/demo/accounts'
import { balanceOf, execute } from '../../src/demo/chains'
import { deploy } from '../harness/chains'
import { executable } from '../harness/executable'
import { fencesOf } from '../harness/fences'
import { removeStates, startWallet } from '../harness/mcp-wallet'
import * as Wallets from '../harness/wallets'
import { type TestWorld, testWorld } from '../harness/world'

/** Stock clients that come back, as they are, and the blocks of docs/buy.md about it. */

const base = 'eip155:8453'
let world: TestWorld
/** The service at its own URL, which a wallet compares with what it signs. */
let front: Bun.Server<undefined>
let target = ''
/** What each request carried. */
const carried: string[] = []

const routes = `
[[merchants]]
slug = "club"
upstream = "https://api.open-meteo.com"
networks = ["${base}"]
[[merchants.routes]]
path = "/data"
upstream_path = "/v1/forecast"
price = "0.005"
pass = { price = "0.05", period = "24h", requests = 3 }
[[merchants.routes]]
path = "/kept"
upstream_path = "/v1/forecast"
price = "0.005"
again = "24h"
[[merchants.routes]]
path = "/tried"
upstream_path = "/v1/forecast"
price = "0.005"
trial = { requests = 2, per = "wallet", total_per_day = 50, min_balance_age_blocks = 0 }
`

/** The route of the page. */
const forecast = `path = "/forecast"
pass = { price = "1.00", period = "24h", requests = 500 }
`

beforeAll(async () => {
  front = Bun.serve({
    hostname: '127.0.0.1',
    port: 0,
    fetch: (request) => {
      const { pathname, search } = new URL(request.url)
      const names = ['sign-in-with-x', 'payment-signature'].filter((name) =>
        request.headers.has(name),
      )
      carried.push(names.join(' '))
      // The gateway's bytes as they are.
      const options = { redirect: 'manual', decompress: false } as const
      return fetch(new Request(target + pathname + search, request), options)
    },
  })
  world = await testWorld({
    baseUrl: `http://127.0.0.1:${front.port}`,
    edit: (text) => text.replace('path = "/forecast"\n', forecast) + routes,
  })
  target = world.url
})
afterAll(async () => {
  await world?.stop()
  await front?.stop(true)
  removeStates()
})

const at = (path: string) => `http://127.0.0.1:${front.port}/m/club${path}`

/** Statuses of the requests that a client makes. */
function recorder() {
  const statuses: number[] = []
  const send = async (input: string | URL | Request, init?: RequestInit) => {
    const response = await fetch(input, init)
    statuses.push(response.status)
    return response
  }
  return { statuses, fetch: Object.assign(send, { preconnect: fetch.preconnect }) }
}

function assetOf() {
  const asset = world.config.networks.find(({ id }) => id === base)?.asset
  const chain = world.chains[base]
  if (asset === undefined || chain === undefined) throw new Error(`no ${base}`)
  return { asset, chain }
}

const balance = (of: Address) => balanceOf(assetOf().chain, assetOf().asset.address, of)

/** What a client makes of a request: its statuses, what it cost, and what it says of an entitlement. */
async function made(
  payer: Address,
  client: { statuses: number[] },
  request: () => Promise<Response>,
) {
  const before = await balance(payer)
  client.statuses.length = 0
  const response = await request()
  const said = response.headers.get('payment-entitlement')
  const cost = Number(before - (await balance(payer)))
  return { statuses: [...client.statuses], cost, said, body: await response.text(), response }
}

const payingClient = (signer: DemoAccount['local'] extends () => infer S ? S : never) =>
  new x402Client().register(base, new ExactEvmScheme(signer))

test('@x402/fetch with createSIWxClientHook pays once, and fetches the same answer again', async () => {
  const { address, local } = account(1)
  const wire = recorder()
  const client = new x402HTTPClient(payingClient(local())).onPaymentRequired(
    createSIWxClientHook(local()),
  )
  const get = wrapFetchWithPayment(wire.fetch, client)
  const url = at('/kept?latitude=1&longitude=2')
  const first = await made(address, wire, () => get(url))
  expect(first).toMatchObject({ statuses: [402, 402, 200], cost: 5000, said: null })
  const again = await made(address, wire, () => get(url))
  expect(again).toMatchObject({ statuses: [402, 200], cost: 0, body: first.body })
  expect(again.said).toMatch(/^kind=again, remaining=4, until="\d{4}-\d\d-\d\dT[\d:.]+Z"$/)
  const receipt = decodePaymentResponseHeader(first.response.headers.get('payment-response') ?? '')
  const repeated = decodePaymentResponseHeader(again.response.headers.get('payment-response') ?? '')
  expect(repeated.transaction).toBe(receipt.transaction)
  const other = await made(address, wire, () => get(at('/kept?latitude=1&longitude=3')))
  expect(other).toMatchObject({ statuses: [402, 402, 200], cost: 5000 })
})

test('@x402/fetch with createSIWxClientExtension uses the pass that it bought, then pays', async () => {
  const { address, local } = account(2)
  const wire = recorder()
  const client = payingClient(local()).registerExtension(
    createSIWxClientExtension({ signers: [local()] }),
  )
  const get = wrapFetchWithPayment(wire.fetch, client)
  const bought = await made(address, wire, () => get(at('/data/pass')))
  expect(bought).toMatchObject({ statuses: [402, 200], cost: 50_000 })
  expect(JSON.parse(bought.body)).toMatchObject({ pass: { requests: 3, period: 'PT24H' } })
  for (const remaining of [2, 1, 0]) {
    const used = await made(address, wire, () => get(at(`/data?latitude=1&longitude=${remaining}`)))
    expect(used).toMatchObject({ statuses: [402, 200], cost: 0 })
    expect(used.said).toStartWith(`kind=pass, remaining=${remaining}, until="`)
  }
  const paid = await made(address, wire, () => get(at('/data?latitude=1&longitude=2')))
  expect(paid).toMatchObject({ statuses: [402, 402, 200], cost: 5000, said: null })
})

test('wrapFetchWithSIWx has the answers of a trial, and never pays', async () => {
  const { address, local } = account(3)
  const wire = recorder()
  const get = wrapFetchWithSIWx(wire.fetch, local())
  const url = at('/tried?latitude=1&longitude=2')
  for (const remaining of [1, 0]) {
    const used = await made(address, wire, () => get(url))
    expect(used).toMatchObject({ statuses: [402, 200], said: `kind=trial, remaining=${remaining}` })
  }
  const over = await made(address, wire, () => get(url))
  expect(over).toMatchObject({ statuses: [402, 402], cost: 0 })
  expect(JSON.parse(over.body)).toMatchObject({ code: 'not-entitled', reason: 'entitlement_spent' })
})

test('a contract wallet pays and signs in by ERC-1271 with @x402/fetch', async () => {
  const owner = account(4)
  const { asset, chain } = assetOf()
  const wallet = await deploy(chain, Wallets.SmartWallet, [owner.address])
  const data = encodeFunctionData({
    abi: parseAbi(['function transfer(address to, uint256 value) returns (bool)']),
    args: [wallet, 1_000_000n],
  })
  await execute(chain, [{ from: owner.address, to: asset.address, data }])
  const signer = { ...owner.local(), address: wallet }
  const wire = recorder()
  const client = payingClient(signer).registerExtension(
    createSIWxClientExtension({ signers: [signer] }),
  )
  const get = wrapFetchWithPayment(wire.fetch, client)
  const url = at('/kept?latitude=4&longitude=4')
  expect(await made(wallet, wire, () => get(url))).toMatchObject({
    cost: 5000,
    statuses: [402, 402, 200],
  })
  const again = await made(wallet, wire, () => get(url))
  expect(again).toMatchObject({ cost: 0, statuses: [402, 200] })
  // The key of its owner is another wallet.
  const other = wrapFetchWithSIWx(wire.fetch, owner.local())
  expect(await made(owner.address, wire, () => other(url))).toMatchObject({ statuses: [402, 402] })
})

test('mppx pays, and the token of its answer has the same answer again', async () => {
  const { address, local } = account(5)
  const wire = recorder()
  const client = Mppx.create({
    methods: [charge({ account: local(), currencies: [assets.base.USDC] })],
    polyfill: false,
    fetch: wire.fetch,
  })
  const url = at('/kept?latitude=5&longitude=5')
  const first = await made(address, wire, () => client.fetch(url))
  expect(first).toMatchObject({ statuses: [402, 200], cost: 5000 })
  const token = first.response.headers.get('payment-redeem') ?? ''
  const again = await made(address, wire, () =>
    client.fetch(url, { headers: { 'Payment-Redeem': token } }),
  )
  expect(again).toMatchObject({ statuses: [200], cost: 0, body: first.body })
})

test('turnpike mcp pays once for an answer, and uses the pass that its model buys', async () => {
  const payer = account(4)
  const url = `http://127.0.0.1:${front.port}`
  const { call, list } = startWallet({ url, buyer: payer, network: base })
  const names = (await list()).map(({ name }) => name)
  expect(names).toEqual(expect.arrayContaining(['club-data', 'club-data-pass', 'club-kept']))
  const before = await balance(payer.address)
  const first = await call('club-kept', { params: { latitude: 7, longitude: 7 } })
  expect(first.text).toContain('[turnpike] Cost: 0.005000 USDC')
  const again = await call('club-kept', { params: { latitude: 7, longitude: 7 } })
  expect(again.text).toMatch(/\[turnpike\] Nothing was paid: paid before, 4 left, until 20.*\.$/)
  expect(again.text.split('\n')[0]).toBe(first.text.split('\n')[0] ?? '')

  const paid = await call('club-data', { params: { latitude: 7 } })
  expect(paid.text).toContain('the tool club-data-pass sells "club: Pass: 3 requests of')
  expect((await call('club-data-pass')).text).toContain('"requests":3')
  const used = await call('club-data', { params: { latitude: 8 } })
  expect(used.text).toContain('[turnpike] Nothing was paid: a pass, 2 left, until 20')
  expect(before - (await balance(payer.address))).toBe(60_000n)
})

/** The balance that the service of agentcash would state. Nothing of the program is changed. */
const balanceService = `
const { fetch } = globalThis
globalThis.fetch = async (request, init) =>
  String(request.url ?? request).startsWith('https://agentcash.dev/api/balance')
    ? Response.json({ balance: 100, network: '${base}', paymentNetwork: 'base', chainId: 8453 })
    : fetch(request, init)
`

test('the CLI of agentcash signs in first, pays when it has nothing, and pays once', async () => {
  const home = mkdtempSync(join(tmpdir(), 'turnpike-agentcash-'))
  writeFileSync(join(home, 'balance.ts'), balanceService)
  const program = join(import.meta.dir, '../../node_modules/agentcash/dist/esm/index.js')
  const payer = account(2)
  const url = at('/kept?latitude=6&longitude=6')
  const run = async () => {
    const child = Bun.spawn(
      [process.execPath, '--preload', join(home, 'balance.ts'), program, 'fetch', url],
      {
        env: { PATH: process.env.PATH ?? '', HOME: home, X402_PRIVATE_KEY: payer.privateKey },
        stdin: 'ignore',
        stdout: 'pipe',
        stderr: 'pipe',
      },
    )
    const out = await new Response(child.stdout).text()
    expect([await child.exited, out]).toEqual([0, expect.stringContaining('"success": true')])
    return JSON.parse(out)
  }
  const before = await balance(payer.address)
  carried.length = 0
  const paid = await run()
  expect(carried).toEqual(['', 'sign-in-with-x', 'sign-in-with-x payment-signature'])
  expect(paid.metadata).toMatchObject({ protocol: 'x402', payment: { success: true } })
  const again = await run()
  expect(carried.slice(3)).toEqual(['', 'sign-in-with-x'])
  expect(again).toEqual({ success: true, data: paid.data, metadata: null })
  expect(before - (await balance(payer.address))).toBe(5000n)
  rmSync(home, { recursive: true, force: true })
})

test('the blocks of docs/buy.md about coming back work as the page says', async () => {
  // Below node_modules, so that the program finds its packages.
  const cache = join(import.meta.dir, '../../node_modules/.cache')
  mkdirSync(cache, { recursive: true })
  const cwd = mkdtempSync(join(cache, 'coming-back-'))
  writeFileSync(join(cwd, 'turnpike'), `#!/bin/sh\nexec ${executable} "$@"\n`, { mode: 0o755 })
  const blocks = fencesOf('docs/buy.md').filter(({ mark }) => mark?.of.includes('sign-in-clients'))
  const printed: string[] = []
  for (const { language, text } of blocks) {
    const file = join(cwd, `block.${language}`)
    const url = `http://127.0.0.1:${front.port}`
    writeFileSync(file, text.replaceAll('https://pay.example.com', url))
    const child = Bun.spawn([language === 'sh' ? 'bash' : process.execPath, file], {
      cwd,
      env: { PATH: `${cwd}:${process.env.PATH}`, PAY_KEY: account(1).privateKey },
      stdin: 'ignore',
      stdout: 'pipe',
      stderr: 'pipe',
    })
    const [out, err] = await Promise.all(
      [child.stdout, child.stderr].map((stream) => new Response(stream).text()),
    )
    expect([await child.exited, err]).toEqual([0, language === 'sh' ? expect.any(String) : ''])
    printed.push(`${out}${err}`)
  }
  rmSync(cwd, { recursive: true, force: true })
  const [shell = '', program = ''] = printed
  expect(shell.match(/cost {7}nothing: a pass, (499|498) left, until/g)).toHaveLength(2)
  expect(shell.match(/"latitude"/g)).toHaveLength(2)
  expect(program).toMatch(/^200 kind=pass, remaining=497, until="[^"]+" \{"latitude"/)
})
