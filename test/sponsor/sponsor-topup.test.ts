import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'bun:test'
import { join } from 'node:path'
import { type Address, createWalletClient, defineChain, http, numberToHex } from 'viem'
import { privateKeyToAccount } from 'viem/accounts'
import { createGrants } from '../../db/sqlite/grants'
import { createOutbox } from '../../db/sqlite/webhooks'
import type { NetworkConfig } from '../../src/config/Config'
import { receiptOf } from '../../src/demo/chains'
import { approveCall } from '../../src/sponsor/facts'
import { startNetwork, temporary, until } from '../harness/settlement'
import {
  age,
  freshWallet,
  type Sponsoring,
  setAllowances,
  setTokens,
  sponsorDefaults,
  sponsoredNetwork,
  startSponsoring,
  weiOf,
  youngAge,
} from '../harness/sponsor'
import { bury, isPostgres, prepareLedger } from '../harness/test-ledger'

// A grant that became too small because fees rose before it was used is increased, once.

const id = 'eip155:4663'
const low = 36_000_000n
const high = 200_000_000n
let net: Awaited<ReturnType<typeof startNetwork>>
let directory: ReturnType<typeof temporary>
let network: NetworkConfig
let sponsoring: Sponsoring
beforeAll(async () => {
  net = await startNetwork('usdg')
})
afterAll(() => net?.stop())
beforeEach(async () => {
  directory = temporary()
  network = sponsoredNetwork(net.tap.url, youngAge)
  net.tap.intercept = withoutTip
  sponsoring = await startSponsoring([network], directory.path)
})
afterEach(async () => {
  net.tap.intercept = undefined
  await sponsoring.desk.stop()
  directory.remove()
})

/** A node that suggests no tip and fills in no fields. */
const withoutTip = ({ method }: { method: string }) => {
  if (method === 'eth_fillTransaction') return { error: { code: -32601, message: 'no method' } }
  return method === 'eth_maxPriorityFeePerGas' ? { result: '0x0' } : undefined
}

async function setBaseFee(wei: bigint): Promise<void> {
  await net.chain.rpc('anvil_setNextBlockBaseFeePerGas', [numberToHex(wei)])
  await net.chain.rpc('anvil_mine', ['0x1'])
  await until(() => sponsoring.desk.settlement.fees(id).baseFeeWei === wei)
  await net.chain.rpc('anvil_setNextBlockBaseFeePerGas', [numberToHex(wei)])
}

let clients = 0
const ask = (address: string, of = sponsoring) =>
  of.granting.grant({ address, client: `10.9.${++clients}.1` })
const topUps = () =>
  sponsoring.desk.sql
    .query<{ address: string; amount_wei: string }, []>('SELECT * FROM grant_top_ups')
    .all()

/** An address that was sponsored at low fees and has not approved when they rise. */
async function sponsored() {
  const wallet = freshWallet()
  await setTokens(
    net.chain,
    network.asset.address,
    [wallet.address],
    sponsorDefaults.minBalanceAtomic,
  )
  await age(net.chain, youngAge.minBalanceAgeBlocks)
  await setBaseFee(low)
  const first = await ask(wallet.address)
  if (first.kind !== 'granted') throw new Error(first.code)
  expect(await weiOf(net.chain, wallet.address)).toBe(BigInt(first.body.amountWei))
  return { ...wallet, first: first.body }
}

test("an increased grant pays for the approve of its answer, which is viem's default, and is never increased again", async () => {
  const { address, privateKey, first } = await sponsored()
  // Still enough: the approve is returned once more.
  expect(await ask(address)).toMatchObject({
    kind: 'refused',
    code: 'already-sponsored',
    members: { transaction: first.transaction, confirmed: true, approve: first.approve },
  })
  await setBaseFee(high)
  const second = await ask(address)
  if (second.kind !== 'granted') throw new Error(second.code)
  expect(second.body.transaction).not.toBe(first.transaction)
  const given = BigInt(first.amountWei) + BigInt(second.body.amountWei)
  expect(await weiOf(net.chain, address)).toBe(given)
  expect(given).toBeLessThanOrEqual(sponsorDefaults.maxGrantWei)
  expect(await sponsoring.registry.render()).toContain(`sponsor_grants_today{network="${id}"} 2`)

  // At any fee: it happens once.
  await setBaseFee(high * 2n)
  const third = await ask(address)
  expect(third).toMatchObject({ kind: 'refused', code: 'already-sponsored' })
  expect(topUps()).toHaveLength(1)
  expect(await weiOf(net.chain, address)).toBe(given)
  await setBaseFee(high)

  const chain = defineChain({
    id: network.chainId,
    name: 'local',
    nativeCurrency: { name: 'Ether', symbol: 'ETH', decimals: 18 },
    rpcUrls: { default: { http: [net.tap.url] } },
  })
  const account = privateKeyToAccount(privateKey)
  const wallet = createWalletClient({ account, chain, transport: http(net.tap.url) })
  const hash = await wallet.sendTransaction(approveCall(network.asset.address))
  expect((await receiptOf(net.chain, hash)).status).toBe('0x1')
})

test('error: a grant that was used, or partly spent, is not increased', async () => {
  const spent = await sponsored()
  const used = await sponsored()
  await net.chain.rpc('anvil_setBalance', [
    spent.address,
    numberToHex(BigInt(spent.first.amountWei) - 1n),
  ])
  await setAllowances(net.chain, network.asset.address, [used.address], 1n)
  await setBaseFee(high)
  for (const { address } of [spent, used]) {
    const result = await ask(address)
    expect(result).toMatchObject({ kind: 'refused', code: 'already-sponsored' })
  }
  expect(topUps()).toEqual([])
})

test('of many concurrent requests one increases the grant', async () => {
  const { address, first } = await sponsored()
  await setBaseFee(high)
  const answers = await Promise.all(Array.from({ length: 20 }, () => ask(address)))
  const granted = answers.flatMap((each) => (each.kind === 'granted' ? [each.body] : []))
  expect(granted).toHaveLength(1)
  const given = BigInt(first.amountWei) + BigInt(granted[0]?.amountWei ?? 0)
  expect(await weiOf(net.chain, address)).toBe(given)
  expect(topUps()).toHaveLength(1)
})

// It calls parts of SQLite's ledger; test/db/postgres-products.test.ts compares both.
test.skipIf(isPostgres)(
  'error: the ledger accepts one increase for each address, and none without a grant',
  async () => {
    const { address, first } = await sponsored()
    const { riders } = createGrants(sponsoring.desk.db, createOutbox(sponsoring.desk.db))
    const ride = (to: Address) => {
      const row = { network: id, address: to, amountWei: 1n, feeWei: 0n, createdAt: 1 } as const
      const budget = { from: 0, grants: 100, wei: 10n ** 18n }
      const grant = { isTopUp: true, row, budget, isSigned: true } as const
      riders.ride({ kind: 'grant', grant }, first.transaction)
    }
    ride(address)
    expect(() => ride(address)).toThrow('grant-exists')
    expect(() => ride(freshWallet().address)).toThrow('FOREIGN KEY')
  },
)

/** Requests in a separate process. */
const program = (url: string, dataDir: string, address: Address) => `
  const { sponsoredNetwork, startSponsoring, youngAge } = await import(${JSON.stringify(
    join(import.meta.dir, '../harness/sponsor.ts'),
  )})
  const sponsoring = await startSponsoring([sponsoredNetwork(${JSON.stringify(url)}, youngAge)], ${JSON.stringify(dataDir)})
  process.stdin.on('end', () => process.exit(1)).resume()
  await sponsoring.granting.grant({ address: ${JSON.stringify(address)}, client: '10.0.0.1' })
`

test('an increase of a process that was killed between the reservation and the send is sent after the start, once', async () => {
  const { address, first } = await sponsored()
  await setBaseFee(high)
  await sponsoring.desk.stop()
  let tried = false
  net.tap.intercept = (call) => {
    if (!call.method.startsWith('eth_sendRawTransaction')) return withoutTip(call)
    tried = true
    return new Promise(() => undefined)
  }
  await prepareLedger(directory.path)
  const command = [process.execPath, '-e', program(net.tap.url, directory.path, address)]
  const child = Bun.spawn(command, { stdin: 'pipe', stdout: 'ignore', stderr: 'ignore' })
  await until(() => tried)
  child.kill('SIGKILL')
  await child.exited
  bury(directory.path)
  net.tap.intercept = withoutTip
  expect(await weiOf(net.chain, address)).toBe(BigInt(first.amountWei))

  sponsoring = await startSponsoring([network], directory.path)
  const [row, ...others] = topUps()
  expect(others).toEqual([])
  const given = BigInt(first.amountWei) + BigInt(row?.amount_wei ?? 0)
  await until(async () => (await weiOf(net.chain, address)) === given)
  const again = await ask(address)
  expect(again).toMatchObject({ kind: 'refused', code: 'already-sponsored' })
  expect(await weiOf(net.chain, address)).toBe(given)
  expect(await sponsoring.registry.render()).toContain(`sponsor_grants_today{network="${id}"} 2`)
})
