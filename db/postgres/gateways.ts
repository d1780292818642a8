import type * as Network from '../../src/protocol/Network'
import type { Lane, LaneLedger, LaneListener } from '../LaneLedger'
import { keeper } from './fences'
import {
  createLanes,
  type Gateway,
  giveLane,
  type Held,
  keyOf,
  type LaneRow,
  laneOf,
  leave,
  readLanes,
  reap,
  register,
  type Seen,
  sign,
  takeLane,
} from './lane-table'
import type { Lines } from './line-pool'
import { createLoop, type Loop, type LoopOptions } from './loop'
import { noteLoss } from './loss'
import type { Json } from './rows'
import { isSteady, mayHaveChanged, type Times, usualTimes } from './signs'

type GatewaysOptions = {
  lines: Lines
  gateway: Gateway
  /** Unix ms. */
  now: () => number
  /** Milliseconds that never decrease. */
  monotonic: () => number
  on: {
    /** Others took this process for dead: it must end, and send nothing more. */
    fenced(reason: string): void
    /** Another gateway gave no sign for ten seconds. */
    reaped(id: string): void
    /**
     * After a failover the database lacks commits: this process must end, and send nothing more.
     * `lane`: of which it has found that; undefined when another gateway has found it.
     */
    wentBack(lane?: Lane): void
    /** A look at the lanes, or work on one, failed; the next beat repeats it. */
    fault(error: unknown): void
  }
  /** Tests shorten them, all by the same factor. */
  times?: Partial<Times> | undefined
}

export type Gateways = {
  id: string
  lanes: LaneLedger
  /**
   * The fence of a write for a lane, as the functions of the database take it. Undefined when this
   * process does not have the lane.
   */
  fenceOf(lane: Lane, nonce?: number): Json | undefined
  /** Whether the account is not configured here, and no living gateway is known to have it. */
  isUnconfigured(lane: Lane): boolean
  /** A write for the lane at this account nonce is acknowledged. */
  stored(lane: Lane, nonce: number): void
  /** How far the clock of this machine is ahead of the database's, ms, at the last beat. */
  skewMs(): number
  /** Whether this process has the duties of the network with the first id: only one has them. */
  isFirst(): boolean
  /** Other gateways that live. */
  others(): number
  /**
   * A write for a lane was refused that this process believed to have in this epoch: finds out why. A
   * refusal of an earlier epoch says nothing of the present one.
   */
  lost(lane: Lane, epoch: number): Promise<void>
  /** Something has changed, so look at the lanes now. */
  wake(): void
  /** The connection was lost, so the server may be another one that lacks the last commits. */
  reconnected(): void
  /** Gives the lanes back and leaves. */
  close(): Promise<void>
}

type State = {
  options: GatewaysOptions
  times: Times
  wanted: readonly Lane[]
  listener: LaneListener | undefined
  held: Map<string, Held>
  /** Keys of lanes that other living gateways hold. */
  ofOthers: Set<string>
  beatAt: number
  steadySince: number
  skewMs: number
  others: number
  /** When the connection was opened again. */
  reconnectedAt: number
  /** The end of the running look. */
  looking: Promise<void>
  /** Whether it takes no more lanes. */
  isRetired: boolean
  isOver: boolean
}

/** Registers this process. Rejects when the database cannot be written. */
export async function joinGateways(options: GatewaysOptions): Promise<Gateways> {
  const { monotonic } = options
  const state: State = {
    options,
    times: { ...usualTimes, ...options.times },
    wanted: [],
    listener: undefined,
    held: new Map(),
    ofOthers: new Set(),
    beatAt: monotonic(),
    steadySince: monotonic(),
    skewMs: 0,
    others: 0,
    reconnectedAt: Number.NEGATIVE_INFINITY,
    looking: Promise.resolve(),
    isRetired: false,
    isOver: false,
  }
  await options.lines.run('beat', (query) => register(query, options.gateway))
  await beat(state)
  // In a loop of its own: to take a lane may wait for a node, and the signs of life must continue.
  const beats = createLoop(loopOf(state, beat))
  const looks = createLoop(loopOf(state, look))
  return {
    id: options.gateway.id,
    lanes: {
      isShared: true,
      has: (lane) => state.held.has(keyOf(lane)),
      epochOf: (lane) => state.held.get(keyOf(lane))?.epoch,
      isAlone: () => state.others === 0,
      gateways: () => state.others + 1,
      isOfAnother: (lane) => state.ofOthers.has(keyOf(lane)),
      isFresh: () => monotonic() - state.beatAt < state.times.freshMs,
      async start(lanes, listener) {
        state.wanted = lanes
        state.listener = listener
        await options.lines.run('beat', (query) => createLanes(query, lanes))
        await look(state)
      },
      retire() {
        state.isRetired = true
      },
    },
    fenceOf(lane, nonce = -1) {
      const held = state.held.get(keyOf(lane))
      if (held === undefined) return undefined
      const { network, relayer = keeper } = lane
      const { epoch, next_nonce: floor } = held
      return { network, relayer, nonce, holder: options.gateway.id, epoch, floor }
    },
    isUnconfigured: (lane) => !isWanted(state, lane) && !state.ofOthers.has(keyOf(lane)),
    stored(lane, nonce) {
      const held = state.held.get(keyOf(lane))
      if (held) held.next_nonce = Math.max(held.next_nonce, nonce + 1)
    },
    skewMs: () => state.skewMs,
    isFirst() {
      // Sorted, because the files of two gateways may list the networks in different orders.
      const [network] = state.wanted.map((lane) => lane.network).toSorted()
      return network !== undefined && state.held.has(keyOf({ network, relayer: undefined }))
    },
    others: () => state.others,
    async lost(lane, epoch) {
      if (state.held.get(keyOf(lane))?.epoch === epoch) await look(state)
    },
    wake: looks.wake,
    reconnected() {
      state.reconnectedAt = monotonic()
    },
    close: () => close(state, [beats, looks]),
  }
}

function loopOf(state: State, work: (state: State) => Promise<void>): LoopOptions {
  return {
    work: () => work(state),
    everyMs: state.times.beatMs,
    isOver: () => state.isOver,
    fault: state.options.on.fault,
  }
}

/** One sign of life. A process that the others have removed ends. */
async function beat(state: State): Promise<void> {
  const { lines, gateway, now, monotonic } = state.options
  const askedAt = monotonic()
  const databaseAt = await lines.run('beat', (query) => sign(query, gateway))
  if (databaseAt === undefined) return fence(state, 'it gave no sign of life for ten seconds')
  const at = monotonic()
  if (at - state.beatAt > state.times.gapMs) state.steadySince = at
  // The sign was given after `askedAt`, so it is at least this fresh.
  state.beatAt = askedAt
  state.skewMs = Math.round(now() - (at - askedAt) / 2 - databaseAt)
}

function fence(state: State, reason: string): void {
  end(state, () => state.options.on.fenced(reason))
}

/** The process must end. */
function end(state: State, tell: () => void): void {
  if (state.isOver) return
  state.isOver = true
  state.held.clear()
  tell()
}

/** One look at a time: two could take a lane twice, which ends the epoch of the first take. */
function look(state: State): Promise<void> {
  const next = state.looking.then(() => lookOnce(state))
  state.looking = next.catch(() => undefined)
  return next
}

/** Removes dead gateways, takes what is free, gives what is more than a fair part. */
async function lookOnce(state: State): Promise<void> {
  const { lines, gateway, monotonic, on } = state.options
  if (state.listener === undefined || state.isOver) return
  if (isSteady(state, monotonic())) {
    const dead = await lines.run('beat', (query) => reap(query, gateway.id, state.times.deadMs))
    for (const id of dead) on.reaped(id)
  }
  // A write that is acknowledged after this may be missing in what the database answers.
  const known = new Map([...state.held].map(([key, held]) => [key, { ...held }]))
  const seen = await lines.run('beat', readLanes)
  if (seen.isBack) return end(state, () => on.wentBack())
  state.others = seen.gateways.filter((id) => id !== gateway.id).length
  state.ofOthers = new Set(
    seen.lanes.flatMap((row) =>
      row.holder !== null && row.holder !== gateway.id ? [keyOf(laneOf(row))] : [],
    ),
  )
  await compare(state, seen, known)
  for (const network of new Set(state.wanted.map((lane) => lane.network))) {
    await balance(state, network, seen)
  }
}

/**
 * Compares the lanes with what was acknowledged. Another holder ends the process. So does a database that
 * lacks commits: what was paid in them is unknown there, and could be paid again.
 */
async function compare(
  state: State,
  { lanes }: Seen,
  known: ReadonlyMap<string, Held>,
): Promise<void> {
  const { lines, gateway, on } = state.options
  for (const [key, before] of known) {
    if (state.held.get(key)?.epoch !== before.epoch) continue
    const row = lanes.find((each) => keyOf(laneOf(each)) === key)
    const isOthers = row !== undefined && row.holder !== null && row.holder !== gateway.id
    if (row && (row.epoch > before.epoch || (row.epoch === before.epoch && isOthers)))
      return fence(state, 'another gateway has its account')
    if (row?.epoch === before.epoch && row.next_nonce >= before.next_nonce) continue
    await lines.run('beat', noteLoss)
    const lane = state.wanted.find((each) => keyOf(each) === key)
    return end(state, () => on.wentBack(lane))
  }
}

/** Each gateway has an equal part of the accounts of a network, rounded up. */
async function balance(state: State, network: Network.Id, seen: Seen): Promise<void> {
  const { gateway, monotonic } = state.options
  if (mayHaveChanged(state, monotonic())) return
  // In the order of the configuration, in which the desk's account comes last.
  const rows = state.wanted
    .filter((lane) => lane.network === network)
    .flatMap((lane) => seen.lanes.find((row) => keyOf(laneOf(row)) === keyOf(lane)) ?? [])
  const isOwn = (row: LaneRow) => state.held.has(keyOf(laneOf(row)))
  const accounts = rows.filter(({ relayer }) => relayer !== keeper)
  const most = Math.ceil(accounts.length / (state.others + 1))
  const own = () => accounts.filter(isOwn)
  // The database names this process as the holder, because the answer to a take or return was lost.
  const isUnknown = (row: LaneRow) => row.holder === gateway.id && !isOwn(row)
  for (const row of rows) {
    if (state.isOver || (row.holder !== null && !isUnknown(row))) continue
    const isTaken = !state.isRetired && (row.relayer === keeper || own().length < most)
    if (isTaken) await take(state, laneOf(row))
    else if (isUnknown(row)) await give(state, laneOf(row))
  }
  if (own().length <= most) return state.listener?.keep({ network })
  // One at a time, so that its next holder can begin before the next one is given.
  const idle = own().find((row) => state.listener?.release(laneOf(row)))
  if (idle) await give(state, laneOf(idle))
}

function isWanted({ wanted }: State, lane: Lane): boolean {
  const key = keyOf(lane)
  return wanted.some((each) => keyOf(each) === key)
}

async function take(state: State, lane: Lane): Promise<boolean> {
  const { lines, gateway, on } = state.options
  const taken = await lines.run('beat', (query) => takeLane(query, lane, gateway.id))
  if (taken === undefined) return false
  state.held.set(keyOf(lane), taken)
  state.ofOthers.delete(keyOf(lane))
  try {
    await state.listener?.taken({ ...lane, nextNonce: taken.next_nonce })
    return true
  } catch (error) {
    on.fault(error)
    await give(state, lane)
    return false
  }
}

async function give(state: State, lane: Lane): Promise<void> {
  const { lines, gateway } = state.options
  state.held.delete(keyOf(lane))
  await lines.run('beat', (query) => giveLane(query, lane, gateway.id))
}

/** What is unfinished is driven by the next holder. */
async function close(state: State, loops: readonly Loop[]): Promise<void> {
  const { lines, gateway, on } = state.options
  const wasFenced = state.isOver
  state.isOver = true
  await Promise.all(loops.map((loop) => loop.stop()))
  state.held.clear()
  if (wasFenced) return
  try {
    await lines.run('beat', (query) => leave(query, gateway.id))
  } catch (error) {
    on.fault(error)
  }
}
