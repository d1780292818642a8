import type { ClientConfig } from 'pg'
import { connect, type Line, type LineOptions } from './Line'
import * as Url from './Url'

/** Of a primary. Its standbys, and a primary that was replaced, are of the same system. */
export type Place = {
  system: string
  /** Each promotion of a standby begins a higher one. */
  timeline: number
}

/** Whether a standby of the server at `one` was promoted since. */
export function isOlder(one: Place, other: Place | undefined): boolean {
  return one.system === other?.system && one.timeline < other.timeline
}

/** A server answers, and must not be used. The message follows its name. */
export class UnfitError extends Error {
  override readonly name = 'UnfitError'
}

/** No host has a primary that can be used. */
export class NoPrimaryError extends Error {
  override readonly name = 'NoPrimaryError'
  /** Of each attempt, in the order of the URL. */
  readonly failures: readonly Failure[]

  constructor(failures: readonly Failure[]) {
    super('no host has a primary that can be used', { cause: failures.at(-1)?.error })
    this.failures = failures
  }
}

type Failure = { client: ClientConfig; error: unknown }

export type Primary = {
  client: ClientConfig
  line: Line
  place: Place
  /** Id of the server's process that has answered. Behind a pooler it is not that of the line. */
  process: number
  /** Primaries that this one has replaced, and that still run. */
  old: readonly ClientConfig[]
}

type Found = Omit<Primary, 'old'> & { startedAt: string }

type Seen = {
  process: number
  standby: boolean
  readonly: boolean
  system: string
  timeline: number | null
  startedAt: string
}

const seeSql = `SELECT pg_backend_pid() AS process, pg_is_in_recovery() AS standby,
  current_setting('default_transaction_read_only')::boolean AS readonly,
  (pg_control_system()).system_identifier::text AS system,
  CASE WHEN NOT pg_is_in_recovery()
    THEN ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int END AS timeline,
  extract(epoch FROM pg_postmaster_start_time())::text AS "startedAt"`

/**
 * Connects to the newest primary of all hosts. An old primary that runs again looks like the new one, so
 * the first that answers may be wrong. `servers` has the ways to each host in the order in which they
 * are tried. Throws `NoPrimaryError`.
 */
export async function openPrimary(
  servers: readonly ClientConfig[],
  options: Omit<LineOptions, 'client'>,
): Promise<Primary> {
  const hosts = Map.groupBy(servers, ({ host, port }) => `${host}:${port}`).values()
  const tried = (await Promise.all([...hosts].map((ways) => openHost(ways, options)))).flat()
  const found = tried.filter((each) => 'line' in each)
  // One that answered early may have ended while the others were asked.
  const open = found.filter(({ line }) => line.isOpen())
  const [best, ...others] = open.toSorted((a, b) => b.place.timeline - a.place.timeline)
  const rival = others.find(
    (each) => !isOlder(each.place, best?.place) && each.startedAt !== best?.startedAt,
  )
  for (const { line } of found) if (line !== best?.line || rival !== undefined) line.close()
  if (best !== undefined && rival === undefined) {
    const old = others.filter(({ place }) => isOlder(place, best.place))
    return { ...best, old: old.map(({ client }) => client) }
  }
  throw new NoPrimaryError(
    tried.map((each) => {
      if ('error' in each) return each
      const { client, place } = each
      const beside = open.filter((other) => other !== each && !isOlder(other.place, place))
      const names = beside.map((other) => nameOf(other.client)).join(' and ')
      const error = new UnfitError(
        names === ''
          ? 'has ended the connection: start again when it answers'
          : `is a primary of the timeline ${place.timeline} beside ${names}, and it is not known which ` +
              'is the newest one: stop those that were replaced',
      )
      return { client, error }
    }),
  )
}

export function nameOf({ host = 'localhost', port = 5432 }: ClientConfig): string {
  return Url.nameOf({ host, port })
}

/** Tries the ways to one host until it answers. */
async function openHost(
  ways: readonly ClientConfig[],
  options: Omit<LineOptions, 'client'>,
): Promise<readonly (Found | Failure)[]> {
  const failures: Failure[] = []
  for (const client of ways) {
    try {
      const line = await connect({ ...options, client })
      return [...failures, await see(client, line)]
    } catch (error) {
      failures.push({ client, error })
      if (error instanceof UnfitError) break
    }
  }
  return failures
}

async function see(client: ClientConfig, line: Line): Promise<Found> {
  try {
    const [row] = await line.run((query) => query<Seen>(seeSql))
    if (row === undefined || row.standby || row.timeline === null)
      throw new UnfitError('is a standby: name the primary in DATABASE_URL, or promote this server')
    if (row.readonly)
      throw new UnfitError(
        'is read-only (default_transaction_read_only): name the primary, or set it to off for this ' +
          'user and this database',
      )
    const { system, timeline, startedAt } = row
    return { client, line, place: { system, timeline }, process: row.process, startedAt }
  } catch (error) {
    line.close()
    throw error
  }
}
