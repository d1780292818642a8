import { afterAll, afterEach, describe, expect, test } from 'bun:test'
import * as Receipt from '../../src/chain/receipt'
import type { StockToken } from '../../src/config/Config'
import { account } from '../../src/demo/accounts'
import { mine } from '../../src/demo/chains'
import { offer } from '../harness/exchange'
import {
  askToBuy,
  before,
  buyStock,
  freeze,
  mint,
  type OrderJson,
  requestRetry,
  signOrder,
  startStockShop,
  throughOf,
} from '../harness/stock-shop'
import { until } from '../harness/world'

// A pool without enough liquidity takes a part of the input, and may still give enough shares. The
// remaining input belongs to the payer: neither the desk nor the router keeps it.

const shop = await startStockShop()
afterAll(() => shop.stop())
afterEach(() => {
  shop.tap.intercept = undefined
})
const { chain, stock, asset } = shop
const buyer = account(1).address
const paid = 25_000_000n

/**
 * A purchase of which the pool takes a part, because it has little more than the minimum to sell.
 */
async function arrange(token: StockToken, query: Record<string, string> = {}) {
  const url = shop.buyUrl({ symbol: token.symbol, ...query })
  const { estimatedSharesAtomic } = (await askToBuy(url)).body.quote as Record<string, string>
  const shares = (BigInt(estimatedSharesAtomic ?? 0) * 992n) / 1_000n
  return { url, drain: (await offer(chain, asset, token, shares)).drain }
}

async function books() {
  const [desk, router, usdg] = await Promise.all([
    shop.usdg(shop.desk),
    shop.usdg(stock.router),
    shop.usdg(buyer),
  ])
  return { desk, router, usdg }
}

async function movesOf(order: OrderJson, token: StockToken) {
  const receipt = Receipt.parse(await chain.rpc('eth_getTransactionReceipt', [order.swapTx]))
  const sum = (from: `0x${string}`, to: `0x${string}`, of = asset) =>
    Receipt.transfersOf(receipt?.logs ?? [], { token: of, from, to }).reduce((a, b) => a + b, 0n)
  const through = await throughOf(chain, order.swapTx ?? '0x')
  return {
    taken: sum(shop.desk, through),
    funded: sum(through, stock.router),
    swapped: sum(stock.router, token.pool),
    returned: sum(stock.router, buyer),
    kept: sum(shop.desk, token.pool),
    shares: sum(token.pool, order.recipient, token.address),
  }
}

function tokenAt(index: number): StockToken {
  const token = stock.tokens[index]
  if (token === undefined) throw new Error('no such token')
  return token
}

const stateOf = (id: string) => shop.rows(`SELECT state FROM orders WHERE id = '${id}'`)[0]?.state

describe('a pool that loses its liquidity inside the swap', () => {
  // Whether the asset is token0 or token1 of the pool, the price moves to one end or the other. The
  // way is short enough for the gas of a swap only where the fee is high; otherwise it reverts.
  for (const index of [2, 4, 6, 7]) {
    const token = tokenAt(index)
    test(`input that the pool of ${token.symbol} does not take goes back in the same transaction`, async () => {
      const recipient = account(6).address
      const { url, drain } = await arrange(token, { recipient })
      const start = await books()
      const credential = await signOrder(url)
      before(shop, 'swap', 1, drain)
      const response = await fetch(url, { method: 'POST', headers: credential })
      const order = (await response.json()) as OrderJson
      expect([response.status, order.status]).toEqual([200, 'delivered'])
      const end = await books()
      const { taken, funded, swapped, returned, kept, shares } = await movesOf(order, token)
      expect([end.desk, end.router]).toEqual([start.desk, start.router])
      expect([taken, funded, swapped + returned, kept]).toEqual([paid, paid, paid, 0n])
      expect(returned).toBeGreaterThan(0n)
      expect(order.returnedAtomic).toBe(String(returned))
      expect(await shop.order(order.id)).toEqual(order)
      expect(start.usdg - end.usdg).toBe(swapped)
      expect(BigInt(order.deliveredSharesAtomic ?? 0)).toBe(shares)
      expect(Number(order.deliveredShares)).toBeGreaterThanOrEqual(Number(order.minimumShares))
    })
  }

  test('error: when the asset blocks the payer, the swap fails and the refund waits', async () => {
    const { url, drain } = await arrange(tokenAt(12))
    const start = await books()
    const credential = await signOrder(url)
    before(shop, 'swap', 1, async () => {
      await drain()
      await freeze(shop, buyer)
    })
    const response = await fetch(url, { method: 'POST', headers: credential })
    const { order } = (await response.json()) as { order: OrderJson }
    expect([response.status, order.status]).toEqual([502, 'held'])
    expect([order.refundReason, order.heldReason]).toEqual(['swap-failed', 'refund-failed'])
    await freeze(shop, buyer, false)
    await mine(chain, 20)
    requestRetry(shop, order.id)
    await until('it is refunded', () => stateOf(order.id) === 'refunded')
    expect(await books()).toEqual(start)
  })
})

describe('money that others left at the router', () => {
  test('money that others left at the router buys shares for the recipient and changes nothing for the desk', async () => {
    const start = await books()
    await mint(shop, stock.router, 1_000_000n)
    const response = await buyStock(shop.buyUrl())
    const order = (await response.json()) as OrderJson
    expect([response.status, order.status]).toEqual([200, 'delivered'])
    const { taken, swapped, returned } = await movesOf(order, shop.nvda)
    expect([taken, swapped, returned]).toEqual([paid, paid + 1_000_000n, 0n])
    expect(Number(order.deliveredShares)).toBeGreaterThan(Number(order.quotedShares))
    expect(order).not.toHaveProperty('returned')
    expect(await books()).toEqual({ ...start, usdg: start.usdg - paid })
  })
})
