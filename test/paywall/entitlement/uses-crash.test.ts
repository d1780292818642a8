import { afterAll, beforeAll, expect, test } from 'bun:test'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { serve } from '../../harness/serving'
import { startNetwork } from '../../harness/settlement'
import { buy } from '../../harness/shop'
import { signedIn, signInHeader } from '../../harness/sign-in'
import { configText, startUpstream, type Upstream } from '../../harness/target'
import { dropDatabaseOf } from '../../harness/test-ledger'
import { until } from '../../harness/world'

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
[[merchants]]
slug = "club"
upstream = "${url}"
allow_private = true
networks = ["eip155:8453"]
[[merchants.routes]]
path = "/data"
price = "0.005"
pass = { price = "0.05", period = "24h", requests = 1 }
`

test('a use of a program that is killed before its answer is given back, and its sign-in is spent', async () => {
  const dataDir = mkdtempSync(join(tmpdir(), 'turnpike-uses-'))
  const urls = {
    usdc: networks.usdc.tap.url,
    usdg: networks.usdg.tap.url,
    upstream: upstream.url,
  }
  const text = configText(urls, merchant(upstream.url))
  let serving = await serve(dataDir, text)
  const url = () => `${serving.url}/m/club/data`
  const send = (headers: Record<string, string>) => fetch(url(), { headers })
  const signed = async () => signInHeader(await signedIn(url()))
  try {
    expect((await buy(`${url()}/pass`, { scheme: 'x402-eip3009' })).status).toBe(200)
    const asked = Promise.withResolvers<void>()
    upstream.answer = () => {
      asked.resolve()
      return new Promise(() => undefined)
    }
    const lost = await signed()
    const answer = send(lost).then(
      () => 'answered',
      () => 'lost',
    )
    await asked.promise
    // The only use is counted while the upstream works.
    const busy = await send(await signed())
    expect([busy.status, ((await busy.json()) as { reason: string }).reason]).toEqual([
      402,
      'entitlement_spent',
    ])
    await serving.kill()
    expect(await answer).toBe('lost')
    upstream.answer = undefined
    serving = await serve(dataDir, text)
    const replayed = await send(lost)
    expect([replayed.status, ((await replayed.json()) as { reason: string }).reason]).toEqual([
      402,
      'invalid_siwx_nonce',
    ])
    // With several gateways the others give it back, once they take this one for dead.
    await until('it is given back', async () => {
      const again = await send(await signed())
      return again.headers.get('payment-entitlement')?.startsWith('kind=pass, remaining=0') === true
    })
  } finally {
    await serving.kill()
    await dropDatabaseOf(join(dataDir, 'data'))
    rmSync(dataDir, { recursive: true, force: true })
  }
})
