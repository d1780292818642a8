import type { Address } from 'viem'
import type { Ledger } from '../../db/Ledger'
import { idAt } from '../../db/sales'
import { createClient } from '../chain/client'
import { announced, createClock } from '../chain/clock'
import { createHead, observeBlock } from '../chain/head'
import { createHeads } from '../chain/heads'
import type { Block } from '../chain/receipt'
import type { NetworkConfig } from '../config/Config'
import type { WriteEvent } from '../log'
import { parse as parseAddress } from '../protocol/Address'
import type * as Network from '../protocol/Network'
import { createChannels } from './channels/state'
import * as Recover from './repair/recover'
import * as Reorg from './repair/reorg'
import { restore } from './repair/restore'
import { pump } from './send/queue'
import { isReady } from './send/relayer'
import { registerGauges } from './state/gauges'
import * as Health from './state/health'
import * as Lanes from './state/lanes'
import { createMetrics, type Meter } from './state/metrics'
import { keeps } from './state/ownership'
import { createPayers } from './state/payers'
import {
  about,
  type ChainState,
  type Context,
  createObserved,
  createProgress,
  createRelayer,
  type Policy,
  type Relayer,
} from './state/state'
import { createEvents, pause } from './state/wait'
import { type CreditLimits, createCredit } from './upto/credit'

/** Timeout of one attempt, ms; a settlement waits for several of them. */
const rpcTimeoutMsDefault = 8_000

export type SettlementOptions = { [Name in keyof Policy]?: Policy[Name] | undefined } & {
  ledger: Ledger
  networks: readonly NetworkConfig[]
  /** Each is a relayer on every network. */
  relayerKeys: readonly Uint8Array[]
  /**
   * The stock desk's account; the first relayer by default. Another key is a relayer of its own.
   */
  deskKey?: Uint8Array | undefined
  /** The network of the desk; by default every network. */
  deskNetwork?: Network.Id | undefined
  /** Unix ms. */
  now: () => number
  /** A clock in ms that never decreases: it shows that `now` was set. By default `now` itself. */
  monotonic?: (() => number) | undefined
  log: WriteEvent
  /** Random bytes for payment ids; by default the system's. */
  random?: (length: number) => Uint8Array
  /** Where events are counted. */
  meter: Meter
  /**
   * Factories that may deploy the wallet of a payer in its first payment (ERC-6492); by default
   * none. The payer chooses the calldata for the factory, and we pay the gas.
   */
  walletFactories?: readonly Address[]
  /** Transactions that may fail on chain for one payer in ten minutes; 5 by default. */
  payerFailuresMax?: number | undefined
  /** Signs claims and refunds of payment channels; undefined: there are none. */
  receiverAuthorizerKey?: Uint8Array | undefined
  /** What a merchant may lose by `upto`; undefined: without limit, which is the default. */
  creditOf?: ((merchant: string) => CreditLimits | undefined) | undefined
  /** Time between two health checks of a network, ms. */
  checkMs?: number
  /** Timeout of one call of a node, ms; 8 s by default. */
  rpcTimeoutMs?: number | undefined
  /** Assumed block time of a network before its blocks are known; a second by default. */
  blockTimeMs?: number | undefined
}

/** The parts that the stages share. No I/O except the ledger. */
export async function createContext(
  options: SettlementOptions,
  signal: AbortSignal,
): Promise<Context> {
  const { ledger, now, log } = options
  if (options.relayerKeys.length === 0) throw new Error('settlement needs a relayer key')
  const events = {
    payments: createEvents((error, id) => log('settlement-fault', { ...about({ id }), error })),
    jobs: createEvents((error) => log('settlement-fault', { error })),
  }
  ledger.onChange({
    payment: events.payments.emit,
    job: events.jobs.emit,
    anything() {
      events.payments.wakeAll()
      events.jobs.wakeAll()
    },
  })
  const chains = new Map<Network.Id, ChainState>(
    options.networks.map((network) => [network.id, createChainState(network, options)]),
  )
  const monotonic = options.monotonic ?? now
  const random = options.random ?? ((length) => crypto.getRandomValues(new Uint8Array(length)))
  const { authorizations, lanes } = ledger
  const limitsOf = options.creditOf ?? (() => undefined)
  const credit = createCredit({ ledger: authorizations, lanes, limitsOf, now, log })
  const context: Context = {
    ledger,
    chains,
    payers: createPayers(now, options.payerFailuresMax, ledger.failures),
    ceilings: new Map(),
    credit,
    channels: createChannels(options.receiverAuthorizerKey),
    unsettled: new Map(),
    // It grows with time, so that inserts stay local in the index.
    createId: () => idAt(now()) + random(10).toHex(),
    progress: createProgress(signal),
    policy: {
      jobProofMs: options.jobProofMs ?? 60_000,
      resendMs: options.resendMs ?? 2_000,
      clockSkewMaxMs: options.clockSkewMaxMs ?? 60_000,
      confirmTwiceAbove: options.confirmTwiceAbove ?? (() => 10_000_000n),
      chargeAttemptMs: options.chargeAttemptMs ?? 60_000,
      unsettledMax: options.unsettledMax ?? (() => 1_000_000n),
      isPaused: options.isPaused ?? (() => false),
      payoutExclusive: options.payoutExclusive ?? (() => false),
      isOwnPayee: options.isOwnPayee ?? (() => false),
    },
    events,
    metrics: createMetrics(options.meter),
    now,
    monotonic,
    log,
  }
  registerGauges(options.meter, context)
  for (const chain of chains.values()) chain.room = () => pump(context, chain)
  await Recover.raiseFloors(context)
  return context
}

/** Checks that run beside the payments. */
export type Background = ReturnType<typeof startBackground>

/**
 * Checks every network at once and then at intervals, `checkMs` apart. Each check also resumes what is
 * unfinished and not running. `resumeCharges`: continues the charges that no request is working on.
 */
export function startBackground(
  context: Context,
  checkMs: number,
  resumeCharges: (isStart: boolean) => Promise<void>,
) {
  const { signal } = context.progress
  const chains = [...context.chains.values()]
  const first = chains.map((chain) => checkAndPump(context, chain))
  const ready = Promise.all(first).then(() => undefined)
  // Before this process has accounts no network is ready, and checks would repeat in haste.
  const looked = Promise.withResolvers<void>()
  if (!context.ledger.lanes.isShared) looked.resolve()
  signal.addEventListener('abort', () => looked.resolve())
  const checked: Recover.Checked = new Map()
  let isRecovered = false
  const sweep = async () => {
    if (!isRecovered) return
    await Recover.recover(context, checked)
    await Recover.expire(context)
    for (const chain of chains) {
      for (const relayer of chain.relayers)
        if (relayer.isHeld) await Recover.closeGap(context, chain, relayer)
    }
  }
  const watch = chains.map(async (chain, index) => {
    await first[index]
    await looked.promise
    for (;;) {
      await chain.heads.waitFork(checkAfterMs(chain, checkMs), signal)
      if (signal.aborted) return
      await checkAndPump(context, chain)
      try {
        const isKeeper = keeps(context, chain)
        const isReorganised =
          chain.health.ready && isKeeper && (await Reorg.checkReorg(context, chain))
        if (signal.aborted) return
        if (index === 0 || isReorganised) await sweep()
        if (chain.health.ready && isRecovered && isKeeper) await restore(context, chain)
      } catch (error) {
        context.log('settlement-fault', { network: chain.network.id, error })
      }
    }
  })
  const fault = (error: unknown) => context.log('settlement-fault', { error })
  /** Apart from the sweep: it asks nodes about each open payment, and a charge has little time. */
  const watchCharges = async () => {
    await looked.promise
    for (;;) {
      await pause(Math.min(checkMs, ...chains.map((each) => checkAfterMs(each, checkMs))), signal)
      if (signal.aborted) return
      if (isRecovered) await resumeCharges(false).catch(fault)
    }
  }
  /** Settles what the previous holder had metered, and ends what it only forwarded. */
  const onTaken = () => {
    if (isRecovered) resumeCharges(false).catch(fault)
  }
  return {
    /** Resolves after the first check of every network, ready or not. */
    ready,
    /** Resumes what an earlier process left; resolves when everything was checked once. */
    async recover(): Promise<void> {
      await ready
      await Lanes.startLanes(context, onTaken).finally(looked.resolve)
      isRecovered = true
      await Promise.all(chains.map((chain) => recheckBlocks(context, chain)))
      await Promise.all([Recover.recover(context), resumeCharges(true)])
    },
    /** Resolves after the signal, when no check is running. */
    stopped: Promise.all([...watch, watchCharges()]).then(() => undefined),
  }
}

/** Checks the network, then assigns waiting payments to the relayers. Never rejects. */
async function checkAndPump(context: Context, chain: ChainState): Promise<void> {
  await Health.checkHealth(context, chain)
  pump(context, chain)
}

/**
 * Ms to the next check of a network. Shorter for one that cannot settle, because an operator waits.
 * A relayer without gas among others that work is not urgent.
 */
export function checkAfterMs(
  chain: Pick<ChainState, 'health' | 'relayers'>,
  checkMs: number,
): number {
  return isReady(chain) ? checkMs : Math.min(checkMs, 2_000)
}

/**
 * A reorganisation may have removed a confirmed payment while the program was off. Never rejects.
 */
async function recheckBlocks(context: Context, chain: ChainState): Promise<void> {
  if (!chain.health.ready || !keeps(context, chain)) return
  try {
    await Reorg.checkReorg(context, chain)
  } catch (error) {
    context.log('settlement-fault', { network: chain.network.id, error })
  }
}

function createChainState(network: NetworkConfig, options: SettlementOptions): ChainState {
  const { log } = options
  const head = createHead(options.blockTimeMs)
  const timeoutMs = options.rpcTimeoutMs ?? rpcTimeoutMsDefault
  const client = createClient({ urls: network.rpcUrls, timeoutMs, log })
  const monotonic = options.monotonic ?? options.now
  const clock = createClock()
  const onBlock = (block: Block) => {
    observeBlock(head, block)
    announced(clock, block, monotonic())
  }
  return {
    network,
    client,
    head,
    heads: createHeads({ url: network.wsUrl, onBlock, log }),
    clock,
    relayers: createRelayers(network, options),
    factories: new Set(options.walletFactories?.flatMap((each) => parseAddress(each) ?? [])),
    ...createObserved(options.now, options.ledger.lanes.isShared),
  }
}

function createRelayers(
  { id }: NetworkConfig,
  { relayerKeys, deskKey, deskNetwork = id, ledger }: SettlementOptions,
): readonly Relayer[] {
  const isHeld = !ledger.lanes.isShared
  const relayers = relayerKeys.map((key) => createRelayer(key, { isReserved: false, isHeld }))
  if (deskKey === undefined || deskNetwork !== id) return relayers
  const desk = createRelayer(deskKey, { isReserved: true, isHeld })
  // Two relayers of one account would use its nonces twice.
  return relayers.some(({ address }) => address === desk.address) ? relayers : [...relayers, desk]
}
