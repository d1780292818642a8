import type { BuyerRow, RequestCounts } from '../../db/sales'
import * as Group from './Group'

/** How the lines are grouped. */
export type By = (typeof groupings)[number]

export const groupings = ['route', 'merchant', 'client', 'day'] as const

/** What became of the requests of a group. */
export type Line = Group.Group & {
  /** Answers 402 to requests without a credential. */
  asked: number
  /** Requests with a credential, by what they present. */
  tried: Map<string, number>
  /** Those that got a problem, by its x402 reason or its code. */
  refused: Map<string, number>
  /** Answers by entitlements, by their kind. */
  free: Map<string, number>
  /** Confirmed payments of buyers: those of the chain. */
  paid: number
  /** Payers of them; one that pays on two days counts twice. */
  buyers: number
  /** Those of them that have paid this service on an earlier UTC day. */
  again: number
  /** Confirmed payments of own accounts, which are in none of the other figures of payments. */
  own: number
}

export type Report = {
  by: By
  /** Unix ms; `from` is the begin of a UTC day. */
  from: number
  to: number
  lines: readonly Line[]
  total: Line
}

/** Collects counts of requests and payers in groups. */
export function create(by: By) {
  const lines = new Map<string, Line>()
  const total = emptyLine({})
  const lineOf = (group: Group.Group): Line => {
    const key = Group.nameOf(group)
    const line = lines.get(key) ?? emptyLine(group)
    lines.set(key, line)
    return line
  }
  return {
    /** Adds to a UTC day. Its payers are remembered until the next one. */
    day(day: string) {
      const seen = new Set<string>()
      return {
        requests(row: RequestCounts): void {
          const line = lineOf(Group.of(by, { ...row, day }))
          for (const each of [line, total]) addRequests(each, row)
        },
        buyer(row: BuyerRow): void {
          const line = lineOf(Group.of(by, { ...row, day }))
          for (const each of [line, total]) addBuyer(each, row, seen)
        },
      }
    },
    report: (period: { from: number; to: number }): Report => ({
      by,
      ...period,
      lines: [...lines.values()].sort(
        (a, b) => (by === 'day' ? 0 : b.paid - a.paid || b.asked - a.asked) || order(a, b),
      ),
      total,
    }),
  }
}

function order(a: Group.Group, b: Group.Group): number {
  return Group.nameOf(a) < Group.nameOf(b) ? -1 : 1
}

function emptyLine(group: Group.Group): Line {
  const none = { asked: 0, paid: 0, buyers: 0, again: 0, own: 0 }
  return { ...group, ...none, tried: new Map(), refused: new Map(), free: new Map() }
}

function addRequests(line: Line, { step, detail, times }: RequestCounts): void {
  if (step === 'asked') line.asked += times
  // Payments are counted where they are stored.
  if (step === 'asked' || step === 'paid') return
  line[step].set(detail, (line[step].get(detail) ?? 0) + times)
}

function addBuyer(line: Line, row: BuyerRow, seen: Set<string>): void {
  if (row.class === 'own') {
    line.own += row.payments
    return
  }
  line.paid += row.payments
  const key = `${Group.nameOf(line)} ${row.payer.toLowerCase()}`
  if (seen.has(key)) return
  seen.add(key)
  line.buyers++
  line.again += row.again
}

/** All of a step, whatever its detail. */
export function sumOf(details: ReadonlyMap<string, number>): number {
  return [...details.values()].reduce((sum, times) => sum + times, 0)
}

/** The details of a step, the most frequent first. */
export function sorted(details: ReadonlyMap<string, number>): (readonly [string, number])[] {
  return [...details].toSorted(([a, one], [b, other]) => other - one || (a < b ? -1 : 1))
}
