import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import { answering, type ModelShop, startModels, usage, type Wallet } from './harness/uptoshop'

/** Buyers by `upto` that want to harm others: the other buyers, the seller, the node. */

let shop: ModelShop
let payer: Wallet
beforeAll(async () => {
  shop = await startModels()
})
afterAll(() => shop.stop())
beforeEach(async () => {
  shop.clear()
  payer = await shop.wallet()
})

describe('requests that break the upstream, which cost nothing', () => {
  for (const [name, script] of [
    ['time out', () => {}],
    ['are answered 503', answering('{}', 503)],
  ] as const)
    test(`attack: that ${name}: do not stop the sales to others`, async () => {
      const wallets = [payer, await shop.wallet(), await shop.wallet()]
      const credentials = await Promise.all(
        [...wallets, ...wallets].map((signer) => shop.sign({ slug: 'quick', signer })),
      )
      shop.upstream.script = script
      const failed = await Promise.all(
        credentials.map((credential) => shop.pay(credential, { slug: 'quick' })),
      )
      for (const { status } of failed) expect([502, 504]).toContain(status)
      shop.upstream.script = answering(usage(7, 20))
      expect((await shop.buy({ slug: 'quick', buyer: 2 })).status).toBe(200)
    })
})
