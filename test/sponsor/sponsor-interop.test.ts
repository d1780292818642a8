import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import { account } from '../../src/demo/accounts'
import { mine } from '../../src/demo/chains'
import { wholeOf } from '../harness/buyer'
import { buyFrom, replay, startResourceServer } from '../harness/resource-server'
import { payee, type Shop, startShop } from '../harness/shop'
import { weiOf } from '../harness/sponsor'

/** `erc20ApprovalGasSponsoring` with the reference's client and resource server. */

const id = 'eip155:4663'
const name = 'erc20ApprovalGasSponsoring'
let shop: Shop
beforeAll(async () => {
  shop = await startShop({
    // Clients prefer a permit where the token has it. The local node suggests a tip of 1 gwei,
    // which makes an approve expensive: the required balance is higher.
    edit: (text) =>
      text
        .replace('eip2612 = true', 'eip2612 = false')
        .replace('min_balance = "0.25"', 'min_balance = "1.00"')
        .replace('max_grant_wei = "62500000000000"', 'max_grant_wei = "200000000000000"')
        .replace('min_balance_age_blocks = 50', 'min_balance_age_blocks = 3'),
  })
  await mine(chain(), 3)
})
afterAll(() => shop?.stop())

function chain() {
  const found = shop.chains[id]
  if (!found) throw new Error('no chain')
  return found
}
function network() {
  const found = shop.config.networks.find((each) => each.id === id)
  if (!found) throw new Error('no network')
  return found
}
const grants = () => shop.rows('SELECT address, kind FROM grants ORDER BY created_at')

describe('a payer without gas whose token has no permit', () => {
  test('the 402 declares the sponsoring', async () => {
    const asked = await fetch(`${shop.url}/m/shop/item`)
    const body = (await asked.json()) as { gasSponsor: string }
    const { extensions } = wholeOf(body)
    expect(body.gasSponsor).toBe('http://localhost:4020/api/gas/sponsor')
    expect(Object.keys(extensions)).toContain(name)
    expect(Object.keys(extensions)).not.toContain('eip2612GasSponsoring')
    const unsponsored = (await (await fetch(`${shop.url}/m/hasty/item`)).json()) as object
    expect(unsponsored).not.toHaveProperty('gasSponsor')
  })

  for (const [index, flow] of [[3, 'authorization'] as const, [4, 'upfront'] as const]) {
    test(`a payer without gas pays a resource server through the facilitator, ${flow}`, async () => {
      const payer = account(index)
      const options = { method: 'permit2' as const, flow, extensions: [name] }
      const server = startResourceServer(shop.url, network(), options)
      try {
        expect(await weiOf(chain(), payer.address)).toBe(0n)
        const before = await shop.balance(id, payee)
        const bought = await buyFrom(server.url, network(), payer.local(), { rpcUrl: chain().url })
        expect(bought.response.status).toBe(200)
        expect((await replay(server.url, bought.credential)).status).toBe(402)
        expect((await shop.balance(id, payee)) - before).toBe(10_000n)
        // The second payment needs only a signature.
        const again = await buyFrom(server.url, network(), payer.local(), { rpcUrl: chain().url })
        expect(again.response.status).toBe(200)
        expect(grants()).toContainEqual({ address: payer.address, kind: 'approval' })
      } finally {
        server.stop()
      }
    })
  }

  test('a payer without gas pays the gateway, and gets no second grant by request', async () => {
    const payer = account(5)
    const url = `${shop.url}/m/shop/item`
    const before = await shop.balance(id, payee)
    const bought = await buyFrom(url, network(), payer.local(), { rpcUrl: chain().url })
    expect(bought.response.status).toBe(200)
    expect((await shop.balance(id, payee)) - before).toBe(5_000n)
    expect(grants().filter(({ address }) => address === payer.address)).toHaveLength(1)
    const asked = await fetch(`${shop.url}/api/gas/sponsor`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ address: payer.address }),
    })
    expect(asked.status).toBe(409)
    expect(await asked.json()).toMatchObject({ code: 'already-sponsored', confirmed: true })
  })
})
