import { createClient } from '../chain/client'
import { createHead } from '../chain/head'
import type { NetworkConfig } from '../config/Config'
import type * as Network from '../protocol/Network'
import { type Context, pause, type Rail, type SettlementOptions } from './context'
import * as Health from './health'
import { createLane } from './lane'
import * as Recover from './recover'
import * as Reorg from './reorg'
import { createStore } from './store'

/** Per attempt; a settlement waits longer than several of them. */
const rpcTimeoutMs = 8_000

/** Everything that settlement shares. No I/O but the database. */
export function createContext(options: SettlementOptions, signal: AbortSignal): Context {
  const { db, now, log } = options
  const [key] = options.relayerKeys
  if (!key) throw new Error('settlement needs a relayer key')
  const rails = new Map<Network.Id, Rail>(
    options.networks.map((network) => [network.id, createRail(network, key, options)]),
  )
  const context: Context = {
    db,
    store: createStore(db),
    rails,
    now,
    log,
    running: new Map(),
    inFlight: new Map(),
    signal,
  }
  Recover.discardUnsent(context)
  Recover.raiseFloors(context)
  return context
}

export type Engine = {
  ready: Promise<void>
  recover(): Promise<void>
  /** Resolves after the signal, when no check runs any more. */
  stopped: Promise<void>
}

/**
 * Looks at every network at once and then at intervals; each look also takes up what nobody drives.
 */
export function start(context: Context, checkMs: number): Engine {
  const rails = [...context.rails.values()]
  const first = rails.map((rail) => Health.check(context, rail))
  const ready = Promise.all(first).then(() => undefined)
  let isRecovered = false
  const sweep = async () => {
    if (!isRecovered) return
    await Recover.recover(context, true)
    await Recover.expire(context)
    for (const rail of rails) Recover.closeGap(context, rail)
  }
  const watch = rails.map(async (rail, index) => {
    await first[index]
    for (;;) {
      // A network that cannot settle is what an operator waits for.
      await pause(rail.health.ready ? checkMs : Math.min(checkMs, 2_000), context.signal)
      if (context.signal.aborted) return
      await Health.check(context, rail)
      try {
        const isReorganised = rail.health.ready && (await Reorg.check(context, rail))
        if (!context.signal.aborted && (index === 0 || isReorganised)) await sweep()
      } catch (error) {
        context.log('settlement-fault', { network: rail.network.id, error })
      }
    }
  })
  return {
    ready,
    async recover() {
      await ready
      isRecovered = true
      await Recover.recover(context, false)
    },
    stopped: Promise.all(watch).then(() => undefined),
  }
}

function createRail(
  network: NetworkConfig,
  key: Uint8Array,
  { log }: Pick<SettlementOptions, 'log'>,
): Rail {
  const client = createClient({ urls: network.rpcUrls, timeoutMs: rpcTimeoutMs, log })
  return {
    network,
    client,
    head: createHead(),
    lane: createLane(key),
    health: { ready: false, reason: 'not checked yet', balanceWei: undefined, checks: 0 },
    codes: new Map(),
    included: new Map(),
  }
}
