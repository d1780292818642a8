import { afterAll, beforeAll, expect, test } from 'bun:test'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { ask } from '../harness/buyer'
import { channelOffer, signChannel } from '../harness/channel'
import { serve } from '../harness/serving'
import { startNetwork } from '../harness/settlement'
import { configText, startUpstream, type Upstream } from '../harness/target'
import { dropDatabaseOf, sqlBeside } from '../harness/test-ledger'
import { until } from '../harness/world'

/** The program is killed while a request is paid by a payment channel. */

type Network = Awaited<ReturnType<typeof startNetwork>>
let networks: Record<'usdc' | 'usdg', Network>
let upstream: Upstream
beforeAll(async () => {
  upstream = startUpstream()
  const [usdc, usdg] = await Promise.all([startNetwork('usdc'), startNetwork('usdg')])
  networks = { usdc, usdg }
})
afterAll(async () => {
  upstream?.stop()
  await Promise.all(Object.values(networks ?? {}).map((network) => network.stop()))
})

const merchant = (url: string) => `
[networks."eip155:8453".channels]
min_deposit = "0.04"
[[merchants]]
slug = "one"
upstream = "${url}"
allow_private = true
networks = ["eip155:8453"]
[[merchants.routes]]
path = "/item"
price = "0.005"
`

test('a voucher that was reserved at a kill pays once, after the next start', async () => {
  const dataDir = mkdtempSync(join(tmpdir(), 'turnpike-channel-'))
  const { usdc, usdg } = networks
  const urls = { usdc: usdc.tap.url, usdg: usdg.tap.url, upstream: upstream.url }
  const text = configText(urls, merchant(upstream.url))
  let serving = await serve(dataDir, text)
  const url = () => `${serving.url}/m/one/item`
  const pay = (headers: Record<string, string>) => fetch(url(), { headers })
  try {
    await until('channels are offered', async () =>
      Boolean(channelOffer((await ask(url())).whole, 'eip155:8453')),
    )
    const deposited = await pay(await signChannel(url(), { kind: 'deposit', amount: 50_000n }))
    expect(deposited.status).toBe(200)
    const credential = await signChannel(url(), { base: 5_000n })
    const asked = Promise.withResolvers<void>()
    upstream.answer = () => {
      asked.resolve()
      return new Promise<Response>(() => {})
    }
    const lost = pay(credential).catch(() => 'lost')
    await asked.promise
    await serving.kill()
    expect(await lost).toBe('lost')
    const database = sqlBeside(join(dataDir, 'data'), { isReader: true })
    const row = () =>
      database.query<Record<string, unknown>>('SELECT * FROM channels').all()[0] ?? {}
    expect(row()).toMatchObject({ charged_atomic: '5000', reserved_atomic: '10000' })
    upstream.answer = undefined
    serving = await serve(dataDir, text)
    expect(row()).toMatchObject({ charged_atomic: '5000', reserved_id: null })
    let again = await pay(credential)
    await until('the network is ready', async () => {
      if (again.status === 503) again = await pay(credential)
      return again.status !== 503
    })
    expect(again.status).toBe(200)
    expect((await pay(credential)).status).toBe(402)
    expect(row()).toMatchObject({ charged_atomic: '10000', reserved_id: null })
  } finally {
    upstream.answer = undefined
    await serving.kill()
    await dropDatabaseOf(join(dataDir, 'data'))
    rmSync(dataDir, { recursive: true, force: true })
  }
})
