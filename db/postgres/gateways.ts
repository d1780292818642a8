import type { Address } from 'viem'
import type * as Network from '../../src/protocol/Network'
import type { Lane, LaneLedger, LaneListener, Overview } from '../LaneLedger'
import { keeper } from './fences'
import type { Query } from './Line'
import type { Lines } from './line-pool'
import { DatabaseStartError } from './reach'
import type { Json } from './rows'

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

export type Gateways = Awaited<ReturnType<typeof joinGateways>>

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
  /** Other gateways were removed. */
  onReaped: () => Promise<void>
  /** The end of the running look. */
  looking: Promise<void>
  /** Whether it takes no more lanes. */
  isRetired: boolean
  isOver: boolean
}

/** Registers this process. Rejects when the database cannot be written. */
export async function joinGateways(options: GatewaysOptions) {
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
    onReaped: () => Promise.resolve(),
    looking: Promise.resolve(),
    isRetired: false,
    isOver: false,
  }
  await options.lines.run('beat', (query) => register(query, options.gateway))
  await beat(state)
  // In a loop of its own: to take a lane may wait for a node, and the signs of life must continue.
  const beats = createLoop(loopOf(state, beat))
  const looks = createLoop(loopOf(state, look))
  const lanes: LaneLedger = {
    isShared: true,
    has: (lane) => state.held.has(keyOf(lane)),
    epochOf: (lane) => state.held.get(keyOf(lane))?.epoch,
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
  }
  return {
    id: options.gateway.id,
    lanes,
    /**
     * The fence of a write for a lane, as the functions of the database take it. Undefined when this
     * process does not have the lane.
     */
    fenceOf(lane: Lane, nonce = -1): Json | undefined {
      const held = state.held.get(keyOf(lane))
      if (held === undefined) return undefined
      const { network, relayer = keeper } = lane
      const { epoch, next_nonce: floor } = held
      return { network, relayer, nonce, holder: options.gateway.id, epoch, floor }
    },
    /** Whether the account is not configured here, and no living gateway is known to have it. */
    isUnconfigured: (lane: Lane) => !isWanted(state, lane) && !state.ofOthers.has(keyOf(lane)),
    /** A write for the lane at this account nonce is acknowledged. */
    stored(lane: Lane, nonce: number): void {
      const held = state.held.get(keyOf(lane))
      if (held) held.next_nonce = Math.max(held.next_nonce, nonce + 1)
    },
    /** How far the clock of this machine is ahead of the database's, ms, at the last beat. */
    skewMs: () => state.skewMs,
    /** Whether this process has the duties of the network with the first id: only one has them. */
    isFirst(): boolean {
      // Sorted, because the files of two gateways may list the networks in different orders.
      const [network] = state.wanted.map((lane) => lane.network).toSorted()
      return network !== undefined && state.held.has(keyOf({ network, relayer: undefined }))
    },
    /** Other gateways that live. */
    others: () => state.others,
    /**
     * A write for a lane was refused that this process believed to have in this epoch: finds out why. A
     * refusal of an earlier epoch says nothing of the present one.
     */
    async lost(lane: Lane, epoch: number): Promise<void> {
      if (state.held.get(keyOf(lane))?.epoch === epoch) await look(state)
    },
    /** Sets what continues the work of gateways that were removed. */
    onReaped(work: () => Promise<void>): void {
      state.onReaped = work
    },
    /** Something has changed, so look at the lanes now. */
    wake: looks.wake,
    /** The connection was lost, so the server may be another one that lacks the last commits. */
    reconnected(): void {
      state.reconnectedAt = monotonic()
    },
    /** Gives the lanes back and leaves. */
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
    if (dead.length > 0) state.onReaped().catch(on.fault)
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

async function take(state: State, lane: Lane): Promise<void> {
  const { lines, gateway, on } = state.options
  const taken = await lines.run('beat', (query) => takeLane(query, lane, gateway.id))
  if (taken === undefined) return
  state.held.set(keyOf(lane), taken)
  state.ofOthers.delete(keyOf(lane))
  try {
    await state.listener?.taken({ ...lane, nextNonce: taken.next_nonce })
  } catch (error) {
    on.fault(error)
    await give(state, lane)
  }
}

async function give(state: State, lane: Lane): Promise<void> {
  const { lines, gateway } = state.options
  state.held.delete(keyOf(lane))
  await lines.run('beat', (query) => giveLane(query, lane, gateway.id))
}

/** What is unfinished is driven by the next holder. */
async function close(state: State, loops: readonly ReturnType<typeof createLoop>[]): Promise<void> {
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

/** The statements on the tables `gateways` and `lanes`. */

/** This process among those that share the database. */
type Gateway = {
  /** A UUID, new at each start. */
  id: string
  host: string
  version: string
  /** Hash of the configuration in force. */
  configHash(): string
  /** Short hashes of the keys that all gateways must share, by name. */
  fingerprints: Readonly<Record<string, Json | undefined>>
}

type LaneRow = { network: Network.Id; relayer: string; holder: string | null } & Held

/** What the holder of a lane knows of it. */
type Held = { epoch: number; next_nonce: number }

/** Both tables, read one after the other. `isBack`: the database lacks commits. */
type Seen = { lanes: readonly LaneRow[]; gateways: readonly string[]; isBack: boolean }

function keyOf({ network, relayer = keeper as Address }: Lane): string {
  return `${network} ${relayer}`
}

function laneOf({ network, relayer }: Pick<LaneRow, 'network' | 'relayer'>): Lane {
  return { network, relayer: relayer === keeper ? undefined : (relayer as Address) }
}

async function register(query: Query, gateway: Gateway): Promise<void> {
  const { id, host, version, configHash, fingerprints } = gateway
  await query(
    `INSERT INTO gateways (id, host, version, config_hash, fingerprints, seen_at)
     VALUES ($1, $2, $3, $4, $5, clock_timestamp())`,
    [id, host, version, configHash(), JSON.stringify(fingerprints)],
  )
}

/** A sign of life: the time of the database (unix ms), undefined when the others removed this one. */
async function sign(
  query: Query,
  { id, configHash }: Pick<Gateway, 'id' | 'configHash'>,
): Promise<number | undefined> {
  const [row] = await query<{ at: number }>(
    `UPDATE gateways SET seen_at = clock_timestamp(), config_hash = $2 WHERE id = $1
     RETURNING (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS at`,
    [id, configHash()],
    { name: 'beat' },
  )
  return row?.at
}

/** Removes the other gateways that gave no sign of life for `deadMs`. Returns their ids. */
async function reap(query: Query, id: string, deadMs: number): Promise<readonly string[]> {
  const dead = await query<{ id: string }>(
    `DELETE FROM gateways WHERE seen_at < clock_timestamp() - make_interval(secs => $2)
     AND id <> $1 RETURNING id`,
    [id, deadMs / 1_000],
    { name: 'reap' },
  )
  return dead.map((each) => each.id)
}

/** A lane exists from the first start that names it. */
async function createLanes(query: Query, lanes: readonly Lane[]): Promise<void> {
  const rows = lanes.map(({ network, relayer = keeper }) => ({ network, relayer }))
  await query(
    `INSERT INTO lanes (network, relayer, epoch, next_nonce)
     SELECT network, relayer, 0, 0
     FROM jsonb_to_recordset($1::jsonb) AS lane (network text, relayer text)
     ORDER BY network, relayer ON CONFLICT DO NOTHING`,
    [JSON.stringify(rows)],
  )
}

async function readLanes(query: Query): Promise<Seen> {
  const gateways = await query<{ id: string; isBack: boolean }>(
    `SELECT id, EXISTS (SELECT 1 FROM meta WHERE key = $1) AS "isBack" FROM gateways ORDER BY id`,
    [lossKey],
    { name: 'gateways' },
  )
  const lanes = await query<LaneRow>(
    'SELECT network, relayer, holder, epoch, next_nonce FROM lanes ORDER BY network, relayer',
    [],
    { name: 'lanes' },
  )
  const isBack = gateways.some((each) => each.isBack)
  return { lanes, gateways: gateways.map(({ id }) => id), isBack }
}

/** What an operator sees of both tables. */
export async function readOverview(query: Query): Promise<Overview> {
  const gateways = await query<Overview['gateways'][number]>(
    `SELECT id, host, version, config_hash AS "configHash",
       (extract(epoch FROM clock_timestamp() - seen_at) * 1000)::bigint AS "seenMsAgo"
     FROM gateways ORDER BY host, id`,
  )
  const { lanes } = await readLanes(query)
  return {
    gateways,
    lanes: lanes.map((row) => ({
      ...laneOf(row),
      holder: row.holder ?? undefined,
      epoch: row.epoch,
      nextNonce: row.next_nonce,
    })),
  }
}

/**
 * Takes a lane that is free, with the next epoch. A lane that this gateway has in the database, because
 * the answer to an earlier take was lost, is taken again. Undefined when another gateway was faster.
 */
async function takeLane(query: Query, lane: Lane, id: string): Promise<Held | undefined> {
  const { network, relayer = keeper } = lane
  const [taken] = await query<Held>(
    `UPDATE lanes SET holder = $3, epoch = epoch + 1
     WHERE network = $1 AND relayer = $2 AND (holder IS NULL OR holder = $3)
     RETURNING epoch, next_nonce`,
    [network, relayer, id],
    { name: 'take' },
  )
  return taken
}

/** Gives a lane back, and tells the others. */
async function giveLane(query: Query, lane: Lane, id: string): Promise<void> {
  const { network, relayer = keeper } = lane
  await query(
    `WITH given AS (
       UPDATE lanes SET holder = NULL
       WHERE network = $1 AND relayer = $2 AND holder = $3 RETURNING network)
     SELECT pg_notify('turnpike', '{"lanes":true}') FROM given`,
    [network, relayer, id],
    { name: 'give' },
  )
}

/** Leaves the gateways; the foreign key gives all lanes back. */
async function leave(query: Query, id: string): Promise<void> {
  await query('DELETE FROM gateways WHERE id = $1', [id])
  await query(`SELECT pg_notify('turnpike', '{"lanes":true}')`)
}

/** Key of the table `meta`: a failover lost commits, and no operator has accepted that. */
const lossKey = 'went-back'

/** Notes that the database lacks commits that it had acknowledged: every gateway ends. */
async function noteLoss(query: Query): Promise<void> {
  await query(
    `INSERT INTO meta (key, value) VALUES ($1, clock_timestamp()::text) ON CONFLICT DO NOTHING`,
    [lossKey],
  )
}

/** Throws `DatabaseStartError` when the database lacks commits. */
export async function assertNoLoss(query: Query, name: string): Promise<void> {
  const [row] = await query<{ value: string }>('SELECT value FROM meta WHERE key = $1', [lossKey])
  if (row === undefined) return
  throw new DatabaseStartError(
    `the database ${name} lacks commits that it had acknowledged, found at ${row.value}: a failover ` +
      'to an asynchronous standby lost them. If the lost server still has its files, use them. Else ' +
      'compare the payments before that time with the chain, then start once with --accept-loss',
  )
}

/** From now on gateways may start. */
export async function acceptLoss(query: Query): Promise<void> {
  await query('DELETE FROM meta WHERE key = $1', [lossKey])
}

/** When a gateway counts as alive: its signs of life, and those of the others. */

export type Times = {
  /** Interval of the signs of life, ms. */
  beatMs: number
  /** A process without a sign for this long is taken for dead, ms by the clock of the database. */
  deadMs: number
  /** Only a process with regular beats for this long may judge others, ms. */
  steadyMs: number
  /** A longer time between two beats is not regular, ms. */
  gapMs: number
  /** Without a beat for this long nothing new is sent, ms. */
  freshMs: number
}

const usualTimes: Times = {
  beatMs: 2_000,
  deadMs: 10_000,
  steadyMs: 10_000,
  gapMs: 4_000,
  freshMs: 6_000,
}

/** Signs that this process has given, by its monotonic clock, ms. */
type Signs = {
  times: Times
  /** The last one. */
  beatAt: number
  /** The first one after a gap. */
  steadySince: number
}

/**
 * Whether this process has given signs for long and still does. After a pause of its own, or of the
 * server, the others had no chance to give theirs, and a look may come before the next own sign.
 */
function isSteady({ times, beatAt, steadySince }: Signs, at: number): boolean {
  return at - beatAt <= times.gapMs && at - steadySince >= times.steadyMs
}

/**
 * Whether the connection may lead to another server now, which lacks the last takes of accounts. Their
 * holders must find that out first: after a take of another gateway it would look like an ordinary one.
 */
function mayHaveChanged(
  { times, reconnectedAt }: { times: Times; reconnectedAt: number },
  at: number,
): boolean {
  return at - reconnectedAt < times.gapMs
}

type LoopOptions = {
  work: () => Promise<void>
  /** Pause between two turns, ms. */
  everyMs: number
  isOver: () => boolean
  /** A turn failed; the next one repeats it. */
  fault: (error: unknown) => void
}

/** Repeats work; `wake` makes its next turn come at once. */
export function createLoop({ work, everyMs, isOver, fault }: LoopOptions) {
  let resume: (() => void) | undefined
  let isWoken = false
  const pause = () =>
    new Promise<void>((resolve) => {
      const end = () => {
        clearTimeout(timer)
        isWoken = false
        resume = undefined
        resolve()
      }
      const timer = setTimeout(end, isWoken ? 0 : everyMs)
      resume = end
    })
  const run = async () => {
    for (;;) {
      await pause()
      if (isOver()) return
      try {
        await work()
      } catch (error) {
        if (!isOver()) fault(error)
      }
    }
  }
  const running = run()
  const wake = () => {
    isWoken = true
    resume?.()
  }
  return {
    wake,
    /** Resolves when no turn runs. Call it when `isOver` is true. */
    async stop() {
      // It must not begin another pause when a turn runs now.
      wake()
      await running
    },
  }
}
