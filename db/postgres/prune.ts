import type { Commits } from './commits'
import type { Lines } from './lines'

/** How long the result of a commit is kept after its end, ms; longer than any repeat takes. */
const keptMs = 60_000
const everyMs = 30_000

/**
 * Deletes results of commits that are not repeated any more: old ones of this gateway, while it
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
          `DELETE FROM commits WHERE gateway = $1
             AND at < clock_timestamp() - make_interval(secs => $2)`,
          [gateway, keptMs / 1000],
          { name: 'prune' },
        )
        await query(
          `DELETE FROM commits WHERE at < clock_timestamp() - interval '1 hour'
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
