import type { Query } from './Line'
import { DatabaseStartError } from './reach'

/** Key of the table `meta`: a failover lost commits, and no operator has accepted that. */
export const lossKey = 'went-back'

/** Notes that the database lacks commits that it had acknowledged: every gateway ends. */
export async function noteLoss(query: Query): Promise<void> {
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
