import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { account } from '../../src/demo/accounts'
import { balanceOf } from '../../src/demo/chains'
import { ask } from '../harness/buyer'
import { serve } from '../harness/serving'
import { networkOf, startNetwork, type startTap } from '../harness/settlement'
import {
  configText,
  mppPermit,
  price,
  readers,
  seller,
  startUpstream,
  type Upstream,
  type Way,
  x402Usdc,
} from '../harness/target'
import { dropDatabaseOf, sqlBeside } from '../harness/test-ledger'
import { until } from '../harness/world'

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

const text = () =>
  configText({
    usdc: networks.usdc.tap.url,
    usdg: networks.usdg.tap.url,
    upstream: upstream.url,
  })
const buyer = account(1).local()
const path = '/m/a/get?x=1'

/** Repeats the request as a client does after a retryable answer. */
async function buy(url: string, headers: Record<string, string>): Promise<Response> {
  let response = await fetch(url + path, { headers })
  await until('it is settled', async () => {
    if (response.status === 503 || response.status === 409)
      response = await fetch(url + path, { headers })
    return response.status !== 503 && response.status !== 409
  })
  return response
}

/** The moment at which the process is killed. */
const deaths: Record<
  string,
  { tap?: (tap: ReturnType<typeof startTap>, dead: () => void) => void; inUpstream?: true }
> = {
  'after the write, before the node has the transaction': {
    tap: (tap, dead) => {
      tap.intercept = ({ method }) => {
        if (!method.startsWith('eth_sendRawTransaction')) return undefined
        dead()
        return new Promise(() => {})
      }
    },
  },
  'after the node has it, before we know': {
    tap: (tap, dead) => {
      tap.intercept = async ({ method }, forward) => {
        if (!method.startsWith('eth_sendRawTransaction')) return undefined
        await forward()
        dead()
        return new Promise(() => {})
      }
    },
  },
  'while the upstream works': { inUpstream: true },
}

describe('kill -9', () => {
  for (const way of [x402Usdc, mppPermit] as Way[]) {
    for (const [when, death] of Object.entries(deaths)) {
      test(`attack 37: ${when}, ${way.name}`, async () => {
        const dataDir = mkdtempSync(join(tmpdir(), 'turnpike-crash-'))
        const { chain, tap } = networks[way.side]
        const token = networkOf(chain.url, way.side).asset.address
        const held = await balanceOf(chain, token, seller)
        const dead = Promise.withResolvers<void>()
        upstream.requests.length = 0
        let serving = await serve(dataDir, text())
        try {
          const headers = await way.pay(await ask(serving.url + path), buyer)
          death.tap?.(tap, dead.resolve)
          if (death.inUpstream)
            upstream.answer = () => {
              dead.resolve()
              return new Promise(() => {})
            }
          const lost = fetch(serving.url + path, { headers }).catch(() => 'lost')
          await dead.promise
          await serving.kill()
          expect(await lost).toBe('lost')
          tap.intercept = undefined
          upstream.answer = undefined

          serving = await serve(dataDir, text())
          const answers = await Promise.all([buy(serving.url, headers), buy(serving.url, headers)])
          expect(answers.map(({ status }) => status).sort()).toEqual([200, 402])
          expect(await balanceOf(chain, token, seller)).toBe(held + price)
          const database = sqlBeside(join(dataDir, 'data'), { isReader: true })
          const payments = readers(database).payments()
          database.close()
          expect(payments).toHaveLength(1)
          const attempts = death.inUpstream ? 2 : 1
          expect(payments[0]).toMatchObject({ state: 'confirmed', delivery: 'delivered', attempts })
          expect(upstream.requests).toHaveLength(attempts)
        } finally {
          tap.intercept = undefined
          upstream.answer = undefined
          await serving.kill()
          await dropDatabaseOf(join(dataDir, 'data'))
          rmSync(dataDir, { recursive: true, force: true })
        }
      })
    }
  }
})
