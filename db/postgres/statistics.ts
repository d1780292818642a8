import type { Commits } from './commits'
import type { Lines } from './line-pool'

/** After so many commits of this process the tables may have grown out of their plans. */
const marks = [32, 256, 2_048]
/** Autovacuum has analyzed a table with more rows than this. */
const rowsMax = 10_000
const everyMs = 250

const isNew = `SELECT reltuples < $1 AS "isNew" FROM pg_class WHERE oid = 'payments'::regclass`
const analyze = 'ANALYZE payments, transactions, transaction_members, commits'

/**
 * Analyzes the tables of a new database early. While they were empty all plans looked equal, so a
 * statement may read a whole index, such as the one that begins with the network. Autovacuum would end
 * that up to a minute later. New statistics make every connection of every gateway plan again.
 */
export function startStatistics({
  lines,
  commits,
}: {
  lines: Pick<Lines, 'run'>
  commits: Pick<Commits, 'commits'>
}): { close(): void } {
  const left = [...marks]
  const timer = setInterval(() => {
    const [mark] = left
    if (mark === undefined) return clearInterval(timer)
    if (commits.commits() < mark) return
    left.shift()
    lines
      .run('read', async (query) => {
        const [row] = await query<{ isNew: boolean }>(isNew, [rowsMax])
        if (row?.isNew) await query(analyze)
      })
      // Autovacuum does the same later.
      .catch(() => undefined)
  }, everyMs)
  timer.unref()
  return { close: () => clearInterval(timer) }
}
