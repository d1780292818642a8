import type {
  OtherGas,
  RequestCounts,
  SalesOfSpan,
  SalesQuery,
  SalesReads,
  SalesRow,
  Span,
} from '../../db/sales'
import { dayMs, dayOf, dayStart, hourMs } from '../protocol/Time'
import * as Books from './Books'
import * as Funnel from './Funnel'

export type ReadOptions = {
  sales: SalesReads
  by: Books.By
  /** Unix ms; `to` is not part of the period. */
  from: number
  to: number
  /** The attempts after which an answer can no longer be fetched. */
  attempts: Pick<SalesQuery['redeemable'], 'attemptsMax' | 'cutAttemptsMax'>
  /** With more lines the report ends with the day that has them. */
  linesMax?: number
}

/**
 * The figures of a period. Reads it in short parts, and other work runs between them, because a
 * read of the whole period would keep the database's log from being written back. A change during
 * the reads is shown before or after its effect; each payment is counted once.
 */
export async function readBooks(options: ReadOptions): Promise<Books.Report> {
  const { sales, by, from, to, attempts, linesMax = Number.POSITIVE_INFINITY } = options
  const books = Books.create(by, await sales.assets())
  books.addChannels(await sales.channels())
  const query = { byPayer: by === 'payer', redeemable: { now: to, ...attempts } }
  const inParts = createParts()
  for (const day of await daysOf(options)) {
    const name = dayOf(day)
    books.addRequests(name, await sales.requestsOf(day))
    await inParts(Math.max(from, day), Math.min(to, day + dayMs), async (span) => {
      const part = await sales.ofSpan(span, query)
      books.add(name, part)
      return countOf(part)
    })
    const end = Math.min(to, day + dayMs)
    if (books.lines() > linesMax && end < to) return books.report({ from, to: end }, true)
  }
  return books.report({ from, to })
}

/** The funnel of the UTC days from that of `from` on, read as `readBooks` does. */
export async function readFunnel(
  options: Omit<ReadOptions, 'by' | 'attempts'> & { by: Funnel.By },
): Promise<Funnel.Report> {
  const { sales, by, from, to } = options
  const funnel = Funnel.create(by)
  const inParts = createParts()
  for (const day of await daysOf(options)) {
    const add = funnel.day(dayOf(day))
    for (const row of await sales.requestsOf(day)) add.requests(row)
    await inParts(day, Math.min(to, day + dayMs), async (span) => {
      const rows = await sales.buyersOf(span)
      for (const row of rows) add.buyer(row)
      return rows.reduce((sum, { payments }) => sum + payments, 0)
    })
  }
  return funnel.report({ from: dayStart(from), to })
}

/** The begins of the UTC days of a period in which there is something, the oldest first. */
async function daysOf({ sales, from, to }: Pick<ReadOptions, 'sales' | 'from' | 'to'>) {
  const begin = Math.max(from, (await sales.firstAt()) ?? to)
  const days: number[] = []
  for (let day = dayStart(begin); day < to; day += dayMs) days.push(day)
  return days
}

/** Payments of one read. It takes some milliseconds, in which nothing else runs. */
const slicePayments = 200
/** Shortest part of an hour that is read at once, ms. */
const stepMinMs = 60_000
/** An hour is kept in memory this long after its end, ms, when its transactions are included. */
const settledMs = hourMs
/** Kept figures are read again after this time, ms, in case a change was not reported. */
const keptMs = hourMs

type RecentOptions = {
  sales: SalesReads
  attempts: ReadOptions['attempts']
  /** Unix ms. */
  now: () => number
  /**
   * Begins to report changes. Called before the first read: in most processes there is none, and then a
   * payment causes no call.
   */
  follow?: () => void
}

/** The figures of UTC days, the newest first, of one time. */
export type RecentDays = {
  /** Unix ms. */
  to: number
  days: readonly RecentDay[]
}

type RecentDay = {
  from: number
  spans: readonly SalesOfSpan[]
  requests: readonly RequestCounts[]
}

export type Recent = ReturnType<typeof createRecent>

type Kept = { span: SalesOfSpan; readAt: number }

/**
 * The figures of the last days, which are those of `turnpike sales`. Hours that can no longer
 * change are kept in memory, so that each page reads only what is open.
 */
export function createRecent(options: RecentOptions) {
  const { now, sales, attempts } = options
  let { follow } = options
  const kept = createKept(now)
  /** Counts of days that are over, which no longer change. */
  const counted = new Map<number, readonly RequestCounts[]>()
  const inParts = createParts()
  let progress: RecentDays | undefined
  let last: Promise<unknown> = Promise.resolve()

  const readHour = async (from: number, to: number): Promise<SalesOfSpan> => {
    const known = kept.hour(from)
    if (known !== undefined) return known
    const before = kept.changes()
    const readAt = now()
    const query = { byPayer: false, redeemable: { now: to, ...attempts } }
    const parts: SalesOfSpan[] = []
    await inParts(from, Math.min(to, from + hourMs), async (span) => {
      const part = await sales.ofSpan(span, query)
      parts.push(part)
      return countOf(part)
    })
    const span = sumOf(parts)
    const isOver = to >= from + hourMs + settledMs
    const isSame = kept.changes() === before
    if (isOver && isSame && span.rows.every(isFinal)) kept.addHour(from, { span, readAt })
    return span
  }
  const readRequests = async (day: number, to: number): Promise<readonly RequestCounts[]> => {
    const known = counted.get(day)
    if (known !== undefined) return known
    const counts = await sales.requestsOf(day)
    if (to >= day + dayMs + settledMs) counted.set(day, counts)
    for (const old of counted.keys()) if (old < day - 40 * dayMs) counted.delete(old)
    return counts
  }
  const readDay = async (from: number, to: number): Promise<readonly SalesOfSpan[]> => {
    const known = kept.day(from)
    if (known !== undefined) return [known]
    const spans: SalesOfSpan[] = []
    for (let hour = from; hour < Math.min(to, from + dayMs); hour += hourMs)
      spans.push(await readHour(hour, to))
    const whole = kept.joinHours(from)
    return whole === undefined ? spans : [whole]
  }
  const read = async (count: number): Promise<RecentDays> => {
    const to = now()
    const today = dayStart(to)
    const first = (await sales.firstAt()) ?? to
    kept.forgetBefore(today - 40 * dayMs)
    const found: RecentDay[] = []
    progress = { to, days: found }
    for (let index = 0; index < count; index++) {
      const from = today - index * dayMs
      if (from + dayMs <= first) break
      const requests = await readRequests(from, to)
      found.push({ from, spans: await readDay(from, to), requests })
    }
    return progress
  }
  return {
    /** The figures that the newest `read` has found so far. */
    sofar: (): RecentDays => progress ?? { to: now(), days: [] },
    /** Figures of today and the days before it, as far as there are any. */
    read(count: number): Promise<RecentDays> {
      follow?.()
      follow = undefined
      // Runs one read after the other, so that the second one uses what the first one has kept.
      const next = last.then(() => read(count))
      last = next.catch(() => undefined)
      return next
    },
    /** A payment or an order that began at this time (unix ms) has changed. */
    changed: kept.changed,
    /** All figures may have changed, such as by another configuration. */
    clear: kept.clear,
  }
}

/** Figures of hours and days that can no longer change, in memory. */
function createKept(now: () => number) {
  const hours = new Map<number, Kept>()
  const days = new Map<number, Kept>()
  /** Counts changes, so that figures that were read during a change are not kept. */
  let changes = 0
  const find = (all: Map<number, Kept>, from: number): SalesOfSpan | undefined => {
    const kept = all.get(from)
    if (kept === undefined || (now() >= kept.readAt && now() < kept.readAt + keptMs))
      return kept?.span
    all.delete(from)
    return undefined
  }
  return {
    changes: () => changes,
    hour: (from: number) => find(hours, from),
    day: (from: number) => find(days, from),
    addHour: (from: number, kept: Kept) => void hours.set(from, kept),
    /** One sum instead of the hours of a day, when all of them are kept. */
    joinHours(day: number): SalesOfSpan | undefined {
      const starts = Array.from({ length: 24 }, (_, index) => day + index * hourMs)
      const own = starts.flatMap((from) => hours.get(from) ?? [])
      if (own.length < starts.length) return undefined
      const span = sumOf(own.map((kept) => kept.span))
      days.set(day, { span, readAt: Math.min(...own.map(({ readAt }) => readAt)) })
      for (const from of starts) hours.delete(from)
      return span
    },
    forgetBefore(at: number): void {
      for (const all of [days, hours])
        for (const from of all.keys()) if (from < at) all.delete(from)
    },
    changed(at: number): void {
      changes++
      hours.delete(at - (at % hourMs))
      days.delete(dayStart(at))
    },
    clear(): void {
      changes++
      hours.clear()
      days.clear()
    },
  }
}

/**
 * Reads a span in parts that are short, and lets other work run between them. `read` resolves with
 * the number of payments in its part.
 */
function createParts() {
  /** Length of the next part, by the payments of the one before it. */
  let step = stepMinMs
  return async (from: number, to: number, read: (span: Span) => Promise<number>) => {
    for (let at = from; at < to; ) {
      const end = Math.min(to, at + step)
      const count = await read({ from: at, to: end })
      const wanted = ((end - at) * slicePayments) / Math.max(1, count)
      step = Math.round(Math.max(stepMinMs, Math.min(wanted, 2 * step, hourMs)))
      at = end
      await new Promise((resolve) => setImmediate(resolve))
    }
  }
}

function countOf({ rows }: SalesOfSpan): number {
  return rows.reduce((sum, row) => sum + row.payments + row.pending, 0)
}

/** Whether neither time nor buyers can change a row. */
function isFinal({ redeemable, openOrders, pending }: SalesRow): boolean {
  return redeemable === 0 && openOrders === 0 && pending === 0
}

function sumOf(parts: readonly SalesOfSpan[]): SalesOfSpan {
  const [only, ...others] = parts
  if (only !== undefined && others.length === 0) return only
  const rows = new Map<string, SalesRow>()
  const gas = new Map<string, OtherGas>()
  for (const part of parts) {
    for (const row of part.rows) {
      const { network, asset, merchant, route } = row
      const key = [row.class, network, asset, merchant, route].join(' ')
      const sum = rows.get(key)
      rows.set(key, sum === undefined ? row : { ...sum, ...Books.plus(sum, row) })
    }
    for (const row of part.otherGas) {
      const key = `${row.network} ${row.kind}`
      const { gasWei, unknownGas } = gas.get(key) ?? { gasWei: 0n, unknownGas: 0 }
      const sum = { gasWei: gasWei + row.gasWei, unknownGas: unknownGas + row.unknownGas }
      gas.set(key, { ...row, ...sum })
    }
  }
  return {
    rows: [...rows.values()],
    otherGas: [...gas.values()],
  }
}

/** The report of the newest days. Lets other work run between the days. */
export async function reportOf(
  sales: Pick<SalesReads, 'assets'>,
  { to, days }: RecentDays,
  by: Books.By,
  count: number,
): Promise<Books.Report> {
  const today = dayStart(to)
  const books = Books.create(by, await sales.assets())
  for (const { from, spans, requests } of days.slice(0, count)) {
    books.addRequests(dayOf(from), requests)
    for (const span of spans) books.add(dayOf(from), span)
    await new Promise((resolve) => setImmediate(resolve))
  }
  return books.report({ from: today - (count - 1) * dayMs, to })
}
