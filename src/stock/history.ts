import { dayMs } from '../protocol/Time'
import * as Snapshot from './Snapshot'

/** A price, and the time of its read (unix ms). */
export type Point = { at: number; priceAtomic: bigint }

/** The prices of the last day, from reads for the list. Nothing is read only for them. */
export type History = {
  add(snapshots: readonly Snapshot.Snapshot[]): void
  /** Prices of a token by its symbol, the oldest first. */
  of(symbol: string): readonly Point[]
}

/** The newest price of each span of this length is kept. */
const slotMs = 15 * 60 * 1000

export function createHistory(now: () => number): History {
  const bySymbol = new Map<string, Map<number, Point>>()
  const pointsOf = (symbol: string) => {
    const known = bySymbol.get(symbol) ?? new Map<number, Point>()
    bySymbol.set(symbol, known)
    return known
  }
  return {
    add(snapshots) {
      for (const snapshot of snapshots) {
        const priceAtomic = Snapshot.shownPriceAtomic(snapshot)
        if (priceAtomic === undefined) continue
        const at = snapshot.readAt
        const points = pointsOf(snapshot.token.symbol)
        points.set(Math.floor(at / slotMs), { at, priceAtomic })
        for (const [slot, point] of points) if (point.at < at - dayMs) points.delete(slot)
      }
    },
    of: (symbol) =>
      [...(bySymbol.get(symbol)?.values() ?? [])].filter(({ at }) => at >= now() - dayMs),
  }
}
