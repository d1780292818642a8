import { afterAll, beforeAll, expect, test } from 'bun:test'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { keccak256, stringToBytes } from 'viem'
import { ask } from '../harness/buyer'
import { channelOffer, signChannel } from '../harness/channel'
import { serve } from '../harness/serving'
import { startNetwork } from '../harness/settlement'
import { configText } from '../harness/target'
import { dropDatabaseOf, failWrites, sqlBeside } from '../harness/test-ledger'
import { type Reply, type ScriptedUpstream, startScripted } from '../harness/upstream'
import { until } from '../harness/world'

/** The program is killed while a request is paid by a payment channel. */

type Network = Awaited<ReturnType<typeof startNetwork>>
let networks: Record<'usdc' | 'usdg', Network>
let upstream: ScriptedUpstream
beforeAll(async () => {
  upstream = await startScripted()
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

for (const [state, answer, left] of [
  ['reserved', () => {}, { charged_atomic: '5000', reserved_atomic: '10000' }],
  [
    'charged, and its answer not ended,',
    (reply: Reply) => {
      reply.head(200, { 'content-type': 'text/event-stream' })
      reply.chunk('data: 1\n\n')
    },
    { charged_atomic: '10000', reserved_atomic: null },
  ],
] as const)
  test(`a voucher that was ${state} at a kill pays once, and gets its answer after the next start`, async () => {
    const dataDir = mkdtempSync(join(tmpdir(), 'turnpike-channel-'))
    const { usdc, usdg } = networks
    const urls = { usdc: usdc.tap.url, usdg: usdg.tap.url, upstream: upstream.url.origin }
    const text = configText(urls, merchant(upstream.url.origin))
    let serving = await serve(dataDir, text)
    const url = () => `${serving.url}/m/one/item`
    // A channel of its own.
    const config = { salt: keccak256(stringToBytes(state)) }
    const pay = (headers: Record<string, string>) => fetch(url(), { headers })
    try {
      await until('channels are offered', async () =>
        Boolean(channelOffer((await ask(url())).whole, 'eip155:8453')),
      )
      const deposited = await pay(
        await signChannel(url(), { kind: 'deposit', amount: 50_000n, config }),
      )
      expect(deposited.status).toBe(200)
      const credential = await signChannel(url(), { base: 5_000n, config })
      const database = sqlBeside(join(dataDir, 'data'))
      // A stream counts as delivered soon after its first chunk: the kill comes before that is written.
      const mend = failWrites(database, 'UPDATE', 'payments')
      const asked = Promise.withResolvers<void>()
      upstream.script = (_, reply) => {
        asked.resolve()
        answer(reply)
      }
      const lost = pay(credential)
        .then((response) => response.text())
        .catch(() => 'lost')
      await asked.promise
      const row = () =>
        database.query<Record<string, unknown>>('SELECT * FROM channels').all()[0] ?? {}
      const isLeft = () => Object.entries(left).every(([name, value]) => row()[name] === value)
      await until(`it is ${state}`, isLeft)
      await serving.kill()
      expect(await lost).toBe('lost')
      expect(isLeft()).toBe(true)
      mend()
      upstream.script = undefined
      serving = await serve(dataDir, text)
      expect(row()).toMatchObject({ charged_atomic: left.charged_atomic, reserved_id: null })
      let again = await pay(credential)
      await until('the network is ready', async () => {
        if (again.status === 503) again = await pay(credential)
        return again.status !== 503
      })
      expect(again.status).toBe(200)
      expect((await pay(credential)).status).toBe(402)
      expect(row()).toMatchObject({ charged_atomic: '10000', reserved_id: null })
    } finally {
      upstream.script = undefined
      await serving.kill()
      await dropDatabaseOf(join(dataDir, 'data'))
      rmSync(dataDir, { recursive: true, force: true })
    }
  })
