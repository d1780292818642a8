import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import type { Config, NetworkConfig } from '../../src/config/Config'
import { mine } from '../../src/demo/chains'
import { settlementOf } from '../harness/buyer'
import { makeBody, post } from '../harness/facilitation'
import { type Shop, sign, startShop } from '../harness/shop'

// The gas cost of a network decides whether it is offered.

const base = 'eip155:8453'
const stock = 'eip155:4663'
const testnet = 'eip155:84532'
const gwei = 1_000_000_000n

let shop: Shop
let initial: Config
beforeAll(async () => {
  shop = await startShop({})
  initial = shop.config
})
afterAll(() => shop.stop())

const item = () => `${shop.url}/m/shop/item`

/** Starts again with other figures of some networks. */
const restart = (change: (network: NetworkConfig) => Partial<NetworkConfig>) =>
  shop.restart({
    ...initial,
    networks: initial.networks.map((network) => ({ ...network, ...change(network) })),
  })

async function offered(url = item()): Promise<string[]> {
  const response = await fetch(url)
  const header = response.headers.get('payment-required')
  if (header === null) return []
  const { accepts } = JSON.parse(atob(header)) as { accepts: { network: string }[] }
  const challenged = response.headers.get('www-authenticate')?.match(/Payment id=/g)?.length
  const networks = [...new Set(accepts.map(({ network }) => network))]
  expect(challenged).toBe(networks.length)
  return networks
}

const spent = (product: 'gateway' | 'facilitator', only?: string) => (network: NetworkConfig) =>
  only === undefined || network.id === only
    ? { gasPerDayWei: { ...network.gasPerDayWei, [product]: 0n } }
    : {}

describe('a spent budget', () => {
  test('error: a spent budget omits its network from the 402; without another network, 503 with the reason', async () => {
    const credential = await sign(item(), { scheme: 'x402-eip3009', network: base })
    expect(await offered()).toEqual([stock, base, testnet])
    await restart(spent('gateway', base))
    expect(await offered()).toEqual([stock, testnet])
    const refused = await fetch(item(), { headers: credential })
    expect(refused.status).toBe(503)
    expect(settlementOf(refused)).toMatchObject({ success: false })
    // Sold on 8453 only.
    const away = await fetch(`${shop.url}/m/away/item`)
    expect(away.status).toBe(503)
    expect(away.headers.get('retry-after')).toMatch(/^\d+$/)
    expect(await away.json()).toMatchObject({
      code: 'not-ready',
      detail: expect.stringContaining('the gas budget of today is spent'),
    })
    await restart(() => ({}))
    expect((await fetch(item(), { headers: credential })).status).toBe(200)
  })

  test('error: a spent budget of the facilitator omits its network from /supported and /verify', async () => {
    await restart(spent('facilitator', base))
    const supported = await (await fetch(`${shop.url}/supported`)).json()
    const kinds = (supported as { kinds: { network: string }[] }).kinds.map(
      ({ network }) => network,
    )
    expect(kinds).not.toContain(base)
    expect(kinds).toContain(stock)
    const network = shop.config.networks.find(({ id }) => id === base)
    if (!network) throw new Error('no network')
    const body = await makeBody(network)
    for (const operation of ['verify', 'settle']) {
      const answer = await post(`${shop.url}/${operation}`, body)
      expect(answer.status).toBe(503)
      expect(JSON.stringify(answer.json)).toContain('gas budget')
    }
    // The gateway has its own.
    expect(await offered()).toEqual([stock, base, testnet])
  })
})

describe('gas_ratio_max', () => {
  const setBaseFee = async (wei: bigint) => {
    await shop.chains[base]?.rpc('anvil_setNextBlockBaseFeePerGas', [`0x${wei.toString(16)}`])
    const chain = shop.chains[base]
    if (chain) await mine(chain)
  }

  test('gas_ratio_max omits a network while gas costs more than that multiple of the price', async () => {
    await setBaseFee(gwei)
    await restart(({ id }) => (id === base ? { gasRatioMax: 2 } : {}))
    expect(await offered()).toEqual([stock, testnet])
    const away = await fetch(`${shop.url}/m/away/item`)
    expect(away.status).toBe(503)
    expect(await away.json()).toMatchObject({
      detail: expect.stringContaining('gas costs too much'),
    })
    // The same prices, with an almost worthless coin.
    await restart(({ id }) => (id === base ? { gasRatioMax: 2, ethPriceUsd: 0.01 } : {}))
    expect(await offered()).toEqual([stock, base, testnet])
    await setBaseFee(1_000n)
    await restart(({ id }) => (id === base ? { gasRatioMax: 2 } : {}))
    expect(await offered()).toEqual([stock, base, testnet])
  })

  test('by default no gas price omits a network', async () => {
    await setBaseFee(gwei)
    await restart(() => ({}))
    expect(await offered()).toEqual([stock, base, testnet])
  })
})
