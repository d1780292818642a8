import type { Kind } from '../../db/Entitlement'
import type { RequestCounts, SalesLedger } from '../../db/sales'
import type * as Client from '../protocol/Client'
import * as Problem from '../protocol/Problem'
import { dayMs } from '../protocol/Time'

/** Requests of one kind of client to a route since the start; the hot path only adds to numbers. */
type Count = {
  /** All answers 402. */
  sent: number
  /** Answers 402 to requests without a credential. */
  asked: number
  /** Purchases whose payment was confirmed, or whose answer by use was given. */
  paid: number
  /** Requests with a credential, by what they present. Made for the first one. */
  tried?: Map<string, number>
  /** Those that got a problem, by its reason. */
  refused?: Map<string, number>
  /** Answers by entitlements, by their kind. */
  free?: Map<string, number>
}

/** What a count belongs to. */
type Place = Pick<RequestCounts, 'merchant' | 'route' | 'client'>

/** Remembers what was taken of each count, so that the next one takes only what is new. */
type Taker = ReturnType<typeof createTaker>

export type Tally = ReturnType<typeof createTally>

/**
 * Counts requests in memory, by merchant, route and kind of client. The routes are those of
 * configurations, the kinds and the reasons are closed sets, so the number of counts is bounded.
 */
export function createTally() {
  const byMerchant = new Map<string, Map<string, Map<Client.Kind, Count>>>()
  const places: { place: Place; count: Count }[] = []
  const add = (place: Place): Count => {
    const { merchant, route, client } = place
    const count = { sent: 0, asked: 0, paid: 0 }
    const routes = byMerchant.get(merchant) ?? new Map<string, Map<Client.Kind, Count>>()
    const clients = routes.get(route) ?? new Map<Client.Kind, Count>()
    byMerchant.set(merchant, routes.set(route, clients.set(client, count)))
    places.push({ place, count })
    return count
  }
  const written = createTaker()
  const rows = (taker: Taker) => places.flatMap(({ place, count }) => taker.rows(place, count))
  return {
    of: ({ merchant, route }: { merchant: string; route: string }, client: Client.Kind): Count =>
      byMerchant.get(merchant)?.get(route)?.get(client) ?? add({ merchant, route, client }),
    /** Gives what was counted since its last call. */
    createReader() {
      const taker = createTaker()
      const sent = new Map<Count, number>()
      return {
        /** Answers 402 by merchant. */
        sent(): ReadonlyMap<string, number> {
          const fresh = new Map<string, number>()
          for (const { place, count } of places) {
            const more = count.sent - (sent.get(count) ?? 0)
            sent.set(count, count.sent)
            fresh.set(place.merchant, (fresh.get(place.merchant) ?? 0) + more)
          }
          return fresh
        },
        steps(): readonly RequestCounts[] {
          const fresh = rows(taker)
          taker.take(fresh)
          return fresh
        },
      }
    },
    /** What was counted and not written yet. */
    unwritten: (): readonly RequestCounts[] => rows(written),
    /** Marks counts as written. */
    wrote: written.take,
  }
}

/** Grows with each change of a count. */
function changesOf({ sent, paid, tried, refused, free }: Count): number {
  let sum = sent + paid
  for (const each of [tried, refused, free]) for (const times of each?.values() ?? []) sum += times
  return sum
}

function createTaker() {
  const taken = new Map<string, number>()
  /** Changes of each count at the last look, and at the last one that was taken. */
  const looked = new Map<Count, number>()
  const done = new Map<Count, number>()
  const keyOf = ({ merchant, route, client, step, detail }: Omit<RequestCounts, 'times'>) =>
    [merchant, route, client, step, detail].join(' ')
  return {
    rows(place: Place, count: Count): RequestCounts[] {
      const changes = changesOf(count)
      // Most routes of a long file are not asked for between two looks.
      if (done.get(count) === changes) return []
      looked.set(count, changes)
      const { asked, paid } = count
      const all: RequestCounts[] = [
        { ...place, step: 'asked', detail: '', times: asked },
        { ...place, step: 'paid', detail: '', times: paid },
        ...(['tried', 'refused', 'free'] as const).flatMap((step) =>
          [...(count[step] ?? [])].map(([detail, times]) => ({ ...place, step, detail, times })),
        ),
      ]
      return all
        .map((row) => ({ ...row, times: row.times - (taken.get(keyOf(row)) ?? 0) }))
        .filter(({ times }) => times > 0)
    },
    take(rows: readonly RequestCounts[]): void {
      for (const row of rows) {
        const key = keyOf(row)
        taken.set(key, (taken.get(key) ?? 0) + row.times)
      }
      for (const [count, changes] of looked) done.set(count, changes)
      looked.clear()
    },
  }
}

/** Counts a problem by its x402 reason, or by its code. */
export function countRefusal(count: Pick<Count, 'refused'>, error: unknown): void {
  count.refused ??= new Map()
  const { refused } = count
  const reason =
    error instanceof Problem.ProblemError ? (error.reason ?? error.code) : 'internal-error'
  // Reasons come from constants of ours; one that does not is not kept.
  const known = /^[a-z0-9_-]{1,80}$/.test(reason) && refused.size < reasonsMax
  const name = known || refused.has(reason) ? reason : 'other'
  refused.set(name, (refused.get(name) ?? 0) + 1)
}

const reasonsMax = 100

/** Counts an answer by an entitlement. */
export function countFree(count: Pick<Count, 'free'>, kind: Kind): void {
  count.free ??= new Map()
  count.free.set(kind, (count.free.get(kind) ?? 0) + 1)
}

/** Counts a request with a credential, and its problem. A refusal with a 402 counts where that is made. */
export async function countTry<T>(
  count: Pick<Count, 'tried' | 'refused'>,
  presented: string,
  run: () => T | Promise<T>,
): Promise<T> {
  count.tried ??= new Map()
  count.tried.set(presented, (count.tried.get(presented) ?? 0) + 1)
  try {
    return await run()
  } catch (error) {
    countRefusal(count, error)
    throw error
  }
}

/** Longest time (ms) that counts are in memory only. */
const waitMs = 5_000

/** Days are kept for this time (ms), which bounds the table. */
const keptMs = 400 * dayMs

type RequestsOptions = {
  ledger: Pick<SalesLedger, 'addRequests'>
  tally: Tally
  /** Unix ms. */
  now: () => number
}

/**
 * Writes the counts of requests every few seconds and at the end of each UTC day, so that a request
 * never waits for them. A crash loses the last seconds. Counts that cannot be written stay in
 * memory, and count for the day in which they are written.
 */
export function startRequestCounts({ ledger, tally, now }: RequestsOptions) {
  const today = () => Math.floor(now() / dayMs) * dayMs
  /** The day of the unwritten counts. */
  let day = today()
  let timer: ReturnType<typeof setTimeout> | undefined
  let isStopped = false
  let last = Promise.resolve()
  const write = async () => {
    const counts = tally.unwritten()
    const of = day
    day = today()
    if (counts.length === 0) return
    try {
      await ledger.addRequests(of, counts, day - keptMs)
      tally.wrote(counts)
    } catch {
      // The database reports its fault itself.
    }
  }
  const arm = () => {
    timer = setTimeout(run, Math.min(waitMs, day + dayMs - now()))
    timer.unref()
  }
  // Runs one write after the other, because the counts of a running write are still unwritten.
  const flush = () => {
    last = last.then(write)
    return last
  }
  const run = async () => {
    await flush()
    if (!isStopped) arm()
  }
  arm()
  return {
    /** Writes what was counted since the last time. Never rejects. */
    flush,
    /** Writes the rest and ends the timer. */
    async stop(): Promise<void> {
      isStopped = true
      clearTimeout(timer)
      await flush()
    },
  }
}
