import { afterAll, beforeAll, expect, test } from 'bun:test'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { balanceOf } from '../../src/demo/chains'
import { units } from '../harness/meter'
import { type Serving, serve } from '../harness/serving'
import { networkOf, startNetwork, type startTap } from '../harness/settlement'
import { configText, seller, startUpstream, type Upstream } from '../harness/target'
import { dropDatabaseOf, sqlBeside } from '../harness/test-ledger'
import { signUpto } from '../harness/upto'
import { body, costOf, event, json, usage } from '../harness/upto-shop'
import { until } from '../harness/world'

/** The program is killed while it sells by the x402 scheme `upto`. */

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
slug = "model"
upstream = "${url}"
allow_private = true
networks = ["eip155:8453"]
new_streams = "passed"
[[merchants.routes]]
path = "/chat"
methods = ["POST"]
price = "0.05"
upstream_path = "/v1/chat/completions"
[merchants.routes.meter]
preset = "openai"
base = "0.0005"
${units}
`
const text = () => {
  const urls = {
    usdc: networks.usdc.tap.url,
    usdg: networks.usdg.tap.url,
    upstream: upstream.url,
  }
  return configText(urls, merchant(upstream.url))
}

type Died = {
  serving: Serving
  credential: Record<string, string>
  rows(sql: string): Record<string, unknown>[]
  /** What the seller has got since the start. */
  received(): Promise<bigint>
  /** Requests that the upstream got. */
  asked(): number
  pay(): Promise<Response>
}

type Kind = 'whole' | 'stream'
const isStream = (kind: Kind) => kind === 'stream'

function answer(kind: Kind): Response {
  if (!isStream(kind)) return new Response(usage(7, 20), { headers: json })
  const text = event('{"n":1}') + event(usage(7, 20))
  return new Response(text, { headers: { 'content-type': 'text/event-stream' } })
}

/**
 * Buys, kills the program at the moment that `arm` calls `dead`, starts it again, and checks. `arm`
 * gets to know when the answer was made.
 */
async function dying(
  kind: Kind,
  arm: (
    tap: ReturnType<typeof startTap>,
    dead: () => void,
  ) => { onAsked?: () => Response | Promise<Response> | undefined },
  check: (died: Died) => Promise<void>,
): Promise<void> {
  const dataDir = mkdtempSync(join(tmpdir(), 'turnpike-upto-'))
  const { chain, tap } = networks.usdc
  const token = networkOf(chain.url, 'usdc').asset.address
  const held = await balanceOf(chain, token, seller)
  const dead = Promise.withResolvers<void>()
  upstream.requests.length = 0
  let serving = await serve(dataDir, text())
  const url = () => `${serving.url}/m/model/chat`
  const init = { method: 'POST', headers: json, body }
  try {
    const credential = await signUpto(url(), init)
    const pay = () => fetch(url(), { ...init, headers: { ...json, ...credential } })
    const armed = arm(tap, dead.resolve)
    upstream.answer = async () => (await armed.onAsked?.()) ?? answer(kind)
    const lost = pay().then(
      (response) => response.text().catch(() => 'lost'),
      () => 'lost',
    )
    await dead.promise
    await serving.kill()
    const got = await lost
    if (!isStream(kind)) expect(got).toBe('lost')
    tap.intercept = undefined
    upstream.answer = () => answer(kind)
    serving = await serve(dataDir, text())
    const database = sqlBeside(join(dataDir, 'data'), { isReader: true })
    const rows = (sql: string) => database.query<Record<string, unknown>>(sql).all()
    await check({
      serving,
      credential,
      rows,
      received: async () => (await balanceOf(chain, token, seller)) - held,
      asked: () => upstream.requests.length,
      async pay() {
        let response = await pay()
        await until('it is decided', async () => {
          if (response.status === 503 || response.status === 409) response = await pay()
          return response.status !== 503 && response.status !== 409
        })
        return response
      },
    })
  } finally {
    tap.intercept = undefined
    upstream.answer = undefined
    await serving.kill()
    await dropDatabaseOf(join(dataDir, 'data'))
    rmSync(dataDir, { recursive: true, force: true })
  }
}

const stateOf = (rows: Died['rows']) => rows('SELECT state FROM authorizations')

test('attack: kill -9 while the upstream works: the authorization is void, and nothing is charged', async () => {
  const arm = (_: unknown, dead: () => void) => ({
    onAsked: () => {
      dead()
      return new Promise<Response>(() => {})
    },
  })
  await dying('whole', arm, async ({ rows, pay, received, asked }) => {
    await until('it is void', () => Bun.deepEquals(stateOf(rows), [{ state: 'void' }]))
    expect((await pay()).status).toBe(402)
    expect([await received(), asked()]).toEqual([0n, 1])
    expect(rows('SELECT id FROM payments')).toEqual([])
  })
})

test('attack: kill -9 in the middle of a stream: the authorization is void, and nothing is charged', async () => {
  const arm = (_: unknown, dead: () => void) => ({
    onAsked: () => {
      const source = new ReadableStream({
        async pull(controller) {
          controller.enqueue(new TextEncoder().encode(event('{"n":1}')))
          dead()
          await new Promise(() => {})
        },
      })
      return new Response(source, { headers: { 'content-type': 'text/event-stream' } })
    },
  })
  await dying('stream', arm, async ({ rows, pay, received, asked }) => {
    await until('it is void', () => Bun.deepEquals(stateOf(rows), [{ state: 'void' }]))
    expect((await pay()).status).toBe(402)
    expect([await received(), asked()]).toEqual([0n, 1])
  })
})

/** Moments after the charge was stored. */
const deaths: Record<string, Parameters<typeof dying>[1]> = {
  'before its charge is simulated': (tap, dead) => {
    let isMade = false
    tap.intercept = ({ method }) => {
      if (!isMade || method !== 'eth_call') return undefined
      dead()
      return new Promise(() => {})
    }
    return {
      onAsked: () => {
        isMade = true
        return undefined
      },
    }
  },
  'before the node has its transaction': (tap, dead) => {
    tap.intercept = ({ method }) => {
      if (!method.startsWith('eth_sendRawTransaction')) return undefined
      dead()
      return new Promise(() => {})
    }
    return {}
  },
  'after the node has it, before we know': (tap, dead) => {
    tap.intercept = async ({ method }, forward) => {
      if (!method.startsWith('eth_sendRawTransaction')) return undefined
      await forward()
      dead()
      return new Promise(() => {})
    }
    return {}
  },
}

for (const kind of ['whole', 'stream'] as const)
  for (const [when, arm] of Object.entries(deaths))
    test(`attack: kill -9 ${when}: a ${kind} answer is charged once and delivered once`, async () => {
      await dying(kind, arm, async ({ rows, pay, received, asked }) => {
        const cost = BigInt(costOf(7, 20))
        if (kind === 'stream') {
          await until('it is settled', async () => (await received()) === cost)
          expect((await pay()).status).toBe(402)
        } else {
          const [first, second] = await Promise.all([pay(), pay()])
          expect([first.status, second.status].sort()).toEqual([200, 402])
          expect((await pay()).status).toBe(402)
        }
        expect(await received()).toBe(cost)
        expect(stateOf(rows)).toEqual([{ state: 'sent' }])
        await until('it is recorded', () =>
          Bun.deepEquals(rows('SELECT state, delivery, attempts, amount_atomic FROM payments'), [
            { state: 'confirmed', delivery: 'delivered', attempts: 1, amount_atomic: String(cost) },
          ]),
        )
        expect(asked()).toBe(kind === 'stream' ? 1 : 2)
      })
    })
