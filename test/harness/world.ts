import type { NetworkConfig } from '../../src/config/Config'
import type { Chain } from '../../src/demo/chains'
import { startWorld, type World } from '../../src/demo/world'
import { createLog } from '../../src/log'
import { leaseChain, returnChain } from './lease'
import { dropOf, isPostgres, openTestServer } from './test-ledger'

/** The shipped configuration on local chains, on free ports, and every line that it logged. */
export type TestWorld = World & { url: string; logged: string[] }

/**
 * `edit` changes the text of merchants.toml before it is parsed. `exchange` adds the Uniswap pools,
 * stock tokens and feeds of `[stock]`.
 */
export async function testWorld(
  options: {
    edit?: (text: string) => string
    now?: () => number
    exchange?: boolean
    baseUrl?: string
  } = {},
): Promise<TestWorld> {
  const file = `${import.meta.dir}/../../merchants.toml`
  const shipped = await Bun.file(file).text()
  const logged: string[] = []
  const log = createLog({ write: (line) => void logged.push(line), pretty: false })
  const world = await startWorld({
    text: options.edit?.(shipped) ?? shipped,
    file: 'merchants.toml',
    log,
    port: 0,
    chainOf: leaseOf,
    exchange: options.exchange === true,
    marketTimeoutMs: 60_000,
    ...(isPostgres && { openServer: openTestServer }),
    ...(options.now === undefined ? {} : { now: options.now }),
    ...(options.baseUrl === undefined ? {} : { baseUrl: options.baseUrl }),
  })
  return {
    ...world,
    url: world.app.url,
    logged,
    async stop() {
      const drop = dropOf(world.dataDir)
      await world.stop()
      await drop()
    },
  }
}

async function leaseOf(network: NetworkConfig): Promise<Chain> {
  const chain = await leaseChain(network)
  return { ...chain, stop: () => returnChain(chain) }
}

/**
 * Sends a credential again while an earlier request with it is in progress: its row is seen before it
 * is on the disk, and until then the request has not ended.
 */
export async function whenFree(send: () => Promise<Response>): Promise<Response> {
  let response = await send()
  await until('the money is free', async () => {
    if (response.status === 409) response = await send()
    return response.status !== 409
  })
  return response
}

/**
 * Waits until a condition holds; fails after two minutes with what was waited for. The pauses leave
 * the processor to the processes that are waited for: chains, browsers, other tests. They are four
 * times as long as the condition takes, so that a request in it cannot keep a chain busy.
 */
export async function until(
  what: string,
  condition: () => boolean | Promise<boolean>,
): Promise<void> {
  const deadline = performance.now() + 120_000
  for (;;) {
    const startedAt = performance.now()
    if (await condition()) return
    const now = performance.now()
    if (now > deadline) throw new Error(`waited in vain until ${what}`)
    await Bun.sleep(Math.min(25, Math.max(2, 4 * (now - startedAt))))
  }
}
