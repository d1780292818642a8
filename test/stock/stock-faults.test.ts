import { afterAll, afterEach, beforeEach, describe, expect, test } from 'bun:test'
import { orders } from '../../src/cli/operate/orders'
import { account } from '../../src/demo/accounts'
import { execute, mine } from '../../src/demo/chains'
import { samplePrice } from '../../src/demo/exchange'
import * as Transfer from '../../src/protocol/Transfer'
import * as X402 from '../../src/protocol/X402'
import { operatorOf } from '../harness/admin'
import { settlementOf } from '../harness/buyer'
import { revert, setAutomine, snapshot } from '../harness/chains'
import { exitCode } from '../harness/command'
import { block, drain, movePrice, pause } from '../harness/exchange'
import {
  before,
  freeze,
  type Moment,
  momentOf,
  network,
  type OrderJson,
  pauseAsset,
  requestRetry,
  signOrder,
  startStockShop,
} from '../harness/stock-shop'
import { commandEnv } from '../harness/test-ledger'
import { until } from '../harness/world'

// Something fails between any two steps of an order. The order ends delivered or refunded, exactly
// once, and the desk has its balance from before.

const shop = await startStockShop({ refundsMax: 100 })
afterAll(() => shop.stop())
const { stock, nvda, chain, asset } = shop
const price = samplePrice(nvda.symbol)
const buyer = account(1).address
const down = () => Response.json({}, { status: 503 })

type Refund = { refundTx: string; orderStatus: string; orderUrl: string; order: OrderJson }

async function books() {
  const [desk, usdg, shares] = await Promise.all([
    shop.usdg(shop.desk),
    shop.usdg(buyer),
    shop.shares(buyer),
  ])
  return { desk, usdg, shares }
}

let start: Awaited<ReturnType<typeof books>>
let credential: Record<string, string>
let serial = 0
let url: string

beforeEach(async () => {
  // Each amount is different, so that no read of the pool is shared.
  url = shop.buyUrl({ usdg: `${40 + ++serial}` })
  credential = await signOrder(url)
  start = await books()
})

afterEach(async () => {
  shop.tap.intercept = undefined
  await setAutomine(chain, true)
  await mine(chain)
  await pause(chain, nvda, {})
  await pauseAsset(shop, false)
  if (isMoved) await movePrice(chain, asset, nvda, price)
  isMoved = false
})

let isMoved = false
function move(to: number): Promise<void> {
  isMoved = true
  return movePrice(chain, asset, nvda, to)
}

const stateOf = (id: string) => shop.rows(`SELECT state FROM orders WHERE id = '${id}'`)[0]?.state
const pay = () => fetch(url, { method: 'POST', headers: credential })
const amount = () => BigInt(40 + serial) * 1_000_000n

async function isDelivered(response: Response): Promise<OrderJson> {
  const order = (await response.json()) as OrderJson
  expect([response.status, order.status]).toEqual([200, 'delivered'])
  const end = await books()
  expect(end.desk).toBe(start.desk)
  expect(start.usdg - end.usdg).toBe(amount())
  expect(end.shares - start.shares).toBe(BigInt(order.deliveredSharesAtomic ?? 0))
  return order
}

async function isRefunded(response: Response, reason: string): Promise<OrderJson> {
  const body = (await response.json()) as Refund & { code: string; status: number; reason: string }
  const { code, status, orderStatus } = body
  expect([response.status, code, status, orderStatus]).toEqual([
    502,
    'delivery-failed',
    502,
    'refunded',
  ])
  expect(body.reason).toBe(reason)
  expect(body.refundTx).toBe(body.order.refundTx ?? 'none')
  expect(settlementOf(response)).toMatchObject({
    success: false,
    errorReason: 'delivery_failed',
    transaction: body.order.settlementTx,
  })
  expect(await books()).toEqual(start)
  const { id } = body.order
  expect(shop.rows(`SELECT * FROM jobs WHERE kind = 'refund' AND id LIKE '%${id}%'`)).toHaveLength(
    1,
  )
  return body.order
}

async function retry(id: string): Promise<void> {
  requestRetry(shop, id)
  await until('the retry is taken up', () => stateOf(id) !== 'held')
}

describe('between payment and swap', () => {
  test('money that could not be swapped for a quarter of an hour is refunded', async () => {
    const late = 16 * 60 * 1000
    let looks = 0
    shop.tap.intercept = (call) =>
      JSON.stringify(call.params).includes('c6a5026a') && ++looks > 1 ? down() : undefined
    const paying = pay()
    await until('it waits', () => looks > 2)
    shop.advance(late)
    shop.tap.intercept = undefined
    try {
      await isRefunded(await paying, 'too-late')
    } finally {
      shop.advance(-late)
    }
  })

  test('a price below the minimum is a refund, not a swap (attack 39: sandwich)', async () => {
    // The payer gets the money back, and not the recipient of the shares.
    url = shop.buyUrl({ usdg: `${40 + serial}`, recipient: account(3).address })
    credential = await signOrder(url)
    before(shop, 'quote', 2, () => move(price * 1.02))
    const order = await isRefunded(await pay(), 'below-floor')
    expect(order.swapTx).toBeUndefined()
  })

  test('a price that still meets the minimum is a swap at the new price', async () => {
    before(shop, 'quote', 2, () => move(price * 1.005))
    const order = await isDelivered(await pay())
    expect(Number(order.deliveredShares)).toBeLessThan(Number(order.quotedShares))
    expect(Number(order.deliveredShares)).toBeGreaterThan(Number(order.minimumShares))
  })

  test('a pool without liquidity is a refund', async () => {
    // Another token, because its liquidity is not restored.
    const [, , , other = nvda] = stock.tokens
    url = shop.buyUrl({ usdg: `${40 + serial}`, symbol: other.symbol })
    credential = await signOrder(url)
    before(shop, 'quote', 2, () => drain(chain, other, 999_999))
    await isRefunded(await pay(), 'below-floor')
  })

  const stops: readonly (readonly [string, string, () => Promise<void>, () => Promise<void>])[] = [
    [
      'a token that is paused',
      'no-quote',
      () => pause(chain, nvda, { everything: true }),
      () => pause(chain, nvda, {}),
    ],
    [
      'a recipient that is blocked',
      'check-failed',
      () => block(chain, stock.registry, buyer),
      () => block(chain, stock.registry, buyer, false),
    ],
  ]
  for (const [name, reason, stop, release] of stops) {
    test(`${name} after payment is a refund`, async () => {
      before(shop, 'quote', 2, stop)
      const response = await pay()
      await release()
      await isRefunded(response, reason)
    })
  }

  test('an outage of the node delays the order and loses nothing', async () => {
    let looks = 0
    shop.tap.intercept = (call) =>
      JSON.stringify(call.params).includes('c6a5026a') && ++looks > 1 && looks < 4
        ? down()
        : undefined
    await isDelivered(await pay())
    expect(looks).toBeGreaterThan(3)
  })

  test('a missing settlement receipt is read again', async () => {
    let isSettled = false
    let gone = 0
    shop.tap.intercept = ({ method }) => {
      isSettled ||= shop.rows("SELECT id FROM orders WHERE state = 'settled'").length > 0
      if (method !== 'eth_getTransactionReceipt' || !isSettled || gone > 1) return undefined
      gone++
      return { result: null }
    }
    await isDelivered(await pay())
    expect(gone).toBe(2)
    expect(shop.logged.filter((line) => line.includes('"state":"settling"'))).toHaveLength(1)
  })

  test('an order whose settlement no node shows waits, is logged, and continues automatically', async () => {
    const seen: number[] = []
    let isHidden = true
    let id = ''
    const lines = (event: string) =>
      shop.logged.filter((line) => line.includes(`"${event}"`) && line.includes(id))
    shop.tap.intercept = ({ method, params }) => {
      const [row] = shop.rows('SELECT * FROM orders ORDER BY id DESC LIMIT 1')
      const isIt = method === 'eth_getTransactionReceipt' && params[0] === row?.settlement_tx
      if (!isHidden || !isIt || row?.settled_at === undefined) return undefined
      const isPaid = shop.rows("SELECT id FROM payments WHERE state = 'broadcast'").length === 0
      if (!isPaid) return undefined
      id = String(row.id)
      seen.push(performance.now())
      return { result: null }
    }
    const cli = async (verb: string) => {
      const out: string[] = []
      const { dataDir } = shop
      const env = commandEnv(dataDir)
      const code = await exitCode(orders, {
        dataDir,
        env,
        verb,
        operand: id,
        now: shop.now,
        out: (line) => out.push(line),
      })
      return { code, text: out.join('\n') }
    }
    const paying = pay()
    await until('it has looked five times', () => seen.length >= 5)
    const gaps = seen.slice(1).map((at, index) => at - (seen[index] ?? 0))
    // Each wait is about twice the previous one, and the state does not alternate.
    expect(gaps.at(-1)).toBeGreaterThan(300)
    expect(lines('settling')).toHaveLength(1)
    expect(stateOf(id)).toBe('settling')
    expect((await cli('list')).text).not.toContain('settlement-unseen')
    shop.advance(61_000)
    try {
      // A repeated request of the buyer causes a check at once.
      const asking = pay()
      await until('it is told', () => lines('order-settlement-unseen').length > 0)
      expect(lines('order-settlement-unseen')).toHaveLength(1)
      expect((await cli('list')).text).toMatch(new RegExp(`${id}  settling .*settlement-unseen`))
      expect((await cli('show')).text).toContain('no node shows its receipt')
      expect((await shop.order(id)).status).toBe('settling')
      isHidden = false
      await until('it goes on', () => stateOf(id) === 'delivered')
      expect((await asking).status).toBe(200)
      expect((await cli('list')).text).not.toContain('settlement-unseen')
    } finally {
      shop.advance(-61_000)
    }
    expect(await books()).toMatchObject({ desk: start.desk, usdg: start.usdg - amount() })
    await paying
  })
})

describe('at the swap', () => {
  test('a pool that moves before the swap makes it revert, and the money is refunded', async () => {
    before(shop, 'swap', 1, () => move(price * 1.02))
    const order = await isRefunded(await pay(), 'swap-failed')
    expect(order.swapTx).toBeDefined()
  })

  const stops: readonly (readonly [string, () => Promise<void>, () => Promise<void>])[] = [
    [
      'a token that is paused',
      () => pause(chain, nvda, { token: true }),
      () => pause(chain, nvda, {}),
    ],
    [
      'a recipient that is blocked',
      () => block(chain, stock.registry, buyer),
      () => block(chain, stock.registry, buyer, false),
    ],
    [
      'a router without code',
      async () => {
        code = await chain.rpc('eth_getCode', [stock.router, 'latest'])
        // Every call reverts.
        await chain.rpc('anvil_setCode', [stock.router, '0x60006000fd'])
      },
      async () => void (await chain.rpc('anvil_setCode', [stock.router, code])),
    ],
  ]
  let code: unknown
  for (const [name, stop, release] of stops) {
    test(`${name} before the swap is a refund`, async () => {
      before(shop, 'swap', 1, stop)
      const response = await pay()
      await release()
      await isRefunded(response, 'swap-failed')
    })
  }

  test('a send that no node answers is sent again, once included', async () => {
    let sends = 0
    shop.tap.intercept = (call) => {
      const isSwap = JSON.stringify(call.params).includes('5ae401dc')
      return isSwap && call.method.startsWith('eth_sendRaw') && ++sends < 2 ? down() : undefined
    }
    await isDelivered(await pay())
    expect(sends).toBeGreaterThan(1)
  })

  test('error: a swap that succeeded without a Transfer is held, never refunded; when a node shows it, a retry at /admin delivers', async () => {
    shop.tap.intercept = async ({ method }, forward) => {
      if (!/Receipt|Sync/.test(method)) return undefined
      const answer = (await (await forward()).json()) as {
        result?: { logs?: { address: string }[] }
      }
      const { result } = answer
      if (result?.logs) result.logs = result.logs.filter(({ address }) => !isNvda(address))
      return answer
    }
    const isNvda = (address: string) => address.toLowerCase() === nvda.address.toLowerCase()
    const response = await pay()
    const order = (await response.json()) as OrderJson
    expect([response.status, order.status]).toEqual([202, 'held'])
    expect(order.heldReason).toBe('delivery-not-found')
    expect((await books()).desk).toBe(start.desk)
    expect(shop.rows(`SELECT * FROM jobs WHERE id LIKE 'refund:${order.id}%'`)).toEqual([])
    // The row itself refuses an impossible state.
    expect(() =>
      shop.rows(`UPDATE orders SET state = 'refunding' WHERE id = '${order.id}'`),
    ).toThrow()

    const retryAt = () =>
      shop.rows(`SELECT retry_at FROM orders WHERE id = '${order.id}'`)[0]?.retry_at
    requestRetry(shop, order.id)
    await until('it is looked at', () => retryAt() === null)
    expect(stateOf(order.id)).toBe('held')
    expect(shop.logged.some((line) => line.includes('order-held-still'))).toBe(true)
    // The node had not indexed the log; now it has.
    shop.tap.intercept = undefined
    const operator = await operatorOf(shop.url, shop.secrets.adminToken)
    expect(await operator.read('/admin/orders')).toContain(`actions/retry?subject=${order.id}`)
    expect(await operator.act('retry', order.id)).toBe(303)
    await until('it is delivered', () => stateOf(order.id) === 'delivered')
    const { deliveredSharesAtomic = '0' } = await shop.order(order.id)
    expect((await books()).shares - start.shares).toBe(BigInt(deliveredSharesAtomic))
    expect(shop.rows(`SELECT * FROM jobs WHERE id LIKE '%${order.id}%'`)).toHaveLength(1)
  })
})

describe('at the refund', () => {
  const fail = (...more: [Moment, () => unknown][]) => {
    const seen = new Map<Moment, number>()
    before(shop, 'quote', 2, () => move(price * 1.02))
    const look = shop.tap.intercept
    shop.tap.intercept = async (call, forward) => {
      for (const [moment, act] of more) {
        if (momentOf(shop, call) !== moment || seen.has(moment)) continue
        seen.set(moment, 1)
        return act()
      }
      return look?.(call, forward)
    }
  }

  test('a refund that no node answers is sent again and pays once', async () => {
    fail(['refund', down])
    await isRefunded(await pay(), 'below-floor')
  })

  test('the buyer gets the hash of a refund before it is included; it is confirmed later', async () => {
    let isOff = false
    fail([
      'refund',
      async () => {
        await setAutomine(chain, false)
        isOff = true
      },
    ])
    const paying = pay()
    await until('the refund is on its way', () => isOff)
    const [row] = shop.rows("SELECT id, refund_tx FROM orders WHERE state = 'refunding'")
    const order = await shop.order(String(row?.id))
    expect([order.status, order.refundTx]).toEqual(['refunding', String(row?.refund_tx)])
    await setAutomine(chain, true)
    await until('it is included', async () => {
      await mine(chain)
      return stateOf(String(row?.id)) === 'refunded'
    })
    await isRefunded(await paying, 'below-floor')
  })

  test('error: a refund without a Transfer is held; when a node shows it, a retry ends it', async () => {
    fail()
    const moving = shop.tap.intercept
    shop.tap.intercept = async (call, forward) => {
      const refund = shop.rows("SELECT * FROM orders WHERE state IN ('refunding', 'held')")[0]
      if (refund === undefined || !/Receipt|Sync/.test(call.method)) return moving?.(call, forward)
      const answer = (await (await forward()).json()) as {
        result?: { transactionHash?: string; logs?: unknown[] }
      }
      const { result } = answer
      if (result?.logs && result.transactionHash !== refund.settlement_tx) result.logs = []
      return answer
    }
    const body = (await (await pay()).json()) as Refund
    const { id } = body.order
    expect([body.orderStatus, body.order.heldReason]).toEqual(['held', 'refund-not-found'])
    expect(await books()).toEqual(start)
    shop.tap.intercept = undefined
    requestRetry(shop, id)
    await until('it is refunded', () => stateOf(id) === 'refunded')
    expect(shop.rows(`SELECT * FROM jobs WHERE id LIKE 'refund:${id}%'`)).toHaveLength(1)
    expect(await books()).toEqual(start)
  })

  test('error: an order whose payer the asset blocks is held; when the block is lifted, a retry refunds it once', async () => {
    fail(['refund', () => freeze(shop, buyer)])
    const response = await pay()
    const body = (await response.json()) as Refund
    expect([response.status, body.orderStatus]).toEqual([502, 'held'])
    expect(body.refundTx).toBe(body.order.refundTx ?? 'none')
    expect(body.order.heldReason).toBe('refund-failed')
    const { id } = body.order
    await freeze(shop, buyer, false)
    await retry(id)
    // Not before the failed refund is deeper than any reorganisation.
    expect((await shop.order(id)).status).not.toBe('refunded')
    await mine(chain, 20)
    await until('the order is refunded', () => stateOf(id) === 'refunded')
    expect(await books()).toEqual(start)
    const refunds = shop.rows(`SELECT state FROM jobs WHERE id LIKE 'refund:${id}%' ORDER BY nonce`)
    expect(refunds).toEqual([{ state: 'failed' }, { state: 'confirmed' }])
  })
})

describe('a reorganisation', () => {
  test('a reorganisation that removes swap and settlement delivers once, by the same bytes', async () => {
    const state = await snapshot(chain)
    const order = await isDelivered(await pay())
    await revert(chain, state)
    await mine(chain, 2)
    expect(await shop.usdg(buyer)).toBe(start.usdg)
    // Checks the newest blocks at once.
    await shop.restart()
    const ends = ['delivered', 'refunded']
    await until('money has moved and the order has ended', async () => {
      const isPaid = (await shop.usdg(buyer)) !== start.usdg || stateOf(order.id) === 'refunded'
      return isPaid && ends.includes(String(stateOf(order.id)))
    })
    const now = await shop.order(order.id)
    expect(now.settlementTx).toBe(order.settlementTx)
    if (now.status === 'delivered') expect(now.swapTx).toBe(order.swapTx)
    expect((await books()).desk).toBe(start.desk)
  })
})

// Last test: ids grow with the clock, which is set back after it.
describe('an external settlement', () => {
  for (const scheme of ['x402-permit2', 'x402-eip3009'] as const)
    test(`money of an external settlement is swapped, at any time of the clock (${scheme})`, async () => {
      credential = await signOrder(url, { scheme })
      const parsed = X402.parsePayload(credential['payment-signature'] ?? '')
      if ('code' in parsed) throw new Error(parsed.detail)
      const terms = { ...parsed.signed, network, chainId: 4663, asset } as const
      const call = Transfer.call({ ...terms, method: parsed.method })
      shop.advance(30_000)
      let isFirst = true
      shop.tap.intercept = async (rpc) => {
        if (!rpc.method.startsWith('eth_sendRaw') || !isFirst) return undefined
        isFirst = false
        await execute(chain, [{ from: account(8).address, ...call, gas: 500_000n }])
        return undefined
      }
      try {
        const order = await isDelivered(await pay())
        expect(shop.logged.join('\n')).toContain('payment-settled-externally')
        expect(order.settlementTx).toBeDefined()
      } finally {
        shop.advance(-30_000)
      }
    })
})
