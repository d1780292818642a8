import { afterAll, afterEach, beforeEach, expect, test } from 'bun:test'
import {
  encodeFunctionData,
  erc20Abi,
  type Hex,
  keccak256,
  pad,
  parseTransaction,
  toHex,
} from 'viem'
import * as Receipt from '../../src/chain/receipt'
import { orders } from '../../src/cli/operate/orders'
import { account } from '../../src/demo/accounts'
import { execute } from '../../src/demo/chains'
import * as Transfer from '../../src/protocol/Transfer'
import { exitCode } from '../harness/command'
import { pause } from '../harness/exchange'
import { makeBody, post } from '../harness/facilitation'
import { type RpcCall, startTap } from '../harness/settlement'
import { payee, sign } from '../harness/shop'
import {
  before,
  buyStock,
  mint,
  network,
  type OrderJson,
  requestRetry,
  signOrder,
  startStockShop,
} from '../harness/stock-shop'
import { commandEnv } from '../harness/test-ledger'
import { until } from '../harness/world'

// Two nodes, of which one lies, lags or does not answer. The answer of one node alone sells no
// stock and nothing above the configured amount.

const shop = await startStockShop({
  edit: (text) => text.replace('confirm_twice_above = "10"', 'confirm_twice_above = "0.01"'),
})
const { chain, tap, asset } = shop
const second = startTap(chain.url)
const config = {
  ...shop.config,
  networks: shop.config.networks.map((each) =>
    each.id === network ? { ...each, rpcUrls: [tap.url, second.url] } : each,
  ),
}
await shop.restart(config)
afterAll(async () => {
  await shop.stop()
  second.stop()
})

const thief = account(2).address
const hoard = account(6).address
const down = () => Response.json({}, { status: 503 })

beforeEach(() => mint(shop, shop.desk, 1_000_000_000n))
afterEach(async () => {
  tap.intercept = undefined
  second.intercept = undefined
  await move(hoard, thief)
})

async function move(from: Hex, to: Hex): Promise<void> {
  const all = await shop.usdg(from)
  if (all === 0n) return
  const data = encodeFunctionData({ abi: erc20Abi, functionName: 'transfer', args: [to, all] })
  await chain.rpc('anvil_setBalance', [from, '0xde0b6b3a7640000'])
  await execute(chain, [{ from, to: asset, data, gas: 200_000n }])
}

/** A node that reports the thief's payments, which revert because the wallet is empty. */
function lying() {
  const told = new Map<unknown, object>()
  return async ({ method, params }: RpcCall) => {
    if (method === 'eth_getTransactionReceipt' && told.has(params[0])) {
      return { result: told.get(params[0]) }
    }
    if (!method.startsWith('eth_sendRaw')) return undefined
    const raw = params[0] as `0x02${string}`
    const sent = parseTransaction(raw)
    const transfer = Transfer.parseCall(sent.to ?? '0x', sent.data ?? '0x')
    if (transfer?.payer !== thief) return undefined
    const head = await chain.rpc('eth_getBlockByNumber', ['latest', false])
    const { number: blockNumber, hash: blockHash } = head as { number: Hex; hash: Hex }
    const transactionHash = keccak256(raw)
    const topics = [Receipt.transferTopic, pad(thief), pad(transfer.payee)].map((topic) =>
      topic.toLowerCase(),
    )
    const data = pad(toHex(transfer.amountAtomic))
    const receipt = {
      ...{ transactionHash, blockNumber, blockHash, status: '0x1' },
      ...{ gasUsed: '0x1', effectiveGasPrice: '0x1' },
      logs: [{ address: asset, topics, data, logIndex: '0x0', transactionHash }],
    }
    await move(thief, hoard)
    await chain.rpc('eth_sendRawTransaction', [raw])
    told.set(transactionHash, receipt)
    return { result: method.endsWith('Sync') ? receipt : transactionHash }
  }
}

/** A node that reports transactions without their effects. */
async function denying({ method }: RpcCall, forward: () => Promise<Response>) {
  if (method !== 'eth_getTransactionReceipt') return undefined
  const { result } = (await (await forward()).json()) as { result: object | null }
  return { result: result && { ...result, status: '0x0', logs: [] } }
}

const stateOf = (id: string) => shop.rows(`SELECT state FROM orders WHERE id = '${id}'`)[0]?.state
const newest = () =>
  shop.rows('SELECT id FROM orders ORDER BY id DESC LIMIT 1')[0] as { id: string }

test('attack: a failed payment that one node reports as paid gets neither stock nor refund, and its order is held', async () => {
  const before = { desk: await shop.usdg(shop.desk), shares: await shop.shares(thief) }
  tap.intercept = lying()
  const url = shop.buyUrl({ usdg: '500' })
  const response = await buyStock(url, { buyer: 2, scheme: 'x402-eip3009' })
  const { order, code } = (await response.json()) as { order: OrderJson; code: string }
  expect([response.status, code]).toEqual([503, 'settlement-pending'])
  expect(order).toMatchObject({ status: 'held', heldReason: 'settlement-disputed' })
  expect({ desk: await shop.usdg(shop.desk), shares: await shop.shares(thief) }).toEqual(before)
  expect(shop.rows(`SELECT * FROM jobs WHERE id LIKE '%${order.id}%'`)).toEqual([])
  expect(shop.logged.join('\n')).toContain('settlement-disputed')

  const lines: string[] = []
  const env = commandEnv(shop.dataDir)
  const out = (line: string) => lines.push(line)
  const options = { dataDir: shop.dataDir, env, now: shop.now, out }
  await exitCode(orders, { ...options, verb: 'list' })
  expect(lines.find((line) => line.startsWith(order.id))).toEndWith('settlement-disputed')
  expect(await exitCode(orders, { ...options, verb: 'retry', operand: order.id })).toBe(1)
  expect(stateOf(order.id)).toBe('held')
})

test('a retry continues a disputed order once both nodes show its payment', async () => {
  const url = shop.buyUrl({ usdg: '31' })
  // The correct node; the other one denies what is on the chain.
  second.intercept = denying
  const shares = await shop.shares(account(1).address)
  const response = await buyStock(url)
  const { order } = (await response.json()) as { order: OrderJson }
  expect(order).toMatchObject({ status: 'held', heldReason: 'settlement-disputed' })
  second.intercept = undefined
  requestRetry(shop, order.id)
  await until('it is delivered', () => stateOf(order.id) === 'delivered')
  expect(await shop.shares(account(1).address)).toBeGreaterThan(shares)
})

test('attack: an order whose payment is disputed before its refund is held, not refunded', async () => {
  const url = shop.buyUrl({ usdg: '35' })
  const credential = await signOrder(url)
  const money = await shop.usdg(account(1).address)
  let asked = 0
  // Both nodes show it while the order is settled; the second one denies it when the order is
  // refunded.
  second.intercept = (call, forward) =>
    call.method === 'eth_getTransactionReceipt' && ++asked > 1 ? denying(call, forward) : undefined
  before(shop, 'quote', 2, () => pause(chain, shop.nvda, { everything: true }))
  const response = await fetch(url, { method: 'POST', headers: credential })
  await pause(chain, shop.nvda, {})
  const { order } = (await response.json()) as { order: OrderJson }
  expect(order).toMatchObject({ status: 'held', heldReason: 'settlement-disputed' })
  expect(shop.rows(`SELECT * FROM jobs WHERE id LIKE '%${order.id}%'`)).toEqual([])
  second.intercept = undefined
  requestRetry(shop, order.id)
  await until('it is refunded', () => stateOf(order.id) === 'refunded')
  expect(await shop.usdg(account(1).address)).toBe(money)
})

for (const [name, answer] of [
  ['lags behind', () => ({ result: null })],
  ['is gone', down],
] as const)
  test(`an order waits while the second node ${name}, and then continues automatically`, async () => {
    let asked = 0
    second.intercept = ({ method }) => {
      if (method !== 'eth_getTransactionReceipt') return undefined
      asked++
      return answer()
    }
    const credential = await signOrder(shop.buyUrl({ usdg: name === 'is gone' ? '33' : '32' }))
    const url = shop.buyUrl({ usdg: name === 'is gone' ? '33' : '32' })
    const paying = fetch(url, { method: 'POST', headers: credential })
    await until('the second node is asked for it', () => asked > 0)
    const { id } = newest()
    // The node showed it when the order settled; no swap follows while it does not.
    await until('it waits for that node', () => stateOf(id) === 'settling')
    const before = asked
    await until('it is looked at again', () => asked > before)
    expect(stateOf(id)).toBe('settling')
    expect(shop.rows(`SELECT * FROM jobs WHERE id LIKE '%${id}%'`)).toEqual([])
    second.intercept = undefined
    expect(((await (await paying).json()) as OrderJson).status).toBe('delivered')
  })

test('without a second node no payment is charged that the node must confirm', async () => {
  second.intercept = down
  const form = `${shop.url}/m/shop/form?symbol=A`
  const [order, large, small] = await Promise.all([
    signOrder(shop.buyUrl({ usdg: '34' })),
    sign(form, { scheme: 'x402-eip3009', network, buyer: 3 }),
    sign(`${shop.url}/m/shop/item`, { scheme: 'x402-eip3009', network, buyer: 3 }),
  ])
  await shop.restart()
  const counts = shop.counts()
  const refused = await fetch(shop.buyUrl({ usdg: '34' }), { method: 'POST', headers: order })
  expect(refused.status).toBe(503)
  const answer = await fetch(`${shop.url}/m/shop/form?symbol=A`, { headers: large })
  expect([answer.status, ((await answer.json()) as { code: string }).code]).toEqual([
    503,
    'not-ready',
  ])
  expect(shop.counts()).toEqual(counts)
  expect((await fetch(`${shop.url}/m/shop/item`, { headers: small })).status).toBe(200)
  // An order needs a second node at any amount.
  await shop.restart({
    ...config,
    service: { ...config.service, confirmTwiceAboveAtomic: undefined },
  })
  const paid = shop.counts()
  const order34 = await fetch(shop.buyUrl({ usdg: '34' }), { method: 'POST', headers: order })
  expect([order34.status, ((await order34.json()) as { code: string }).code]).toEqual([
    503,
    'not-ready',
  ])
  expect(shop.counts()).toEqual(paid)
  second.intercept = undefined
  await shop.restart(config)
  const again = await fetch(`${shop.url}/m/shop/form?symbol=A`, { headers: large })
  expect(again.status).toBe(200)
})

test('attack: a payment above the limit that only one node shows is not forwarded', async () => {
  const url = `${shop.url}/m/shop/form?symbol=A`
  const headers = await sign(url, { scheme: 'x402-eip3009', network, buyer: 2 })
  const forwarded = shop.upstream.requests.length
  tap.intercept = lying()
  const response = await fetch(url, { headers })
  expect(await response.json()).toMatchObject({ status: 503, code: 'settlement-pending' })
  expect(shop.upstream.requests.length).toBe(forwarded)
  expect((await fetch(url, { headers })).status).toBe(503)
  expect(shop.upstream.requests.length).toBe(forwarded)
})

test('attack: a payment that only one node shows is not a success of the facilitator', async () => {
  const config = shop.config.networks.find(({ id }) => id === network)
  if (config === undefined) throw new Error(`no ${network}`)
  const large = await makeBody(config, { from: account(2).local(), amountAtomic: 20_000n })
  tap.intercept = lying()
  const { json } = await post(`${shop.url}/settle`, large)
  expect(json).toMatchObject({ success: false, status: 'pending' })
})

test('a payment above the limit waits for a second node that lags behind', async () => {
  const url = `${shop.url}/m/shop/form?symbol=A`
  const headers = await sign(url, { scheme: 'x402-eip3009', network, buyer: 3 })
  let late = 3
  second.intercept = ({ method }) =>
    method === 'eth_getTransactionReceipt' && late-- > 0 ? { result: null } : undefined
  expect((await fetch(url, { headers })).status).toBe(200)
  expect(late).toBeLessThan(0)
})

test('a payment below the limit costs no call to the second node', async () => {
  const url = `${shop.url}/m/shop/item`
  const headers = await sign(url, { scheme: 'x402-eip3009', network, buyer: 3 })
  const before = await shop.balance(network, payee)
  const receipts = () =>
    second.calls.filter(({ method }) => method === 'eth_getTransactionReceipt').length
  const asked = receipts()
  expect((await fetch(url, { headers })).status).toBe(200)
  expect(await shop.balance(network, payee)).toBe(before + 5_000n)
  expect(receipts()).toBe(asked)
})
