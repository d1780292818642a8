import type { SalesQuery, SalesReads } from '../../db/SalesLedger'
import { hourMs } from '../protocol/Time'
import * as Books from './Books'

export type ReadOptions = {
  sales: SalesReads
  by: Books.By
  /** Unix ms; `to` is not part of the period. */
  from: number
  to: number
  /** The attempts after which an answer can no longer be fetched. */
  attempts: Pick<SalesQuery['redeemable'], 'attemptsMax' | 'cutAttemptsMax'>
}

/**
 * The figures of a period. Reads one hour after the other, and other work runs between them,
 * because a read of the whole period would keep the database's log from being written back. A
 * change during the reads is shown before or after its effect; each payment is counted once.
 */
export async function readBooks(options: ReadOptions): Promise<Books.Report> {
  const { sales, by, to, attempts } = options
  const books = Books.create(by, await sales.assets())
  const first = await sales.firstAt()
  const begin = Math.max(options.from, hourOf(first ?? to))
  const query = { byPayer: by === 'payer', redeemable: { now: to, ...attempts } }
  for (let from = begin; from < to; from = hourOf(from) + hourMs) {
    const span = { from, to: Math.min(to, hourOf(from) + hourMs) }
    books.add(dayOf(from), await sales.ofSpan(span, query))
    await new Promise((resolve) => setImmediate(resolve))
  }
  return books.report({ from: options.from, to })
}

function hourOf(at: number): number {
  return Math.floor(at / hourMs) * hourMs
}

/** `2026-11-20`, UTC. */
function dayOf(at: number): string {
  return new Date(at).toISOString().slice(0, 10)
}
