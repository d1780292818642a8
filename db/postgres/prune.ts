import type { Commits } from './commits'
import type { Lines } from './line-pool'

/** How long the result of a commit is kept after its end, ms; longer than any repeat takes. */
const keptMs = 60_000
const everyMs = 30_000

/**
 * The first id that a commit could have so many seconds ago. Ids begin with their time (unix ms), so that
 * the primary key finds the old ones.
 */
const idBefore = (seconds: string) => `(lpad(to_hex((extract(epoch FROM statement_timestamp()
  - make_interval(secs => ${seconds})) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid`

/**
 * Deletes results of commits that will not be repeated: old ones of this gateway, while it
 * repeats none, and those of gateways that are gone.
 */
export function startPruning({
  lines,
  commits,
  gateway,
}: {
  lines: Pick<Lines, 'run'>
  commits: Pick<Commits, 'oldestMs'>
  gateway: string
}): { close(): void } {
  const timer = setInterval(() => {
    // A commit that is under way for so long may have ended, and is repeated.
    if (commits.oldestMs() > keptMs / 2) return
    lines
      .run('soon', async (query) => {
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
      })
      .catch(() => undefined)
  }, everyMs)
  timer.unref()
  return { close: () => clearInterval(timer) }
}
