import { afterAll, beforeAll, expect, test } from 'bun:test'
import { operatorOf } from '../harness/admin'
import { ask } from '../harness/buyer'
import { base, type ChannelShop, startChannelShop } from '../harness/channel-shop'
import { until } from '../harness/world'

/** What a running gateway with payment channels says to machines and to its operator. */

let shop: ChannelShop
beforeAll(async () => {
  shop = await startChannelShop()
})
afterAll(() => shop.stop())

const textOf = (html: string) => html.replace(/<[^>]+>/g, ' ').replace(/\s+/g, ' ')

test('the list of resources has the offers of the 402, of each route by its schemes', async () => {
  const { items } = (await (await fetch(shop.at('/discovery/resources?limit=100'))).json()) as {
    items: { resource: string; accepts: { scheme: string }[] }[]
  }
  const schemes: Record<string, string[]> = {}
  for (const path of ['/m/one/item', '/m/one/plain', '/m/one/only']) {
    const listed = items.find(({ resource }) => new URL(resource).pathname === path)
    const init = path.endsWith('plain') ? { method: 'POST' } : {}
    const { whole } = await ask(shop.at(path), init)
    expect(listed?.accepts).toEqual([...whole.accepts])
    schemes[path] = [...new Set(listed?.accepts.map(({ scheme }) => scheme))]
  }
  expect(schemes).toEqual({
    '/m/one/item': ['exact', 'batch-settlement'],
    '/m/one/plain': ['exact'],
    '/m/one/only': ['batch-settlement'],
  })
  const llms = await (await fetch(shop.at('/llms.txt'))).text()
  expect(llms).toContain('(from 0.04 USDC on Base, withdrawal in 24 hours)')
  const page = await (await fetch(shop.at('/merchants/one?route=%2Fonly'))).text()
  expect(page).toContain('A wallet in a browser cannot pay for this. A program can.')
  expect(page).toContain(' --scheme channel')
})

test('an operator sees what is not on chain yet, and claims it at once', async () => {
  const channel = await shop.channel()
  expect((await channel.deposit({ amount: 50_000n })).status).toBe(200)
  expect((await channel.pay({ base: 5_000n })).status).toBe(200)
  const { read, act } = await operatorOf(shop.url, shop.secrets.adminToken)
  const before = await read('/admin/channels')
  expect(before).toContain(`title="${channel.id}"`)
  expect(textOf(before)).toContain('open 0.05 USDC 0.01 USDC 0.00 USDC 0.01 USDC Base')
  expect(textOf(before)).toMatch(/Base 1 0\.01 USDC 0 (in \d+ \w+|now) Claim now on Base/)
  const paid = await read(`/admin/payments/${shop.payment().id}`)
  expect(textOf(paid)).toContain(`Channel ${channel.id} State open Balance 0.05 USDC`)
  expect(paid).not.toContain('/tx/')
  expect(textOf(await read('/admin/sales'))).toContain('Not on chain yet , Base $0.01')
  expect(await act('claim', `network:${base}`)).toBe(303)
  await until('the claim is on chain', () => channel.row().claimed_atomic === '10000')
  expect(textOf(await read('/admin/channels'))).toContain('0.05 USDC 0.01 USDC 0.01 USDC 0.00 USDC')
})
