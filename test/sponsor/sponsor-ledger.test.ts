import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import { join } from 'node:path'
import type { Hex } from 'viem'
import type { NetworkConfig } from '../../src/config/Config'
import { account } from '../../src/demo/accounts'
import { createLog } from '../../src/log'
import { sendGrant } from '../../src/sponsor/ledger'
import { startNetwork, temporary, until } from '../harness/settlement'
import {
  age,
  freshWallet,
  type Sponsoring,
  setAllowances,
  setTokens,
  sponsoredNetwork,
  startSponsoring,
  weiOf,
  youngAge,
} from '../harness/sponsor'
import { bury, prepareLedger } from '../harness/test-ledger'

const { address } = account(3)
const id = 'eip155:4663'
let net: Awaited<ReturnType<typeof startNetwork>>
let directory: ReturnType<typeof temporary>
let network: NetworkConfig
let sponsoring: Sponsoring | undefined
beforeAll(async () => {
  net = await startNetwork('usdg')
  await age(net.chain, youngAge.minBalanceAgeBlocks)
})
afterAll(() => net?.stop())
beforeEach(async () => {
  directory = temporary()
  network = sponsoredNetwork(net.tap.url, youngAge)
  net.tap.intercept = undefined
  net.tap.calls.length = 0
})
afterEach(async () => {
  await sponsoring?.desk.stop()
  sponsoring = undefined
  directory.remove()
})

/** An address that gets a grant unless another rule refuses it. */
async function candidate() {
  const wallet = freshWallet()
  await setTokens(net.chain, network.asset.address, [wallet.address], 250_000n)
  await age(net.chain, youngAge.minBalanceAgeBlocks)
  return wallet
}

let clients = 0
const ask = (of: Sponsoring, asked: { address: string; signature?: string; client?: string }) =>
  of.granting.grant({ client: `10.1.${++clients}.1`, ...asked })
const codeOf = async (result: ReturnType<typeof ask>): Promise<string> => {
  const { kind, ...rest } = await result
  return kind === 'granted' ? kind : 'code' in rest ? rest.code : ''
}
const isSend = (method: string) => method.startsWith('eth_sendRawTransaction')

/** Grants in a separate process, which prints the result. */
const program = (url: string, dataDir: string) => `
  const { sponsoredNetwork, startSponsoring, youngAge } = await import(${JSON.stringify(
    join(import.meta.dir, '../harness/sponsor.ts'),
  )})
  const sponsoring = await startSponsoring([sponsoredNetwork(${JSON.stringify(url)}, youngAge)], ${JSON.stringify(dataDir)})
  process.stdin.on('end', () => process.exit(1)).resume()
  await sponsoring.granting.grant({ address: ${JSON.stringify(address)}, client: '10.0.0.1' })
`

test('a grant of a process that was killed between the reservation and the send is sent after the start, once', async () => {
  // The bytes are never sent: the program is killed while its send is pending.
  let tried = false
  net.tap.intercept = ({ method }) => {
    if (!isSend(method)) return undefined
    tried = true
    return new Promise(() => undefined)
  }
  await prepareLedger(directory.path)
  const child = Bun.spawn([process.execPath, '-e', program(net.tap.url, directory.path)], {
    stdin: 'pipe',
    stdout: 'ignore',
    stderr: 'ignore',
  })
  await until(() => tried)
  child.kill('SIGKILL')
  await child.exited
  bury(directory.path)
  net.tap.intercept = undefined
  expect(await weiOf(net.chain, address)).toBe(0n)

  sponsoring = await startSponsoring([network], directory.path)
  await until(async () => (await weiOf(net.chain, address)) > 0n)
  const [row, ...others] = sponsoring.rows()
  expect(others).toEqual([])
  expect(String(await weiOf(net.chain, address))).toBe(String(row?.amount_wei))
  const again = await ask(sponsoring, { address })
  expect(again).toMatchObject({
    kind: 'refused',
    code: 'already-sponsored',
    members: { transaction: row?.transaction_hash },
  })
  // The budget includes it, too.
  expect(await sponsoring.registry.render()).toContain(`sponsor_grants_today{network="${id}"} 1`)
})

test('a grant whose transaction is dropped is sent again, never a second one', async () => {
  const [{ address }, other] = [await candidate(), await candidate()]
  sponsoring = await startSponsoring([network], directory.path, { waitMs: 300 })
  const client = '10.2.0.1'
  const raws = new Set<unknown>()
  let dropped = 0
  net.tap.intercept = ({ method, params }) => {
    if (!isSend(method)) return undefined
    raws.add(params[0])
    // The node accepts and drops the transaction, as a node with a full pool does.
    return ++dropped === 1 ? { result: `0x${'ab'.repeat(32)}` } : undefined
  }
  expect(await codeOf(ask(sponsoring, { address, client }))).toBe('settlement-pending')
  expect(await codeOf(ask(sponsoring, { address }))).toBe('already-sponsored')
  // A client has one grant at a time, and this one is on its way.
  const more = ask(sponsoring, { address: other.address, client })
  expect(await codeOf(more)).toBe('rate-limited')
  await until(async () => (await weiOf(net.chain, address)) > 0n)
  expect(raws.size).toBe(1)
  expect(sponsoring.rows()).toHaveLength(1)
  expect(String(await weiOf(net.chain, address))).toBe(String(sponsoring.rows()[0]?.amount_wei))
})

test('attack: of a request and a signed approve that both find no grant one is given', async () => {
  sponsoring = await startSponsoring([network], directory.path)
  const { address } = await candidate()
  const { sponsor } = network
  if (sponsor === undefined) throw new Error('not sponsored')
  const { ledger, settlement } = sponsoring.desk
  const found: unknown[] = []
  const grants = {
    ...ledger.grants,
    // Each reads before the other one writes.
    async find(...asked: Parameters<typeof ledger.grants.find>) {
      const row = await ledger.grants.find(...asked)
      if (found.push(row) <= 2) await until(() => found.length >= 2)
      return row
    },
  }
  const log = createLog({ write: () => undefined, pretty: false })
  const networks = [{ ...network, sponsor }]
  const funds = { grants, settlement, networks, now: Date.now, log }
  const fund = (amountWei: bigint, approveHash: Hex | undefined) =>
    sendGrant(
      funds,
      { network: { ...network, sponsor }, address, amountWei, isSigned: false, approveHash },
      120_000,
    )
  const ends = await Promise.all([fund(1_000n, undefined), fund(1_000n, `0x${'ab'.repeat(32)}`)])
  expect(found.slice(0, 2)).toEqual([undefined, undefined])
  expect(ends.map(({ kind }) => kind).sort()).toEqual(['funded', 'taken'])
  expect(sponsoring.rows()).toHaveLength(1)
  expect(await weiOf(net.chain, address)).toBe(1_000n)
})

describe('the day', () => {
  const day = Date.UTC(2030, 0, 1, 12)

  test("half of the day's grants need no signature, the other half does, then the answer is 503 and readyz reports it", async () => {
    let at = day
    network = sponsoredNetwork(net.tap.url, { ...youngAge, grantsPerDay: 4 })
    sponsoring = await startSponsoring([network], directory.path, { now: () => at })
    const wallets = await Promise.all(Array.from({ length: 6 }, candidate))
    const one = async (index: number, isSigned: boolean) => {
      const wallet = wallets[index]
      if (!wallet || !sponsoring) throw new Error('none')
      const message = `turnpike gas sponsor ${id} ${wallet.address}`
      const signature = isSigned ? { signature: await wallet.signMessage({ message }) } : {}
      return codeOf(ask(sponsoring, { address: wallet.address, ...signature }))
    }
    expect([await one(0, false), await one(1, false)]).toEqual(['granted', 'granted'])
    expect(await one(2, false)).toBe('signature-required')
    expect([await one(2, true), await one(3, true)]).toEqual(['granted', 'granted'])
    expect([await one(4, true), await one(4, false)]).toEqual(['budget-spent', 'budget-spent'])
    expect(await sponsoring.spent()).toEqual([
      { network: id, reason: 'the sponsoring budget of today is spent' },
    ])
    at += 86_400_000
    expect(await sponsoring.spent()).toEqual([])
    expect(await one(4, false)).toBe('granted')
    expect(await one(0, false)).toBe('already-sponsored')
  })

  test('concurrent requests do not exceed the budget', async () => {
    network = sponsoredNetwork(net.tap.url, { ...youngAge, grantsPerDay: 6 })
    sponsoring = await startSponsoring([network], directory.path)
    const of = sponsoring
    const wallets = await Promise.all(Array.from({ length: 12 }, candidate))
    const codes = await Promise.all(wallets.map(({ address }) => codeOf(ask(of, { address }))))
    expect(codes.toSorted()).toEqual([
      ...Array<string>(3).fill('granted'),
      ...Array<string>(9).fill('signature-required'),
    ])
    expect(of.rows()).toHaveLength(3)
  })

  test('error: the budget in wei counts what the transfers cost', async () => {
    network = sponsoredNetwork(net.tap.url, youngAge, 1n)
    sponsoring = await startSponsoring([network], directory.path)
    const { address } = await candidate()
    expect(await codeOf(ask(sponsoring, { address }))).toBe('budget-spent')
    expect(sponsoring.rows()).toEqual([])
  })

  test('error: the grants of one client are limited, and those of its network have a higher limit', async () => {
    let at = day
    sponsoring = await startSponsoring([network], directory.path, { now: () => at })
    const of = sponsoring
    const wallets = await Promise.all(Array.from({ length: 7 }, candidate))
    const codes: string[] = []
    for (const { address } of wallets.slice(0, 6)) {
      // Whether the grants are used is read once a second.
      const next = () => {
        at += 1_000
        return codeOf(ask(of, { address, client: '192.0.2.1' }))
      }
      const code = await next()
      // One grant at a time: the previous one must have been used.
      if (codes.length > 0 && codes.length < 5) expect(code).toBe('rate-limited')
      await setAllowances(
        net.chain,
        network.asset.address,
        wallets.slice(0, codes.length).map((wallet) => wallet.address),
        1n,
      )
      codes.push(code === 'granted' ? code : await next())
    }
    expect(codes).toEqual([...Array<string>(5).fill('granted'), 'rate-limited'])
    const last = wallets[6]?.address ?? ''
    expect(await codeOf(ask(of, { address: last, client: '192.0.2.2' }))).toBe('granted')
  })
})

describe('a node without the needed data', () => {
  test('error: without the older state no address is refused, and nothing is written', async () => {
    const { address } = await candidate()
    sponsoring = await startSponsoring([network], directory.path)
    net.tap.intercept = ({ method, params }) =>
      method === 'eth_call' && params[1] !== 'latest'
        ? { error: { code: -32000, message: 'missing trie node' } }
        : undefined
    const result = await ask(sponsoring, { address })
    expect(result).toMatchObject({ kind: 'refused', code: 'not-ready', retryAfterSeconds: 5 })
    expect(sponsoring.rows()).toEqual([])
    net.tap.intercept = undefined
    expect(await codeOf(ask(sponsoring, { address }))).toBe('granted')
  })

  test('error: an estimate that fails without a revert is not counted against the address', async () => {
    const { address } = await candidate()
    sponsoring = await startSponsoring([network], directory.path)
    net.tap.intercept = ({ method }) =>
      method === 'eth_estimateGas'
        ? { error: { code: -32000, message: 'rate of this method is limited' } }
        : undefined
    expect(await codeOf(ask(sponsoring, { address }))).toBe('not-ready')
  })

  test('error: gas above the price that the cap pays for is refused', async () => {
    const { address } = await candidate()
    network = sponsoredNetwork(net.tap.url, { ...youngAge, maxGrantWei: 1n })
    sponsoring = await startSponsoring([network], directory.path)
    expect(await codeOf(ask(sponsoring, { address }))).toBe('not-ready')
    expect(sponsoring.rows()).toEqual([])
  })

  test('error: a relayer without money grants nothing', async () => {
    const { address } = await candidate()
    const relayer = account(0).address
    const had = await weiOf(net.chain, relayer)
    await net.chain.rpc('anvil_setBalance', [relayer, '0x0'])
    try {
      sponsoring = await startSponsoring([network], directory.path)
      expect(await codeOf(ask(sponsoring, { address }))).toBe('not-ready')
      expect(sponsoring.rows()).toEqual([])
    } finally {
      await net.chain.rpc('anvil_setBalance', [relayer, `0x${had.toString(16)}`])
    }
  })
})
