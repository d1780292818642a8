import { afterAll, beforeAll, expect, test } from 'bun:test'
import { createClock } from '../../src/chain/clock'
import { createHead } from '../../src/chain/head'
import { account } from '../../src/demo/accounts'
import { mine } from '../../src/demo/chains'
import { createRegistry } from '../../src/http/metrics'
import { registerGauges } from '../../src/settlement/state/gauges'
import { type Context, createObserved, createRelayer } from '../../src/settlement/state/state'
import { setAutomine } from '../harness/chains'
import { withoutSync } from '../harness/own-settlement'
import { networkOf, relayerKey } from '../harness/settlement'
import { buy, type Shop, setSettleWait, sign, startShop } from '../harness/shop'
import { until } from '../harness/world'

let shop: Shop
beforeAll(async () => {
  shop = await startShop({
    adjust: (config) => ({
      ...config,
      networks: config.networks.map((network) => ({
        ...network,
        feeCapWei: 50_000_000_000n,
        replaceAfterSeconds: 0.2,
      })),
    }),
  })
})
afterAll(() => shop.stop())

const item = () => `${shop.url}/m/shop/item`
const base = 'eip155:8453'

async function read(): Promise<Map<string, number>> {
  const text = await (await fetch(`${shop.url}/metrics`)).text()
  return new Map(
    text
      .split('\n')
      .filter((line) => line !== '' && !line.startsWith('#'))
      .map((line) => {
        const at = line.lastIndexOf(' ')
        return [line.slice(0, at).replace('turnpike_', ''), Number(line.slice(at + 1))]
      }),
  )
}

test('a paid request is counted at every stage', async () => {
  const before = await read()
  const more = async (name: string) => ((await read()).get(name) ?? 0) - (before.get(name) ?? 0)
  expect((await buy(item())).status).toBe(200)
  expect(await more('challenges_total{merchant="shop"}')).toBe(1)
  expect(await more(`payments_total{network="${base}",protocol="mpp",outcome="confirmed"}`)).toBe(1)
  expect(await more(`settle_seconds_count{network="${base}"}`)).toBe(1)
  expect(await more(`batch_size_bucket{network="${base}",le="1"}`)).toBe(1)
  expect(await more('delivery_attempts_total')).toBe(1)
  expect(await more(`paid_usd_total{network="${base}",merchant="shop"}`)).toBeCloseTo(0.005, 9)
  await until('the delivery is recorded', async () => {
    return (await more('deliveries_total{outcome="delivered"}')) === 1
  })
  expect(await more(`rpc_calls_total{network="${base}",method="eth_call"}`)).toBe(1)
  expect(await more(`rpc_calls_total{network="${base}",method="eth_sendRawTransactionSync"}`)).toBe(
    1,
  )
  expect(await more(`gas_spent_today_wei{network="${base}",product="gateway"}`)).toBeGreaterThan(0)
  const now = await read()
  expect(now.get('build_info{version="unknown"}')).toBe(1)
  expect(now.get('process_resident_memory_bytes')).toBeGreaterThan(10_000_000)
  expect(now.get(`network_ready{network="${base}"}`)).toBe(1)
  expect(now.get(`gas_budget_wei{network="${base}",product="gateway"}`)).toBeGreaterThan(0)
  expect(
    now.get(`relayer_balance_wei{network="${base}",relayer="${account(0).address}"}`),
  ).toBeGreaterThan(1e18)
})

test('waiting payments, replacements and node faults have metrics', async () => {
  const chain = shop.chains[base]
  const tap = shop.taps[base]
  if (!chain || !tap) throw new Error(`no ${base}`)
  const before = await read()
  const more = async (name: string) => ((await read()).get(name) ?? 0) - (before.get(name) ?? 0)
  const credential = await sign(item())
  // A node that delays the answer until the block is polled for receipts after seconds.
  tap.intercept = withoutSync
  await setAutomine(chain, false)
  await setSettleWait(shop, 2)
  expect((await fetch(item(), { headers: credential })).status).toBe(503)
  await setSettleWait(shop, 25)
  expect(await more(`payments_total{network="${base}",protocol="mpp",outcome="pending"}`)).toBe(1)
  expect((await read()).get(`pending_payments{network="${base}"}`)).toBe(1)
  expect(
    (await read()).get(`relayer_transactions{network="${base}",relayer="${account(0).address}"}`),
  ).toBe(1)
  tap.intercept = (call) =>
    call.method === 'eth_getTransactionReceipt'
      ? new Response('', { status: 503 })
      : withoutSync(call)
  await until('a fault is counted', async () => {
    return (
      (await more(`rpc_faults_total{network="${base}",method="eth_getTransactionReceipt"}`)) > 0
    )
  })
  tap.intercept = undefined
  await until('it is replaced', async () => {
    return (await more(`replaced_transactions_total{network="${base}"}`)) > 0
  })
  await mine(chain)
  await setAutomine(chain, true)
  await until('it is confirmed', async () => {
    return (await read()).get(`pending_payments{network="${base}"}`) === 0
  })
  expect((await fetch(item(), { headers: credential })).status).toBe(200)
})

test('metrics contain no buyer and no URL', async () => {
  expect((await buy(item(), { buyer: 3 })).status).toBe(200)
  const text = (await (await fetch(`${shop.url}/metrics`)).text()).toLowerCase()
  const digitsOf = (index: number) => account(index).address.slice(2, 20).toLowerCase()
  expect(text).toContain(digitsOf(0))
  expect(text).not.toContain(digitsOf(3))
  expect(text).not.toContain('://')
  expect(text).not.toContain('127.0.0.1')
})

test('a reason that ended is 0, and totals never decrease', async () => {
  const registry = createRegistry()
  const calls = new Map([['eth_call', 3]])
  const config = networkOf('http://127.0.0.1', 'usdc')
  const relayer = createRelayer(relayerKey, { isReserved: false, isHeld: true })
  relayer.poor = 'relayer 0xabc holds 17 wei, too little for gas'
  const chain = {
    ...createObserved(Date.now, false),
    ...{ network: config, relayers: [relayer], clock: createClock(), head: createHead() },
    heads: { isLive: () => false },
    client: { counts: () => calls, faults: () => new Map() },
  }
  const context = {
    ledger: {
      channels: { totals: async () => [] },
      payments: { countBroadcast: async () => new Map([[config.id, 2]]) },
      gas: { spentOn: () => 0n },
      fault: () => undefined,
    },
    chains: new Map([[config.id, chain]]),
    credit: { risks: () => new Map() },
    ...{ now: Date.now, monotonic: Date.now },
  }
  registerGauges(registry, context as unknown as Context)
  const line = async (name: string) =>
    (await registry.render()).split('\n').find((each) => each.startsWith(`turnpike_${name}{`))
  expect(await line('relayer_paused')).toMatch(/reason="[^"]*too little for gas"\} 1$/)
  expect(await line('relayer_paused')).not.toContain('17')
  relayer.poor = undefined
  relayer.next = 0
  expect(await line('relayer_paused')).toEndWith(' 0')
  expect(await line('rpc_calls_total')).toEndWith(' 3')
  calls.set('eth_call', 7)
  expect(await line('rpc_calls_total')).toEndWith(' 7')
  expect(await line('pending_payments')).toEndWith(' 2')
})
