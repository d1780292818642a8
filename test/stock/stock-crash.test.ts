import { afterAll, afterEach, beforeAll, describe, expect, test } from 'bun:test'
import { account } from '../../src/demo/accounts'
import { mine } from '../../src/demo/chains'
import { samplePrice } from '../../src/demo/exchange'
import { ask, payX402 } from '../harness/buyer'
import { movePrice } from '../harness/exchange'
import { executable } from '../harness/executable'
import { createStockProgram } from '../harness/stock-serve'
import {
  before,
  type Moment,
  type OrderJson,
  type StockShop,
  startStockShop,
} from '../harness/stock-shop'
import { isPostgres, sqlBeside } from '../harness/test-ledger'
import { until } from '../harness/world'

// The program is killed by SIGKILL at every step of an order. After a start, the same request finds
// the order in its final state: delivered or refunded, once, and the desk has its balance from
// before.

let shop: StockShop
beforeAll(async () => {
  shop = await startStockShop()
  // Only its chain is used, with a tap in front: the desk is that of the program.
  await shop.app.stop()
})
afterAll(() => shop?.stop())
afterEach(async () => {
  shop.tap.intercept = undefined
  await movePrice(shop.chain, shop.asset, shop.nvda, samplePrice('NVDA') * 1.001)
  await movePrice(shop.chain, shop.asset, shop.nvda, samplePrice('NVDA'))
})

const buyer = account(1)

type Death = { moment: Moment | 'settle'; forwarded: boolean; isRefunded: boolean }
const deaths: Readonly<Record<string, Death>> = {
  'as the payment is sent': { moment: 'settle', forwarded: false, isRefunded: false },
  'before it quotes at the pool again': { moment: 'quote', forwarded: false, isRefunded: false },
  'as the swap is sent': { moment: 'swap', forwarded: false, isRefunded: false },
  'when the node has the swap': { moment: 'swap', forwarded: true, isRefunded: false },
  'as the refund is sent': { moment: 'refund', forwarded: false, isRefunded: true },
  'when the node has the refund': { moment: 'refund', forwarded: true, isRefunded: true },
}

describe('kill -9', () => {
  for (const [when, death] of Object.entries(deaths)) {
    test(`${when}, the order ends once (attack 37, 38)`, async () => {
      const program = await createStockProgram({ rpcUrl: shop.tap.url })
      try {
        await program.start()
        const path = '/api/stock/buy?symbol=NVDA&usdg=25'
        const asked = await ask(program.url + path, { method: 'POST' })
        const headers = {
          'payment-signature': await payX402(asked.required, buyer.local(), {
            network: 'eip155:4663',
            method: 'permit2',
          }),
        }
        const start = await books()
        const dead = arm(death)
        const lost = fetch(program.url + path, { method: 'POST', headers }).catch(() => 'lost')
        await dead
        await program.kill()
        expect(await lost).toBe('lost')
        shop.tap.intercept = undefined

        await program.start()
        const answers = await Promise.all([again(), again()])
        async function again(): Promise<Response> {
          let response = await fetch(program.url + path, { method: 'POST', headers })
          await until('the order has ended', async () => {
            const isOpen = response.status === 503 || response.status === 202
            if (isOpen) response = await fetch(program.url + path, { method: 'POST', headers })
            return !isOpen
          })
          return response
        }
        const end = await books()
        expect(end.desk).toBe(start.desk)
        const rows = ordersOf(program.dataDir)
        expect(rows).toHaveLength(1)
        if (death.isRefunded) {
          expect(answers.map((each) => each.status)).toEqual([502, 502])
          expect(rows[0]).toMatchObject({ state: 'refunded', refund_attempts: 1 })
          expect(end).toEqual(start)
        } else {
          expect(answers.map((each) => each.status)).toEqual([200, 200])
          const order = (await answers[0]?.json()) as OrderJson
          expect(order.status).toBe('delivered')
          expect(start.usdg - end.usdg).toBe(25_000_000n)
          expect(end.shares - start.shares).toBe(BigInt(order.deliveredSharesAtomic ?? 0))
        }
      } finally {
        shop.tap.intercept = undefined
        await program.remove()
      }
    })
  }
})

async function books() {
  return {
    desk: await shop.usdg(account(0).address),
    usdg: await shop.usdg(buyer.address),
    shares: await shop.shares(buyer.address),
  }
}

/** Resolves when the program has reached the moment, at which it then waits. */
function arm({ moment, forwarded, isRefunded }: Death): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>()
  const hang = async (forward: () => Promise<unknown>) => {
    if (forwarded) await forward()
    resolve()
    return new Promise(() => undefined)
  }
  if (moment === 'settle') {
    shop.tap.intercept = ({ method }, forward) =>
      method.startsWith('eth_sendRaw') ? hang(forward) : undefined
    return promise
  }
  let forward: () => Promise<unknown> = async () => undefined
  // The first quote is that of the payment.
  before(shop, moment, moment === 'quote' ? 2 : 1, () => hang(forward))
  const atMoment = shop.tap.intercept
  const unsettle = () => movePrice(shop.chain, shop.asset, shop.nvda, samplePrice('NVDA') * 1.02)
  let quotes = 0
  shop.tap.intercept = async (call, forwardCall) => {
    const isQuote = JSON.stringify(call.params).includes('c6a5026a')
    if (isRefunded && isQuote && ++quotes === 2) await unsettle()
    forward = forwardCall
    return atMoment?.(call, forwardCall)
  }
  return promise
}

function ordersOf(dataDir: string): Record<string, unknown>[] {
  const database = sqlBeside(dataDir, { isReader: true })
  try {
    return database.query<Record<string, unknown>>('SELECT * FROM orders').all()
  } finally {
    database.close()
  }
}

test('orders list, show and retry work while the service runs', async () => {
  const program = await createStockProgram({ rpcUrl: shop.tap.url })
  const cli = async (...words: string[]) => {
    const command = [executable, 'orders', ...words]
    const child = Bun.spawn([...command, '--data', program.dataDir], {
      env: { ...process.env, ...program.ledger },
      stdout: 'pipe',
    })
    return { text: await new Response(child.stdout).text(), code: await child.exited }
  }
  try {
    expect((await cli('list')).text).toContain(isPostgres ? 'no tables' : 'there is no database')
    await program.start()
    const path = '/api/stock/buy?symbol=NVDA&usdg=25'
    const asked = await ask(program.url + path, { method: 'POST' })
    const terms = { network: 'eip155:4663', method: 'permit2' } as const
    const signature = await payX402(asked.required, buyer.local(), terms)
    const hidden = shop.nvda.address.toLowerCase()
    shop.tap.intercept = async ({ method }, forward) => {
      if (!/Receipt|Sync/.test(method)) return undefined
      const answer = (await (await forward()).json()) as {
        result?: { logs?: { address: string }[] }
      }
      const logs = answer.result?.logs?.filter(({ address }) => address.toLowerCase() !== hidden)
      return logs ? { result: { ...answer.result, logs } } : answer
    }
    const headers = { 'payment-signature': signature }
    const held = await fetch(program.url + path, { method: 'POST', headers })
    const order = (await held.json()) as OrderJson
    expect([held.status, order.status]).toEqual([202, 'held'])

    const list = await cli('list')
    expect(list.text).toContain(`${order.id}  held`)
    expect(list.text).toContain('1 held, 0 unfinished')
    const show = await cli('show', order.id)
    expect(show.text).toContain(`swap:${order.id}  confirmed`)
    expect(show.text).toContain('never refunded')
    const retry = await cli('retry', order.id)
    // No node shows it yet.
    const [first, second] = retry.text.trim().split('\n')
    expect([retry.code, first]).toEqual([1, `${order.id} is held: delivery-not-found`])
    expect(second).toContain('shows no Transfer')
    shop.tap.intercept = undefined
    const found = await cli('retry', order.id)
    expect([found.code, found.text.trim()]).toEqual([0, `${order.id} is delivered`])
    expect((await cli('retry', order.id)).text).toContain('only an order that is held')
    expect((await cli('show', 'ord_x')).code).toBe(1)
    expect((await cli('drop', order.id)).code).toBe(2)
  } finally {
    shop.tap.intercept = undefined
    await mine(shop.chain)
    await program.remove()
  }
})
