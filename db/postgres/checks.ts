import type { Standby } from '../Database'
import type { Query } from './Line'
import { DatabaseStartError } from './reach'

/** What a start must know of a server. */
export type Facts = {
  /** `server_version_num`, such as 150010. */
  version: number
  fsync: boolean
  fullPageWrites: boolean
  encoding: string
  /** Whether this user may create tables in the schema that comes first. */
  mayCreate: boolean
}

const versionMin = 150_000
/** A larger difference of the clocks ends a start. */
const skewMaxMs = 5_000

export async function readFacts(query: Query): Promise<Facts> {
  const [facts] = await query<Facts>(
    `SELECT current_setting('server_version_num')::int AS version,
       current_setting('fsync')::boolean AS fsync,
       current_setting('full_page_writes')::boolean AS "fullPageWrites",
       current_setting('server_encoding') AS encoding,
       current_schema() IS NOT NULL
         AND has_schema_privilege(current_schema(), 'CREATE')
         AND has_database_privilege(current_database(), 'CREATE') AS "mayCreate"`,
  )
  if (facts === undefined) throw new DatabaseStartError('PostgreSQL answers nothing: report this')
  return facts
}

/**
 * Throws `DatabaseStartError` with every reason why commits of this server cannot be relied upon.
 * `acceptsLoss` is for tests, whose servers keep nothing.
 */
export function assertFit(facts: Facts, name: string, { acceptsLoss = false } = {}): void {
  const { version, fsync, fullPageWrites, encoding, mayCreate } = facts
  const loses = (setting: string) =>
    `PostgreSQL at ${name} has ${setting} = off, so that a power loss can undo payments: set it to on`
  const faults = [
    version < versionMin &&
      `PostgreSQL at ${name} is of the version ${majorOf(version)}: turnpike needs 15 or newer`,
    !fsync && !acceptsLoss && loses('fsync'),
    !fullPageWrites && !acceptsLoss && loses('full_page_writes'),
    encoding !== 'UTF8' &&
      `the database at ${name} has the encoding ${encoding}: create it with ENCODING 'UTF8'`,
    !mayCreate &&
      `this user may not create tables and schemas in the database at ${name}: make it the owner ` +
        'of the database',
  ].filter((fault) => fault !== false)
  if (faults.length > 0) throw new DatabaseStartError(faults.join('\n'))
}

function majorOf(version: number): string {
  return String(Math.floor(version / 10_000))
}

/** How far the clock of the server is ahead of ours, ms. */
export async function readAheadMs(query: Query, now: () => number): Promise<number> {
  const before = now()
  const [row] = await query<{ at: number }>(
    'SELECT (extract(epoch FROM clock_timestamp()) * 1000)::float8 AS at',
  )
  return (row?.at ?? 0) - (before + now()) / 2
}

/** Why clocks that differ by so much are a fault; undefined while they agree. */
export function skewReason(aheadMs: number): string | undefined {
  if (Math.abs(aheadMs) <= skewMaxMs) return undefined
  const seconds = (Math.abs(aheadMs) / 1000).toFixed(1)
  const word = aheadMs > 0 ? 'ahead of' : 'behind'
  return (
    `the clock of PostgreSQL is ${seconds} s ${word} the clock of this machine: synchronise both ` +
    '(NTP)'
  )
}

/** What the standbys of a primary keep. Without the role pg_monitor their states are hidden. */
export async function readStandby(query: Query): Promise<Standby> {
  const [row] = await query<{ standbys: number; sync: number; hidden: number; waits: boolean }>(
    `SELECT count(*)::int AS standbys,
       (count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')))::int AS sync,
       (count(*) FILTER (WHERE sync_state IS NULL))::int AS hidden,
       current_setting('synchronous_commit') IN ('on', 'remote_apply') AS waits
     FROM pg_stat_replication`,
  )
  if (row === undefined || row.standbys === 0) return 'none'
  if (row.sync > 0) return row.waits ? 'sync' : 'async'
  return row.hidden > 0 ? 'unknown' : 'async'
}
