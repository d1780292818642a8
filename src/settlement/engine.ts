import { createGroup } from '../../db/group'
import { createJobs } from '../../db/jobs'
import { createRecent } from '../../db/recent'
import type { GasProduct } from '../../db/schema'
import { createClient } from '../chain/client'
import { announced, createClock } from '../chain/clock'
import { createHead, observe } from '../chain/head'
import { createHeads } from '../chain/heads'
import type { Block } from '../chain/receipt'
import type { NetworkConfig } from '../config/Config'
import * as Address from '../protocol/Address'
import type * as Network from '../protocol/Network'
import { createBell } from './bell'
import { tellErrands, tellPayments } from './changes'
import * as ChainClock from './clock'
import type { ChainState, Context, Relayer, SettlementOptions } from './context'
import { createFailures } from './failures'
import * as Foreign from './foreign'
import * as Health from './health'
import { createMetrics, type Sources, silent } from './metrics'
import { pump, submit } from './queue'
import * as Recover from './recover'
import * as Relayers from './relayer'
import * as Reorg from './reorg'
import { createShown } from './shown'
import { createStore } from './store'
import { createTrust } from './trust'

/** Per attempt; a settlement waits longer than several of them. */
const rpcTimeoutMs = 8_000

/** Everything that settlement shares. No I/O but the database. */
export function createContext(options: SettlementOptions, signal: AbortSignal): Context {
  const { db, now, log } = options
  if (options.relayerKeys.length === 0) throw new Error('settlement needs a relayer key')
  const chains = new Map<Network.Id, ChainState>(
    options.networks.map((network) => [network.id, createChainState(network, options)]),
  )
  const bell = () => createBell((error) => log('settlement-fault', { error }))
  const [paymentBell, errandBell] = [bell(), bell()]
  const context: Context = {
    db,
    store: tellPayments(createStore(db), paymentBell),
    jobs: tellErrands(createJobs(db), errandBell),
    paymentBell,
    errandBell,
    recent: createRecent(db),
    group: createGroup(db),
    metrics: createMetrics(
      options.meter ?? silent,
      sourcesOf(() => context),
    ),
    failures: createFailures(now, options.payerFailuresMax),
    trust: createTrust(now),
    chains,
    now,
    log,
    jobProofMs: options.jobProofMs ?? 60_000,
    monotonic: options.monotonic ?? now,
    clockSkewMaxMs: options.clockSkewMaxMs ?? 60_000,
    payoutExclusive: options.payoutExclusive ?? (() => false),
    isOwnPayee: options.isOwnPayee ?? (() => false),
    shown: createShown(),
    looked: new Map(),
    confirmTwiceAbove: options.confirmTwiceAbove ?? (() => 10_000_000n),
    running: new Map(),
    driving: new Set(),
    isStopping: false,
    inFlight: new Map(),
    simulating: new Set(),
    requestIds: new Map(),
    beginning: new Map(),
    begun: new Set(),
    submit: (chain, order) => submit(context, chain, order),
    pump: (chain) => pump(context, chain),
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
  const chains = [...context.chains.values()]
  const first = chains.map((chain) => Health.check(context, chain))
  const ready = Promise.all(first).then(() => undefined)
  let isRecovered = false
  const sweep = async () => {
    if (!isRecovered) return
    await Recover.recover(context, true)
    await Recover.expire(context)
    for (const chain of chains) {
      for (const relayer of chain.relayers) Recover.closeGap(context, chain, relayer)
    }
  }
  const watch = chains.map(async (chain, index) => {
    await first[index]
    for (;;) {
      await chain.heads.waitFork(checkAfterMs(chain, checkMs), context.signal)
      if (context.signal.aborted) return
      await Health.check(context, chain)
      try {
        const isReorganised = chain.health.ready && (await Reorg.check(context, chain))
        if (context.signal.aborted) return
        if (index === 0 || isReorganised) await sweep()
        if (chain.health.ready && isRecovered) Foreign.revive(context, chain)
      } catch (error) {
        context.log('settlement-fault', { network: chain.network.id, error })
      }
    }
  })
  return {
    ready,
    async recover() {
      await ready
      isRecovered = true
      await Promise.all(chains.map((chain) => lookBack(context, chain)))
      await Recover.recover(context, false)
    },
    stopped: Promise.all(watch).then(() => undefined),
  }
}

/**
 * Time to the next look at a network. One that cannot settle is what an operator waits for; a relayer
 * without gas among others that work is not.
 */
export function checkAfterMs(
  chain: Pick<ChainState, 'health' | 'relayers'>,
  checkMs: number,
): number {
  return Relayers.isReady(chain) ? checkMs : Math.min(checkMs, 2_000)
}

/** What was confirmed may have been taken away while nobody looked. Never rejects. */
async function lookBack(context: Context, chain: ChainState): Promise<void> {
  if (!chain.health.ready) return
  try {
    await Reorg.check(context, chain)
  } catch (error) {
    context.log('settlement-fault', { network: chain.network.id, error })
  }
}

/** What the figures are read from, when somebody asks. */
function sourcesOf(context: () => Context): Sources {
  return {
    networks: () => {
      const { db, chains, store, now } = context()
      const isWritable = db.storage.fault() === undefined
      return [...chains.values()].map(({ network, client, relayers, heads, ...chain }) => ({
        network: network.id,
        clockSkewMs: ChainClock.skewOf(context(), chain),
        calls: client.counts(),
        faults: client.faults(),
        ready: isWritable && Relayers.isReady({ health: chain.health, relayers }),
        newHeads: heads.isLive(),
        relayers: relayers.map((relayer) => ({
          relayer: relayer.address,
          paused: Relayers.pausedBy(relayer),
          inFlight: relayer.open,
          balanceWei: relayer.balanceWei,
        })),
        gas: Object.entries(network.gasPerDayWei).map(([product, budgetWei]) => ({
          product,
          spentWei: store.gasSpentOn(network.id, product as GasProduct, now()),
          budgetWei,
        })),
      }))
    },
    pending: () => {
      const counts = new Map<string, number>()
      for (const [id] of context().chains) counts.set(id, 0)
      for (const { state, transfer } of context().store.unfinishedPayments()) {
        if (state !== 'broadcast') continue
        counts.set(transfer.network, (counts.get(transfer.network) ?? 0) + 1)
      }
      return counts
    },
  }
}

type ChainOptions = Pick<
  SettlementOptions,
  | 'log'
  | 'relayerKeys'
  | 'deskKey'
  | 'deskNetwork'
  | 'walletFactories'
  | 'blockTimeMs'
  | 'now'
  | 'monotonic'
>

function createChainState(network: NetworkConfig, options: ChainOptions): ChainState {
  const { log } = options
  const head = createHead(options.blockTimeMs)
  const client = createClient({ urls: network.rpcUrls, timeoutMs: rpcTimeoutMs, log })
  const monotonic = options.monotonic ?? options.now
  const clock = createClock()
  const onBlock = (block: Block) => {
    observe(head, block)
    announced(clock, block, monotonic())
  }
  return {
    network,
    client,
    head,
    heads: createHeads({ url: network.wsUrl, onBlock, log }),
    relayers: createRelayers(network, options),
    health: { ready: false, reason: 'not checked yet', checks: 0, others: 0 },
    clock,
    logSpans: new Map(),
    hasSync: true,
    hasOverrides: true,
    readsCode: true,
    queue: [],
    jobs: [],
    arrival: undefined,
    collecting: undefined,
    isDue: false,
    codes: new Map(),
    plain: new Map(),
    isProbing: false,
    unshared: new Set(),
    burnt: new Map(),
    factories: new Set(options.walletFactories?.flatMap((each) => Address.parse(each) ?? [])),
    gasUsed: new Map(),
    loneGas: new Map(),
    watch: Reorg.createWatch(),
  }
}

function createRelayers(
  { id }: NetworkConfig,
  {
    relayerKeys,
    deskKey,
    deskNetwork = id,
  }: Pick<SettlementOptions, 'relayerKeys' | 'deskKey' | 'deskNetwork'>,
): readonly Relayer[] {
  const relayers = relayerKeys.map((key) => Relayers.createRelayer(key, false))
  if (deskKey === undefined || deskNetwork !== id) return relayers
  const desk = Relayers.createRelayer(deskKey, true)
  // Two relayers of one account would give its nonces out twice.
  return relayers.some(({ address }) => address === desk.address) ? relayers : [...relayers, desk]
}
