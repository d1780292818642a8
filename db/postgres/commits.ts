import type { EventType } from '../../src/protocol/Webhook'
import type { WebhookEvent } from '../webhooks'
import { type DatabaseFault, DatabaseGoneError, errorOf, PostgresError } from './errors'
import type { Query } from './Line'
import type { Kind, Lines } from './line-pool'
import { statementNameOf } from './reader'
import type { Json } from './rows'

/** A change of the ledger: a function of the database and its input. */
export type Change<T = void> = {
  /** Name of the function, which takes and returns jsonb: `{value, payments?, jobs?}`. */
  call: string
  /** A function is called when the commit begins, and has one result. */
  input: Json | (() => Json)
  /** The first row that it locks. Changes of one commit are sorted by it, against deadlocks. */
  key: string
  /** Names that only one commit of all gateways locks at a time. */
  locks?: readonly string[] | undefined
  /** Length of an input that may be long, as JSON; undefined for all others. */
  length?: number | undefined
  /** It may run twice and reports no payment or job, so its result need not be kept. */
  isRepeatable?: boolean
  /** The result of the caller, from `value`; by default undefined. */
  read?: (value: Json) => T
  /** Events that are written in the same transaction when an endpoint takes one of their types. */
  events?: Events | undefined
}

type Events = {
  types: readonly EventType[]
  of: (value: Json) => readonly WebhookEvent[]
}

export type Commits = ReturnType<typeof createCommits>

/** What writes the messages of events. */
export type Messages = {
  takes(types: readonly EventType[]): boolean
  write(query: Query, events: readonly WebhookEvent[]): Promise<void>
  /** What was written is committed. */
  notify(): void
}

type CommitsOptions = {
  lines: Lines
  /** Id of this process. */
  gateway: string
  messages: Messages
  changed: (ids: ChangedIds) => void
  signal: AbortSignal
  /** Milliseconds that never decrease. */
  monotonic: () => number
}

type Entry = {
  change: Change<unknown>
  resolve: (value: unknown) => void
  reject: (error: unknown) => void
}

/** More changes in one statement hold their locks for too long. */
const changesMax = 128
/**
 * Sum of the long inputs in one statement, of more than one. A statement with more of them may never
 * end in time, however often it is repeated, and with it nothing that shares it.
 */
const lengthMax = 1024 * 1024
/** Most attempts of a commit that the server ended for its locks. */
const attemptsMax = 20
/** Invalid JSON, a character that text cannot have, an invalid encoding. */
const unreadableStates = new Set(['22P02', '22P05', '22021'])
const retriedStates = new Set(['40001', '40P01', '55P03', '57014'])

type Uses = CommitsOptions & { notifier: ReturnType<typeof createNotifier> }

/** Shares commits. One that may or may not have had its effect is repeated until that is known. */
export function createCommits(options: CommitsOptions) {
  const uses = { ...options, notifier: createNotifier(options.lines, options.gateway) }
  const kinds = { commit: createQueue(uses, 'commit'), soon: createQueue(uses, 'soon') }
  const single = new Set<Promise<unknown>>()
  return {
    /**
     * Runs one statement that may run twice, in a transaction of its own. Rejects as `add` does.
     */
    run<Row>(kind: Kind, text: string, values: readonly unknown[]) {
      const work = surely(options, kind, (query) =>
        query<Row>(text, values, { name: statementNameOf(text) }),
      )
      single.add(work)
      return work.finally(() => single.delete(work))
    },
    /**
     * Runs the change together with those that come until a line is free. Resolves once that is on the
     * disk. Rejects with what its function raised (RefusedError, LaneLostError, PostgresError), which
     * affects no other change, and with DatabaseGoneError when nothing was written.
     */
    add: kinds.commit.enter,
    /** The same, but a crash of the server may undo the last ones. */
    addSoon: kinds.soon.enter,
    /** Commits the waiting changes now. */
    flush() {
      kinds.commit.flush()
      kinds.soon.flush()
    },
    /** Commits so far. */
    commits: () => kinds.commit.commits() + kinds.soon.commits(),
    /** Age of the oldest commit that has not ended, ms; zero without one. */
    oldestMs: () => Math.max(kinds.commit.oldestMs(), kinds.soon.oldestMs()),
    /** Resolves when all changes that were added have ended. */
    async idle() {
      await Promise.allSettled([kinds.commit.idle(), kinds.soon.idle(), ...single])
    },
  }
}

function createQueue(options: Uses, kind: Kind) {
  const { lines } = options
  let waiting: Entry[] = []
  let commits = 0
  let isDue = false
  /** A commit with long inputs is under way. The next one waits for it, and others pass both. */
  let isLong = false
  /** The commits under way, and when they began. */
  const running = new Map<Promise<void>, number>()
  const flush = () => {
    isDue = false
    const { taken: entries, left, length } = take(waiting, isLong)
    if (entries.length === 0) return
    waiting = left
    commits++
    isLong ||= length > 0
    const work = commit(options, kind, entries).finally(() => {
      running.delete(work)
      if (length > 0) isLong = false
      next()
    })
    running.set(work, options.monotonic())
    if (waiting.length > 0) next()
  }
  // While all lines are busy the changes gather, and the end of any work on a line sends them.
  const next = () => {
    if (isDue || waiting.length === 0 || !lines.isIdle(kind)) return
    isDue = true
    // A caller waits for the only commit, and the rest of this turn of the event loop may take long. Those
    // that come beside it share the next one.
    if (kind === 'commit' && running.size === 0) queueMicrotask(flush)
    else setImmediate(flush)
  }
  lines.onEnd(kind, next)
  return {
    enter: <T = void>(change: Change<T>) =>
      new Promise<T>((resolve, reject) => {
        const entry = { change: change as Change<unknown>, reject }
        waiting.push({ ...entry, resolve: resolve as Entry['resolve'] })
        next()
      }),
    flush,
    commits: () => commits,
    oldestMs: () =>
      Math.max(0, ...[...running.values()].map((since) => options.monotonic() - since)),
    async idle() {
      for (flush(); running.size > 0; flush()) await Promise.race(running.keys())
    },
  }
}

/** What goes into the next commit: the oldest, without long inputs while others are under way. */
function take(waiting: readonly Entry[], isLong: boolean) {
  const taken: Entry[] = []
  const left: Entry[] = []
  let length = 0
  for (const entry of waiting) {
    const { length: own = 0 } = entry.change
    const isRoom = own === 0 || (!isLong && (length === 0 || length + own <= lengthMax))
    if (isRoom && taken.length < changesMax) {
      taken.push(entry)
      length += own
    } else left.push(entry)
  }
  return { taken, left, length }
}

type Answer = {
  /** Whether other gateways live. */
  others: boolean
  /** One for each change. */
  answers: readonly ({ error: DatabaseFault } | ({ value: Json } & Partial<ChangedIds>))[]
}

/** Commits entries and settles their promises. Never rejects. */
async function commit(options: Uses, kind: Kind, entries: readonly Entry[]) {
  const sorted = entries.toSorted((one, other) => compare(one.change.key, other.change.key))
  let answer: Answer
  try {
    // The database runs a commit of an id once. In the order of time, so that the index of commits
    // grows at its end only.
    const id = Bun.randomUUIDv7()
    answer = await surely(options, kind, (query, isRepeat) =>
      send(options, query, { id, entries: sorted, isRepeat }),
    )
  } catch (error) {
    // A text that the database cannot read as JSON fails the whole statement: send each change alone.
    if (isUnreadable(error) && sorted.length > 1) {
      for (const each of sorted) await commit(options, kind, [each])
      return
    }
    // The error of a change without others is that of the statement.
    const cause = error instanceof PostgresError ? errorOf(error) : error
    for (const { reject } of sorted) reject(cause)
    return
  }
  const { answers, others } = answer
  const done = answers.filter((each) => 'value' in each)
  const payments = done.flatMap((each) => each.payments ?? [])
  const jobs = done.flatMap((each) => each.jobs ?? [])
  if (payments.length + jobs.length > 0) {
    options.changed({ payments, jobs })
    if (others) options.notifier.tell({ payments, jobs })
  }
  for (const [index, { change, resolve, reject }] of sorted.entries()) {
    const given = answers[index]
    if (given === undefined) reject(new Error('the database gave fewer answers'))
    else if ('error' in given) reject(errorOf(given.error))
    else resolve(change.read?.(given.value))
  }
}

/**
 * Repeats work whose end is unknown, and work that the server ended for its locks.
 * `isRepeat`: it may have run before.
 */
async function surely<T>(
  { lines, signal }: Pick<CommitsOptions, 'lines' | 'signal'>,
  kind: Kind,
  work: (query: Query, isRepeat: boolean) => Promise<T>,
): Promise<T> {
  let mayHaveRun = false
  for (let attempt = 1; ; attempt++) {
    try {
      const isRepeat = mayHaveRun
      return await lines.run(kind, (query) => work(query, isRepeat))
    } catch (error) {
      const isGone = error instanceof DatabaseGoneError
      const isRetried = error instanceof PostgresError && retriedStates.has(error.code)
      if (isGone) mayHaveRun ||= error.mayHaveRun
      const isOver = signal.aborted || lines.isClosed()
      if (isOver || (isGone ? !mayHaveRun : !isRetried)) throw error
      if (isRetried && attempt >= attemptsMax && !mayHaveRun) throw error
      if (isGone) await lines.storage.writable(signal)
    }
  }
}

function isUnreadable(error: unknown): boolean {
  return error instanceof PostgresError && unreadableStates.has(error.code)
}

type Commit = {
  id: string
  entries: readonly Entry[]
  /** It may have run before. */
  isRepeat: boolean
}

/** One statement; with events that an endpoint takes, one transaction. */
async function send(options: CommitsOptions, query: Query, commit: Commit): Promise<Answer> {
  const { messages } = options
  const isTaken = ({ change: { events } }: Entry) =>
    events !== undefined && messages.takes(events.types)
  if (!commit.entries.some(isTaken)) return call(options, query, commit)
  await query('BEGIN')
  try {
    const answer = await call(options, query, commit)
    const events = commit.entries.flatMap(({ change }, index) => {
      const given = answer.answers[index]
      return given && 'value' in given ? (change.events?.of(given.value) ?? []) : []
    })
    if (events.length > 0) await messages.write(query, events)
    await query('COMMIT')
    if (events.length > 0) messages.notify()
    return answer
  } catch (error) {
    if (!(error instanceof DatabaseGoneError)) await query('ROLLBACK')
    throw error
  }
}

async function call({ gateway }: CommitsOptions, query: Query, { id, entries, isRepeat }: Commit) {
  const changes = entries.map(({ change: { call, input } }) => ({
    call,
    input: typeof input === 'function' ? input() : input,
  }))
  const locks = entries.flatMap(({ change }) => change.locks ?? [])
  const isKept = !entries.every(({ change }) => change.isRepeatable === true)
  const [row] = await query<{ answer: Answer }>(
    'SELECT commit_changes($1::uuid, $2::uuid, $3::jsonb, $4::text[], $5, $6) AS answer',
    [id, gateway, JSON.stringify(changes), locks.length > 0 ? locks : null, isRepeat, isKept],
    { name: 'commit_changes' },
  )
  if (row === undefined) throw new Error('a commit has no answer')
  return row.answer
}

function compare(one: string, other: string): number {
  if (one === other) return 0
  return one < other ? -1 : 1
}

/** Payments and jobs whose state a commit has changed. */
export type ChangedIds = { payments: readonly string[]; jobs: readonly string[] }

/** A payload has at most 8,000 bytes. */
const bytesMax = 7_000
const notify = "SELECT pg_notify('turnpike', $1)"

/**
 * Tells the other gateways what commits have changed. NOTIFY locks all commits of a database until its
 * own is on the disk, so it has a transaction of its own that does not wait for the disk. Changes that
 * come while one is sent share the next one. If one is lost, the others notice within half a second.
 */
function createNotifier(lines: Pick<Lines, 'run'>, gateway: string) {
  let payments: string[] = []
  let jobs: string[] = []
  let isRunning = false
  const drain = async () => {
    while (payments.length + jobs.length > 0) {
      const payload = JSON.stringify({ by: gateway, payments, jobs })
      payments = []
      jobs = []
      // Without ids it says that everything may have changed.
      const short = payload.length <= bytesMax ? payload : JSON.stringify({ by: gateway })
      await lines
        .run('soon', (query) => query(notify, [short], { name: 'notify' }))
        .catch(() => undefined)
    }
    isRunning = false
  }
  return {
    /** Notifies the other gateways within moments. */
    tell(ids: ChangedIds) {
      payments.push(...ids.payments)
      jobs.push(...ids.jobs)
      if (isRunning) return
      isRunning = true
      void drain()
    },
  }
}

/** Repeats work while it does not run, until the result is called. A failure leaves it to the next time. */
export function repeat(everyMs: number, work: () => Promise<unknown>): () => void {
  let isRunning = false
  const timer = setInterval(() => {
    if (isRunning) return
    isRunning = true
    work()
      .catch(() => undefined)
      .finally(() => {
        isRunning = false
      })
  }, everyMs)
  timer.unref()
  return () => clearInterval(timer)
}

/** How long the result of a commit is kept after its end, ms; longer than any repeat takes. */
const keptMs = 60_000
const pruneMs = 30_000

/**
 * The first id that a commit could have so many seconds ago. Ids begin with their time (unix ms), so that
 * the primary key finds the old ones.
 */
const idBefore = (seconds: string) => `(lpad(to_hex((extract(epoch FROM statement_timestamp()
  - make_interval(secs => ${seconds})) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid`

type Upkeep = { lines: Pick<Lines, 'run'>; commits: Pick<Commits, 'oldestMs' | 'commits'> }

/**
 * Deletes results of commits that will not be repeated: old ones of this gateway, while it
 * repeats none, and those of gateways that are gone.
 */
export function startPruning({ lines, commits }: Upkeep, gateway: string): () => void {
  const prune = async (query: Query) => {
    await query(
      `DELETE FROM commits WHERE gateway = $1 AND id < ${idBefore('$2')}
         AND at < clock_timestamp() - make_interval(secs => $2)`,
      [gateway, keptMs / 1000],
      { name: 'prune' },
    )
    await query(
      `DELETE FROM commits WHERE id < ${idBefore('3600')}
         AND at < clock_timestamp() - interval '1 hour'
         AND NOT EXISTS (SELECT 1 FROM gateways WHERE id = commits.gateway)`,
      [],
      { name: 'prune_gone' },
    )
  }
  return repeat(pruneMs, async () => {
    // A commit that is under way for so long may have ended, and is repeated.
    if (commits.oldestMs() <= keptMs / 2) await lines.run('soon', prune)
  })
}

/** After so many commits of this process the tables may have grown out of their plans. */
const marks = [32, 256, 2_048]
/** Autovacuum has analyzed a table with more rows than this. */
const rowsMax = 10_000
const analyzeMs = 250

const isNew = `SELECT reltuples < $1 AS "isNew" FROM pg_class WHERE oid = 'payments'::regclass`
const analyze = 'ANALYZE payments, transactions, transaction_members, commits'

/**
 * Analyzes the tables of a new database early. While they were empty all plans looked equal, so a
 * statement may read a whole index, such as the one that begins with the network. Autovacuum would end
 * that up to a minute later. New statistics make every connection of every gateway plan again.
 */
export function startStatistics({ lines, commits }: Upkeep): () => void {
  const left = [...marks]
  const stop = repeat(analyzeMs, async () => {
    const [mark] = left
    if (mark === undefined) return stop()
    if (commits.commits() < mark) return
    left.shift()
    // When it fails, autovacuum does the same later.
    await lines.run('read', async (query) => {
      const [row] = await query<{ isNew: boolean }>(isNew, [rowsMax])
      if (row?.isNew) await query(analyze)
    })
  })
  return stop
}
