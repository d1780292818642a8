import { afterAll, afterEach, beforeEach, describe, expect, test } from 'bun:test'
import { encodeFunctionData, parseAbi, parseTransaction } from 'viem'
import { account } from '../../src/demo/accounts'
import { execute, mine, multicall3Address } from '../../src/demo/chains'
import { samplePrice } from '../../src/demo/exchange'
import * as Crypto from '../../src/protocol/Crypto'
import { movePrice } from '../harness/exchange'
import { setSettleWait } from '../harness/shop'
import {
  before,
  freeze,
  mint,
  type OrderJson,
  signOrder,
  startStockShop,
} from '../harness/stock-shop'
import { tamper as change } from '../harness/test-ledger'
import { until } from '../harness/world'

// Rare events that would cost a buyer an order: other accounts that settle first, nodes that answer
// only some calls, a process that ends between two writes, a changed desk key.

const shop = await startStockShop({
  refundsMax: 100,
  edit: (text) => text.replace('settle_wait_seconds = 25', 'settle_wait_seconds = 6'),
})
afterAll(() => shop.stop())
const { chain, nvda, asset } = shop
const buyer = account(1).address
const down = () => Response.json({}, { status: 503 })

let serial = 0
let url: string
let credential: Record<string, string>
beforeEach(async () => {
  url = shop.buyUrl({ usdg: `${10 + ++serial}` })
  credential = await signOrder(url)
})
afterEach(() => {
  shop.tap.intercept = undefined
})

const pay = () => fetch(url, { method: 'POST', headers: credential })
const newest = () => shop.rows('SELECT * FROM orders ORDER BY id DESC LIMIT 1')[0]
const stateOf = (id: unknown) => shop.rows(`SELECT state FROM orders WHERE id = '${id}'`)[0]?.state

/** A change by another process to the database. */
function tamper(sql: string): void {
  change(shop.dataDir, sql)
}

describe('another account settles first', () => {
  test('a payment that another account settles in unknown calldata still buys (attack 12)', async () => {
    const abi = parseAbi([
      'struct Call { address target; bytes callData; }',
      'function tryAggregate(bool requireSuccess, Call[] calls)',
    ])
    let isDone = false
    shop.tap.intercept = async ({ method, params }) => {
      if (isDone || !method.startsWith('eth_sendRaw')) return undefined
      isDone = true
      const { to, data } = parseTransaction(params[0] as `0x02${string}`)
      const args = [true, [{ target: to ?? asset, callData: data ?? '0x' }]] as const
      const wrapped = encodeFunctionData({ abi, functionName: 'tryAggregate', args })
      const from = account(8).address
      await execute(chain, [{ from, to: multicall3Address, data: wrapped, gas: 1_000_000n }])
      return undefined
    }
    const start = await shop.usdg(buyer)
    const response = await pay()
    const order = (await response.json()) as OrderJson
    expect([response.status, order.status]).toEqual([200, 'delivered'])
    expect(start - (await shop.usdg(buyer))).toBe(BigInt(order.usdgAtomic))
    expect(await shop.usdg(shop.desk)).toBe(0n)
    // The same transfer pays for no other order.
    expect((await pay()).status).toBe(200)
    expect(await shop.usdg(shop.desk)).toBe(0n)
  })
})

describe('a refused payment', () => {
  test('each concurrent request with a refused payment gets a 402', async () => {
    await freeze(shop, buyer)
    try {
      const responses = await Promise.all(Array.from({ length: 6 }, pay))
      expect(responses.map(({ status }) => status)).toEqual(Array(6).fill(402))
    } finally {
      await freeze(shop, buyer, false)
    }
    expect((await pay()).status).toBe(200)
  })
})

describe('a market that cannot be read', () => {
  test('an order is refunded after a quarter of an hour without a readable market', async () => {
    const late = 16 * 60 * 1000
    let looks = 0
    shop.tap.intercept = (call) =>
      JSON.stringify(call.params).includes('c6a5026a') && ++looks > 1 ? down() : undefined
    const start = await shop.usdg(buyer)
    const paying = pay()
    await until('it waits', () => looks > 2)
    shop.advance(late)
    try {
      const response = await paying
      const { order } = (await response.json()) as { order: OrderJson }
      expect([response.status, order.status, order.refundReason]).toEqual([
        502,
        'refunded',
        'too-late',
      ])
      expect(await shop.usdg(buyer)).toBe(start)
    } finally {
      shop.advance(-late)
    }
  })
})

describe('a process that ended between two writes', () => {
  test('the payment of an order is checked again at the start, and nothing is paid twice', async () => {
    const order = (await (await pay()).json()) as OrderJson
    expect(order.status).toBe('delivered')
    await mint(shop, shop.desk, BigInt(order.usdgAtomic))
    await mine(chain, 20)
    await shop.restart()
    expect(stateOf(order.id)).toBe('delivered')
    await shop.app.stop()
    // As if the swap had been included again after a reorganisation, and had failed.
    tamper(`UPDATE jobs SET state = 'failed' WHERE id = 'swap:${order.id}'`)
    const funds = await shop.usdg(shop.desk)
    await shop.restart()
    await until('it is held', () => stateOf(order.id) === 'held')
    // The chain shows that the nonce of the order is used.
    const { refundReason, heldReason } = await shop.order(order.id)
    expect([refundReason, heldReason]).toEqual(['swap-failed', 'refund-not-found'])
    expect(await shop.usdg(shop.desk)).toBe(funds)
  })
})

describe('another desk', () => {
  test('error: a new desk spends none of its own money on orders of the previous one', async () => {
    let looks = 0
    shop.tap.intercept = (call) =>
      JSON.stringify(call.params).includes('c6a5026a') && ++looks > 1 ? down() : undefined
    // The end of the service waits for the buyer; the next start has the usual time.
    await setSettleWait(shop, 1)
    const paying = pay().catch(() => undefined)
    await until('it waits', () => looks > 2)
    const id = newest()?.id
    const old = shop.secrets.deskKey
    const other = account(6)
    await chain.rpc('anvil_setBalance', [other.address, '0xde0b6b3a7640000'])
    await mint(shop, other.address, 100_000_000n)
    const funds = await shop.usdg(other.address)
    const stopping = shop.app.stop()
    Object.assign(shop.secrets, { deskKey: Crypto.bytes(other.privateKey) })
    await stopping
    await paying
    shop.tap.intercept = undefined
    await shop.restart()
    try {
      expect(shop.app.settlement.desk).toBe(other.address)
      await until('the log has the order', () =>
        shop.logged.some((line) => line.includes('order-of-another-desk')),
      )
      expect(stateOf(id)).toBe('settled')
      expect(await shop.usdg(other.address)).toBe(funds)
    } finally {
      await shop.app.stop()
      Object.assign(shop.secrets, { deskKey: old })
      await shop.restart()
    }
    await until('the desk that was paid goes on', () => stateOf(id) === 'delivered')
    expect(await shop.usdg(shop.desk)).toBeLessThanOrEqual(BigInt(100_000_000n))
  })
})

describe('a desk that runs out of gas', () => {
  test('error: a desk without enough gas for a swap accepts no order', async () => {
    const { maxFeeWei } = shop.app.settlement.fees('eip155:4663')
    const rich = await chain.rpc('eth_getBalance', [shop.desk, 'latest'])
    // Enough to settle, too little for the limit of a swap.
    await chain.rpc('anvil_setBalance', [shop.desk, `0x${(1_300_000n * maxFeeWei).toString(16)}`])
    await shop.restart()
    try {
      const orders = shop.rows('SELECT id FROM orders').length
      url = url.replace(/^.*?(?=\/api)/, shop.url)
      const response = await Promise.race([pay(), Bun.sleep(3_000).then(() => undefined)])
      expect(shop.rows('SELECT id FROM orders')).toHaveLength(orders)
      expect(response?.status).toBe(503)
    } finally {
      await chain.rpc('anvil_setBalance', [shop.desk, rich])
      await shop.restart()
    }
  })
})

describe('a reorganisation between the decision and the refund', () => {
  test('error: nothing is refunded while the swap is in progress again', async () => {
    before(shop, 'swap', 1, () => movePrice(chain, asset, nvda, samplePrice(nvda.symbol) * 1.02))
    const moving = shop.tap.intercept
    let isBack = false
    const back = (id: unknown) =>
      tamper(
        `UPDATE jobs SET state = 'broadcast', block_number = NULL, receipt = NULL, ended_at = NULL WHERE id = 'swap:${id}'`,
      )
    let kept: Record<string, unknown> | undefined
    shop.tap.intercept = async (call, forward) => {
      const order = newest()
      const isIt = order?.state === 'refunding' && call.params[0] === order.settlement_tx
      if (isIt && !isBack) {
        isBack = true
        kept = shop.rows(`SELECT * FROM jobs WHERE id = 'swap:${order.id}'`)[0]
        back(order.id)
      }
      return moving?.(call, forward)
    }
    const paying = pay()
    await until('the swap is in progress again', () => isBack)
    const id = newest()?.id
    await until('the order follows', () => stateOf(id) === 'swapping' || stateOf(id) === 'refunded')
    expect(shop.rows(`SELECT * FROM jobs WHERE id LIKE 'refund:${id}%'`)).toEqual([])
    expect(stateOf(id)).toBe('swapping')
    tamper(
      `UPDATE jobs SET state = 'failed', block_number = ${kept?.block_number}, receipt = '${kept?.receipt}', ended_at = 1 WHERE id = 'swap:${id}'`,
    )
    expect((await paying).status).toBe(502)
    expect(stateOf(id)).toBe('refunded')
  })
})

describe('a reorganisation after a refund that failed', () => {
  test('a reorganisation that includes the refund completes the order, and no other refund is written', async () => {
    await movePrice(chain, asset, nvda, samplePrice(nvda.symbol))
    before(shop, 'quote', 2, async () => {
      await movePrice(chain, asset, nvda, samplePrice(nvda.symbol) * 1.02)
      await freeze(shop, buyer)
    })
    expect((await pay()).status).toBe(502)
    const id = newest()?.id
    expect(stateOf(id)).toBe('held')
    const kept = shop.rows(`SELECT * FROM jobs WHERE id = 'refund:${id}'`)[0]
    // An operator requests another refund, which waits until no reorganisation can undo the first.
    tamper(`UPDATE orders SET retry_at = 1 WHERE id = '${id}'`)
    await until('it is refunding', () => stateOf(id) === 'refunding')
    expect(newest()?.refund_tx).toBeNull()
    tamper(
      `UPDATE jobs SET state = 'broadcast', block_number = NULL, receipt = NULL, ended_at = NULL WHERE id = 'refund:${id}'`,
    )
    await until('it is the refund of before', () => newest()?.refund_tx === kept?.transaction_hash)
    await mine(chain, 20)
    tamper(
      `UPDATE jobs SET state = 'failed', block_number = ${kept?.block_number}, receipt = '${kept?.receipt}', ended_at = 1 WHERE id = 'refund:${id}'`,
    )
    await until('an operator must look', () => stateOf(id) === 'held')
    await freeze(shop, buyer, false)
    const start = await shop.usdg(buyer)
    tamper(`UPDATE orders SET retry_at = 1 WHERE id = '${id}'`)
    await until('it is refunded', () => stateOf(id) === 'refunded')
    expect((await shop.usdg(buyer)) - start).toBe(BigInt(String(newest()?.total_atomic)))
    expect(newest()?.refund_attempts).toBe(2)
  })
})

test('error: an order that had failed is delivered when its payment is mined after all', async () => {
  const held = Promise.withResolvers<void>()
  const free = Promise.withResolvers<void>()
  shop.tap.intercept = async ({ method }) => {
    if (!method.startsWith('eth_sendRaw')) return undefined
    held.resolve()
    await free.promise
    return undefined
  }
  const start = await shop.usdg(shop.desk)
  const paying = pay()
  await held.promise
  const order = newest()
  // A reorganisation that is deeper than `reorg_depth` will mine it.
  tamper(`UPDATE payments SET state = 'expired' WHERE id = '${order?.payment_id}'`)
  tamper(`UPDATE orders SET state = 'failed' WHERE id = '${order?.id}'`)
  free.resolve()
  const response = await paying
  const delivered = (await response.json()) as OrderJson
  expect([response.status, delivered.status]).toEqual([200, 'delivered'])
  expect(delivered.id).toBe(String(order?.id))
  expect(await shop.usdg(shop.desk)).toBe(start)
})
