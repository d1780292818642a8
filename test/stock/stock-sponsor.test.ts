import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import * as Token from '../../src/chain/token'
import { account } from '../../src/demo/accounts'
import { mine } from '../../src/demo/chains'
import * as Permit from '../../src/protocol/Permit'
import { settlementOf } from '../harness/buyer'
import { block } from '../harness/exchange'
import { buyFrom } from '../harness/resource-server'
import { freshWallet, weiOf } from '../harness/sponsor'
import {
  askToBuy,
  network as id,
  mint,
  type OrderJson,
  type StockShop,
  startStockShop,
} from '../harness/stock-shop'

// Payers that have only USDG: no gas, no allowance of Permit2. With the reference's client.

type Wallet = ReturnType<typeof freshWallet>

const init = { method: 'POST' }
const kinds = [
  { name: 'erc20ApprovalGasSponsoring', other: 'eip2612GasSponsoring', eip2612: false },
  { name: 'eip2612GasSponsoring', other: 'erc20ApprovalGasSponsoring', eip2612: true },
]

for (const { name, other, eip2612 } of kinds) {
  describe(`a stock bought with ${name}`, () => {
    let shop: StockShop
    beforeAll(async () => {
      shop = await startStockShop({
        // Clients prefer a permit where the token has it. The local node suggests a tip of 1 gwei,
        // which makes an approve expensive: the required balance is higher.
        edit: (text) =>
          text
            .replace('eip2612 = true', `eip2612 = ${eip2612}`)
            .replace('min_balance = "0.25"', 'min_balance = "1.00"')
            .replace('max_grant_wei = "62500000000000"', 'max_grant_wei = "200000000000000"')
            .replace('min_balance_age_blocks = 50', 'min_balance_age_blocks = 3'),
      })
    })
    afterAll(() => shop?.stop())

    function network() {
      const found = shop.config.networks.find((each) => each.id === id)
      if (!found) throw new Error('no network')
      return found
    }
    const grants = (wallet: Wallet) =>
      shop.rows(`SELECT kind FROM grants WHERE address = '${wallet.address}'`)
    const ordersOf = (wallet: Wallet) =>
      shop.rows(`SELECT state FROM orders WHERE payer = '${wallet.address}'`)

    async function allowed({ address }: Wallet): Promise<bigint> {
      const { to, data } = Token.allowance(shop.asset, address, Permit.permit2Address)
      return BigInt((await shop.chain.rpc('eth_call', [{ to, data }, 'latest'])) as string)
    }

    async function walletWith(usdgAtomic: bigint): Promise<Wallet> {
      const wallet = freshWallet()
      await mint(shop, wallet.address, usdgAtomic)
      await mine(shop.chain, 4)
      expect([await weiOf(shop.chain, wallet.address), await allowed(wallet)]).toEqual([0n, 0n])
      return wallet
    }

    const buy = (wallet: Wallet, url: string) =>
      buyFrom(url, network(), wallet, { rpcUrl: shop.chain.url, init, maxAtomic: 50_000_000n })

    test('the 402 offers sponsoring', async () => {
      const { body } = await askToBuy(shop.buyUrl())
      const offered = Object.keys(body.extensions as object)
      expect(offered).toContain(name)
      if (!eip2612) expect(offered).not.toContain(other)
    })

    test('a payer without gas and allowance gets its shares, once', async () => {
      const wallet = await walletWith(40_000_000n)
      const { response, credential } = await buy(wallet, shop.buyUrl())
      const order = (await response.json()) as OrderJson
      expect([response.status, order.status, order.payer]).toEqual([
        200,
        'delivered',
        wallet.address,
      ])
      expect(settlementOf(response)).toMatchObject({ success: true, payer: wallet.address })
      expect(await shop.shares(wallet.address)).toBe(BigInt(order.deliveredSharesAtomic ?? 0))
      expect(await shop.usdg(wallet.address)).toBe(15_000_000n)
      expect(await shop.usdg(shop.desk)).toBe(0n)
      expect(grants(wallet)).toEqual(eip2612 ? [] : [{ kind: 'approval' }])

      const headers = { 'payment-signature': credential }
      const again = await fetch(shop.buyUrl(), { ...init, headers })
      expect([again.status, ((await again.json()) as OrderJson).id]).toEqual([200, order.id])
      await shop.restart()
      const later = await fetch(shop.buyUrl(), { ...init, headers })
      expect([later.status, ((await later.json()) as OrderJson).id]).toEqual([200, order.id])
      expect(await shop.usdg(wallet.address)).toBe(15_000_000n)

      // The approval lasts: the next purchase needs only a signature, and no sponsored gas.
      const next = await buy(wallet, shop.buyUrl({ usdg: '15' }))
      expect(next.response.status).toBe(200)
      expect(await shop.usdg(wallet.address)).toBe(0n)
      expect(ordersOf(wallet)).toEqual([{ state: 'delivered' }, { state: 'delivered' }])
      expect(grants(wallet)).toHaveLength(eip2612 ? 0 : 1)
    })

    test('five concurrent requests with one credential are one order', async () => {
      const wallet = await walletWith(60_000_000n)
      const url = shop.buyUrl({ recipient: account(6).address })
      const before = await shop.shares(account(6).address)
      // Signed by the client and not sent yet: all five are sent together.
      const credential = await signedBy(wallet, url)
      const headers = { 'payment-signature': credential }
      const answers = await Promise.all(
        Array.from({ length: 5 }, () => fetch(url, { ...init, headers })),
      )
      const orders = (await Promise.all(answers.map((each) => each.json()))) as OrderJson[]
      expect(answers.map((each) => each.status)).toEqual(Array(5).fill(200))
      expect(new Set(orders.map((order) => order.id)).size).toBe(1)
      expect(await shop.usdg(wallet.address)).toBe(35_000_000n)
      const delivered = BigInt(orders[0]?.deliveredSharesAtomic ?? 0)
      expect((await shop.shares(account(6).address)) - before).toBe(delivered)
      expect(ordersOf(wallet)).toEqual([{ state: 'delivered' }])
    })

    test('error: an order that is refused gets no sponsoring', async () => {
      const wallet = await walletWith(60_000_000n)
      const recipient = account(5).address
      const url = shop.buyUrl({ recipient })
      const credential = await signedBy(wallet, url)
      await block(shop.chain, shop.stock.registry, recipient)
      const headers = { 'payment-signature': credential }
      const refused = await fetch(url, { ...init, headers })
      expect(refused.status).toBe(400)
      expect([grants(wallet), ordersOf(wallet)]).toEqual([[], []])
      expect([await weiOf(shop.chain, wallet.address), await allowed(wallet)]).toEqual([0n, 0n])
      await block(shop.chain, shop.stock.registry, recipient, false)
      expect((await buy(wallet, url)).response.status).toBe(200)
      expect(await shop.usdg(wallet.address)).toBe(35_000_000n)
    })

    /** The credential that the client would send. */
    async function signedBy(wallet: Wallet, url: string): Promise<string> {
      const required = await askToBuy(url)
      const stand = Bun.serve({
        port: 0,
        hostname: '127.0.0.1',
        fetch: (request) =>
          request.headers.has('payment-signature')
            ? new Response('kept')
            : Response.json(required.body, {
                status: 402,
                headers: {
                  'payment-required': required.response.headers.get('payment-required') ?? '',
                },
              }),
      })
      try {
        return (await buy(wallet, stand.url.href)).credential
      } finally {
        void stand.stop(true)
      }
    }
  })
}
