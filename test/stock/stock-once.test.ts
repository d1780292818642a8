import { afterAll, afterEach, beforeEach, describe, expect, test } from 'bun:test'
import { type Address, encodeFunctionData, type Hex, parseAbi, parseTransaction } from 'viem'
import * as Multicall from '../../src/chain/multicall'
import * as Receipt from '../../src/chain/receipt'
import * as Token from '../../src/chain/token'
import { account } from '../../src/demo/accounts'
import { execute, mine } from '../../src/demo/chains'
import { samplePrice } from '../../src/demo/exchange'
import { nonceOf } from '../../src/stock/Order'
import { revert, setAutomine, snapshot } from '../harness/chains'
import { movePrice } from '../harness/exchange'
import {
  before,
  freeze,
  mint,
  momentOf,
  network,
  type OrderJson,
  requestRetry,
  signOrder,
  startStockShop,
} from '../harness/stock-shop'
import { sqlBeside } from '../harness/test-ledger'
import { until } from '../harness/world'

// Swap and refund of an order use one nonce, so on every fork of the chain only one of them moves
// money, and their published signatures are useless to others. The desk here also has money of
// other orders.

const shop = await startStockShop({ refundsMax: 100 })
afterAll(() => shop.stop())
const { chain, asset, nvda, stock } = shop
const price = samplePrice(nvda.symbol)
const buyer = account(1).address
const thief = account(8).address
const float = 1_000_000_000n
await mint(shop, shop.desk, float)

async function books() {
  const [desk, usdg, router, stolen, shares] = await Promise.all([
    shop.usdg(shop.desk),
    shop.usdg(buyer),
    shop.usdg(stock.router),
    shop.usdg(thief),
    shop.shares(buyer),
  ])
  return { desk, usdg, router, stolen, shares }
}

let start: Awaited<ReturnType<typeof books>>
let serial = 0
let isMoved = false
beforeEach(async () => {
  start = await books()
})
afterEach(async () => {
  shop.tap.intercept = undefined
  if (isMoved) await movePrice(chain, asset, nvda, price)
  isMoved = false
})

function move(): Promise<void> {
  isMoved = true
  return movePrice(chain, asset, nvda, price * 1.02)
}

/** A purchase of a different amount each time. */
async function prepare() {
  const url = shop.buyUrl({ usdg: `${60 + ++serial}` })
  const headers = await signOrder(url)
  return {
    amount: BigInt(60 + serial) * 1_000_000n,
    async pay(): Promise<OrderJson> {
      const body = (await (await fetch(url, { method: 'POST', headers })).json()) as
        | OrderJson
        | { order: OrderJson }
      return 'order' in body ? body.order : body
    },
  }
}

const stateOf = (id: string) => shop.rows(`SELECT state FROM orders WHERE id = '${id}'`)[0]?.state
const events = (event: string, id: string) =>
  shop.logged.filter((line) => line.includes(`"${event}"`) && line.includes(id))

describe('a reorganisation below a swap that failed and its refund', () => {
  test('on a fork where the swap succeeds, the refund pays nothing and the order is delivered', async () => {
    const { pay, amount } = await prepare()
    let fork: Hex = '0x'
    before(shop, 'swap', 1, async () => {
      fork = await snapshot(chain)
      await move()
    })
    const order = await pay()
    expect([order.status, order.refundReason]).toEqual(['refunded', 'swap-failed'])
    expect(await books()).toEqual(start)
    // The new fork does not have the price change.
    await revert(chain, fork)
    isMoved = false
    await mine(chain, 8)
    // Checks the newest blocks at once.
    await shop.restart()
    await until('the swap has delivered', async () => (await books()).shares > start.shares)
    await until('the order says so', () => stateOf(order.id) === 'delivered')
    const now = await shop.order(order.id)
    expect(now.swapTx).toBe(order.swapTx)
    expect([now.refundTx, now.refundReason]).toEqual([undefined, undefined])
    const end = await books()
    expect([end.desk, start.usdg - end.usdg]).toEqual([start.desk, amount])
    expect(events('order-paid-twice', order.id)).toEqual([])
    // The refund is included: it succeeded and moved nothing.
    const [refund] = shop.rows(`SELECT * FROM jobs WHERE id = 'refund:${order.id}'`)
    expect(refund?.state).toBe('confirmed')
    await shop.restart()
    expect(stateOf(order.id)).toBe('delivered')
  })
})

const abi = parseAbi([
  'function transferWithAuthorization(address,address,uint256,uint256,uint256,bytes32,uint8,bytes32,bytes32)',
  'function sweepToken(address token, uint256 amountMinimum, address recipient)',
])

describe('the published signature of a failed swap', () => {
  test('attack: the signature of a failed swap moves no money alone, in Multicall3 or as init code', async () => {
    const { pay } = await prepare()
    let raw: Hex = '0x'
    const tries: unknown[] = []
    shop.tap.intercept = async (call) => {
      const moment = momentOf(shop, call)
      if (moment === 'swap' && raw === '0x') {
        raw = call.params[0] as Hex
        await move()
      }
      // The swap has failed, its nonce is unused, and the refund is not sent yet.
      if (moment === 'refund' && tries.length === 0) tries.push(...(await steal(raw)))
      return undefined
    }
    const order = await pay()
    expect([order.status, order.refundReason]).toEqual(['refunded', 'swap-failed'])
    expect(tries).toEqual(['failed', 'failed', 'failed', 'failed', 'failed'])
    expect(await books()).toEqual(start)
  })

  async function steal(swap: Hex): Promise<unknown[]> {
    const { to, data = '0x' } = parseTransaction(swap as `0x02${string}`)
    expect(to ?? undefined).toBeUndefined()
    const words = data.slice(data.indexOf('ef55bec6') + 8).slice(0, 9 * 64)
    const receive: Hex = `0xef55bec6${words}`
    const transfer: Hex = `0xe3ee160e${words}`
    const args = [asset, 0n, thief] as const
    const sweep = encodeFunctionData({ abi, functionName: 'sweepToken', args })
    const together = (first: Hex) =>
      Multicall.aggregate([
        { to: asset, data: first, isRequired: true },
        { to: stock.router, data: sweep, isRequired: true },
      ])
    return Promise.all(
      [
        { to: asset, data: receive },
        { to: asset, data: transfer },
        together(receive),
        together(transfer),
        // The same code in a transaction of the attacker.
        { data },
      ].map((call) => attempt(call)),
    )
  }

  async function attempt(call: { to?: Address; data: Hex }): Promise<string> {
    const asked = { from: thief, gas: '0x2dc6c0', ...call }
    return chain.rpc('eth_call', [asked, 'latest']).then(
      () => 'succeeded',
      () => 'failed',
    )
  }
})

describe('a refund that another account has sent', () => {
  test('attack: the public bytes of a refund can only refund, and the order ends with that transaction', async () => {
    const { pay } = await prepare()
    before(shop, 'quote', 2, move)
    const moving = shop.tap.intercept
    let isMade = false
    shop.tap.intercept = async (call, forward) => {
      if (momentOf(shop, call) === 'refund' && !isMade) {
        isMade = true
        const { to, data } = parseTransaction(call.params[0] as `0x02${string}`)
        await execute(chain, [{ from: thief, to: to ?? asset, data: data ?? '0x', gas: 200_000n }])
      }
      return moving?.(call, forward)
    }
    const order = await pay()
    expect(isMade).toBe(true)
    expect(await books()).toEqual(start)
    expect([order.status, order.refundReason]).toEqual(['refunded', 'below-floor'])
    const receipt = await receiptOf(order.refundTx)
    expect(receipt.from.toLowerCase()).toBe(thief.toLowerCase())
    // It stays so: at the next start its own transaction had no effect, as before.
    await shop.restart()
    expect(stateOf(order.id)).toBe('refunded')
    expect(events('order-paid-twice', order.id)).toEqual([])
  })

  test('a refund that another account has sent is found where a provider limits the range of logs', async () => {
    await mine(chain, 90)
    const { pay } = await prepare()
    before(shop, 'quote', 2, move)
    const moving = shop.tap.intercept
    let isMade = false
    shop.tap.intercept = async (call, forward) => {
      if (momentOf(shop, call) === 'refund' && !isMade) {
        isMade = true
        const { to, data } = parseTransaction(call.params[0] as `0x02${string}`)
        await execute(chain, [{ from: thief, to: to ?? asset, data: data ?? '0x', gas: 200_000n }])
      }
      if (call.method === 'eth_getLogs') {
        const [{ fromBlock, toBlock }] = call.params as [{ fromBlock: string; toBlock: string }]
        const last = toBlock === 'latest' ? await chain.rpc('eth_blockNumber', []) : toBlock
        const span = BigInt(last as string) - BigInt(fromBlock) + 1n
        if (span > 20n) return { error: { code: -32602, message: 'query exceeds max block range' } }
      }
      return moving?.(call, forward)
    }
    const order = await pay()
    expect(isMade).toBe(true)
    expect(await books()).toEqual(start)
    expect([order.status, order.heldReason]).toEqual(['refunded', undefined])
    expect((await receiptOf(order.refundTx)).from.toLowerCase()).toBe(thief.toLowerCase())
  })

  test('a refund that failed and that the payer sent later is found by a retry', async () => {
    const { pay } = await prepare()
    before(shop, 'quote', 2, move)
    const moving = shop.tap.intercept
    let refund: Hex | undefined
    shop.tap.intercept = async (call, forward) => {
      if (momentOf(shop, call) === 'refund' && refund === undefined) {
        refund = call.params[0] as Hex
        await freeze(shop, buyer)
      }
      return moving?.(call, forward)
    }
    const order = await pay()
    expect([order.status, order.heldReason]).toEqual(['held', 'refund-failed'])
    await freeze(shop, buyer, false)
    const { to, data } = parseTransaction(refund as `0x02${string}`)
    const call = { to: to ?? asset, data: data ?? '0x', gas: 200_000n } as const
    await execute(chain, [{ from: thief, ...call }])
    expect(await books()).toEqual(start)
    await mine(chain, 20)
    requestRetry(shop, order.id)
    await until('it is refunded', () => stateOf(order.id) === 'refunded')
    const { refundTx } = await shop.order(order.id)
    expect((await receiptOf(refundTx)).from.toLowerCase()).toBe(thief.toLowerCase())
    expect(await books()).toEqual(start)
  })

  async function receiptOf(hash: Hex | undefined): Promise<{ from: Address }> {
    const answer = await chain.rpc('eth_getTransactionReceipt', [hash])
    expect(Receipt.parse(answer)?.success).toBe(true)
    return answer as { from: Address }
  }
})

describe('a swap that is not included', () => {
  test('a swap that is not included is sent with higher fees, creates at the same address, and delivers once', async () => {
    const { networks } = shop.config
    const soon = networks.map((each) => ({ ...each, replaceAfterSeconds: 0.2 }))
    await shop.restart({ ...shop.config, networks: soon })
    const { pay, amount } = await prepare()
    const sent = new Set<Hex>()
    shop.tap.intercept = async (call) => {
      if (momentOf(shop, call) !== 'swap') return undefined
      if (sent.size === 0) await setAutomine(chain, false)
      sent.add(call.params[0] as Hex)
      // Its answer would come with the block.
      return call.method.endsWith('Sync')
        ? { error: { code: -32601, message: 'unknown' } }
        : undefined
    }
    try {
      const paying = pay()
      await until('it was replaced', () => sent.size > 1)
      await setAutomine(chain, true)
      await mine(chain)
      const order = await paying
      expect(order.status).toBe('delivered')
      const parsed = [...sent].map((raw) => parseTransaction(raw as `0x02${string}`))
      expect(parsed.map(({ to }) => to ?? undefined)).toEqual(parsed.map(() => undefined))
      expect(new Set(parsed.map(({ nonce, data }) => `${nonce} ${data}`)).size).toBe(1)
      const end = await books()
      expect([end.desk, start.usdg - end.usdg]).toEqual([start.desk, amount])
    } finally {
      await setAutomine(chain, true)
      await shop.restart()
    }
  })
})

describe('a database of an earlier version', () => {
  test('a pending approve of the router ends, and orders continue meanwhile', async () => {
    const id = `allowance:${network}:${shop.desk}:1`
    const job = { id, kind: 'allowance', product: 'desk', network, relayer: shop.desk } as const
    const approve = Token.approve(asset, stock.router, 1n)
    const sent = { ...job, ...approve, valueWei: 0n, gasLimit: 100_000n }
    expect((await shop.app.settlement.run(sent, { waitMs: 120_000 })).kind).toBe('confirmed')
    await shop.app.stop()
    // The rows of the earlier version.
    const other = sqlBeside(shop.dataDir)
    const hash = `(SELECT transaction_hash FROM jobs WHERE id = '${id}')`
    other.run(
      `UPDATE transactions SET state = 'sent', block_number = NULL, cost_wei = NULL WHERE hash = ${hash}`,
    )
    other.run(
      "UPDATE jobs SET state = 'broadcast', block_number = NULL, receipt = NULL, ended_at = NULL WHERE kind = 'allowance'",
    )
    other.close()
    await shop.restart()
    await until(
      'it is included',
      async () => (await shop.app.settlement.job(id))?.state === 'confirmed',
    )
    const { pay } = await prepare()
    expect((await pay()).status).toBe('delivered')
    expect(events('order-fault', id)).toEqual([])
  })
})

test('the nonce of an order is unique on every network', () => {
  const id = 'ord_000000000000000000000000000000000001'
  const nonces = [
    nonceOf({ id, network }),
    nonceOf({ id, network: 'eip155:46630' }),
    nonceOf({ id: id.replace(/1$/, '2'), network }),
  ]
  expect(new Set(nonces).size).toBe(3)
  expect(nonceOf({ id, network })).toBe(nonces[0] as Hex)
})
