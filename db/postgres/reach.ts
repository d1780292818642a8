import { readFileSync } from 'node:fs'
import { type ConnectionOptions, checkServerIdentity } from 'node:tls'
import type { ClientConfig } from 'pg'
import { DatabaseGoneError, PostgresError } from './errors'
import { connect, type Line, type LineOptions, type Query } from './Line'
import * as Url from './Url'

/**
 * The database server cannot be used as it is. The message says why and what to do, and shows no
 * password. Nothing was written.
 */
export class DatabaseStartError extends Error {
  override readonly name = 'DatabaseStartError'
}

const noTls = 'refuses TLS'

type Reached = {
  line: Line
  place: Place
  server: Server
  servers: readonly Server[]
  /** Names of primaries that were replaced and still run. */
  old: readonly string[]
}

/**
 * Connects to the newest primary of all hosts. Throws `DatabaseStartError` with the reason of every
 * host when there is none, and `UrlError` when a file of the URL cannot be read.
 */
export async function reach(
  target: Url.Target,
  { answerMs }: { answerMs?: number | undefined } = {},
): Promise<Reached> {
  const servers = serversOf(target)
  // A lock is named before the connection counts as silent.
  const session = [`SET lock_timeout = ${Math.round((answerMs ?? 6_000) * 0.8)}`]
  const options = { session, onEnd: () => undefined, answerMs }
  try {
    const found = await openPrimary(
      servers.map(({ client }) => client),
      options,
    )
    const server = servers.find(({ client }) => client === found.client)
    if (server === undefined) throw new Error('a server that was not asked')
    if (found.process !== found.line.process)
      await assertSessions(found, options).catch((error) => {
        found.line.close()
        throw error
      })
    return { ...found, server, servers, old: found.old.map(nameOf) }
  } catch (error) {
    throw startErrorOf(error, target)
  }
}

/**
 * Throws `DatabaseStartError` for a pooler that gives each transaction another session: its settings
 * would be those of another connection, and a commit that must be on the disk could be one that need not.
 * Such a pooler takes the session of the longest or of the shortest rest. The first shows in two
 * statements, the second in a transaction of another connection.
 */
async function assertSessions(
  { client, line, process }: Primary,
  options: Omit<LineOptions, 'client'>,
): Promise<void> {
  const processOf = async (query: Query) =>
    (await query<{ pid: number }>('SELECT pg_backend_pid() AS pid'))[0]?.pid
  const isSame = async () => (await line.run(processOf)) === process
  if (await isSame()) {
    const { line: second } = await openPrimary([client], options)
    const isKept = await second
      .run(async (query) => {
        await query('BEGIN')
        return (await processOf(query)) !== process && (await isSame())
      })
      .finally(second.close)
    if (isKept) return
  }
  throw new DatabaseStartError(
    `PostgreSQL at ${nameOf(client)} is behind a pooler that keeps no sessions, such as pgbouncer with ` +
      'pool_mode = transaction: name the server itself in DATABASE_URL',
  )
}

/** Why no host can be used, one line for each. */
function reasonsOf({ failures }: NoPrimaryError, target: Url.Target): readonly string[] {
  const reasons = new Map<string, string>()
  for (const { client, error } of failures) {
    const name = nameOf(client)
    // With `prefer` the second attempt says more only when there is no TLS.
    if (reasons.get(name)?.startsWith(noTls) !== false)
      reasons.set(name, unreachableReasonOf(error, target))
  }
  return [...reasons].map(([name, reason]) => `PostgreSQL at ${name} ${reason}`)
}

/** What the server refused at a start, with the remedy. Any other error is returned as it is. */
export function startErrorOf(error: unknown, target: Url.Target): unknown {
  let each = error
  while (each instanceof Error && !(each instanceof DatabaseStartError)) {
    if (each instanceof NoPrimaryError)
      return new DatabaseStartError(reasonsOf(each, target).join('\n'))
    const isGone = each instanceof DatabaseGoneError
    if (isGone || each instanceof PostgresError) {
      // A lost connection has a state only when the server has ended it.
      const said = isGone ? each.cause : each
      const isState =
        said instanceof Error && 'code' in said && /^[0-9A-Z]{5}$/.test(`${said.code}`)
      const reason = isState
        ? unreachableReasonOf(said, target)
        : 'was lost during the start: start again when it answers'
      return new DatabaseStartError(`PostgreSQL at ${Url.describe(target)} ${reason}`)
    }
    each = each.cause
  }
  return error
}

/** Why a server cannot be reached, after its name. */
export function unreachableReasonOf(error: unknown, target: Url.Target): string {
  if (!(error instanceof Error)) return 'cannot be used: report this'
  if (error instanceof UnfitError) return error.message
  const code = 'code' in error ? String(error.code) : ''
  return byCode(code, target) ?? tlsReason(error, code) ?? otherReason(error, code, target)
}

/** SQLSTATEs of a server that refuses a connection, and codes of the system. */
function byCode(code: string, { user, database, password }: Url.Target): string | undefined {
  const listens = 'start it, or correct host and port in DATABASE_URL'
  switch (code) {
    case '28P01':
      return password === undefined
        ? `asks for a password of the user ${user}: write it into DATABASE_URL`
        : `refuses the password of the user ${user}: correct it in DATABASE_URL`
    case '3D000':
      return (
        `has no database ${database}: create it (createdb ${database}), or correct the name in ` +
        'DATABASE_URL'
      )
    case '42501':
      return `does not let the user ${user} use the database ${database}: grant CONNECT on it`
    case '53300':
      return 'has no free connection: raise max_connections, or end other clients'
    case '57P03':
      return (
        'is starting or stopping, or is a standby without hot_standby: start again when it answers, or ' +
        'name the primary in DATABASE_URL'
      )
    case '25006':
      return 'is a standby, or is read-only: name the primary in DATABASE_URL'
    case '57014':
      return (
        'has not ended a statement in time, or an operator has cancelled it: look for load and locks ' +
        '(SELECT pid, state, query FROM pg_stat_activity), and try again'
      )
    case '55P03':
      return (
        'has a lock that turnpike waits for: end the session that has it (SELECT pid, state, query FROM ' +
        'pg_stat_activity, then pg_terminate_backend), and try again'
      )
    case 'ECONNREFUSED':
    case 'ENOENT':
      return `does not listen there (${code}): ${listens}`
    case 'ENOTFOUND':
    case 'EAI_AGAIN':
    case 'DNS_ENOTFOUND':
      return `has a name that is not known (${code}): correct the host in DATABASE_URL`
    case 'EHOSTUNREACH':
    case 'ENETUNREACH':
    case 'ETIMEDOUT':
      return `does not answer (${code}): check the network and the firewall before it`
    case 'EACCES':
      return 'has a socket that this user cannot open (EACCES): run turnpike in its group'
    default:
      return undefined
  }
}

function tlsReason({ message }: Error, code: string): string | undefined {
  if (message.includes('does not support SSL'))
    return `${noTls}: set ssl = on there, or write sslmode=disable for a network that is yours`
  if (/ALTNAME/.test(code) || /altnames/.test(message))
    return (
      'has a certificate of another name: write the name of its certificate in DATABASE_URL, or ' +
      'sslmode=verify-ca'
    )
  if (/^CERT_HAS_EXPIRED/.test(code)) return 'has a certificate that has expired: renew it'
  if (/SELF_SIGNED|UNABLE_TO_(?:VERIFY|GET)|CERT_|UNKNOWN_ISSUER/.test(code))
    return (
      `has a certificate of an authority that is not trusted (${code}): name the file of that ` +
      'authority by sslrootcert= in DATABASE_URL'
    )
  return undefined
}

function otherReason(error: Error, code: string, target: Url.Target): string {
  const said = Url.redact(target, error.message)
  if (code === '28000')
    return (
      `refuses the user ${target.user}: ${said}: create the user, or add a line for it to ` +
      'pg_hba.conf'
    )
  if (/password must be a (?:non-empty )?string|no password/i.test(error.message))
    return `asks for a password of the user ${target.user}: write it into DATABASE_URL`
  if (error.message.includes('startup parameter'))
    return `is behind a pooler (${said}): name the server itself in DATABASE_URL`
  if (code === 'ECONNRESET' || error.message.includes('Connection terminated'))
    return 'ended the connection: start again when it answers, or look into its log'
  if (/timeout|did not answer/i.test(error.message))
    return 'does not answer in time: check host and port, the network and the firewall before it'
  return `cannot be used: ${said}${code === '' ? '' : ` (${code})`}`
}

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
class UnfitError extends Error {
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

type Primary = {
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

function nameOf({ host = 'localhost', port = 5432 }: ClientConfig): string {
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

/** One way to connect to one host of the URL. */
export type Server = { host: Url.Host; isEncrypted: boolean; client: ClientConfig }

/**
 * The ways to connect, in the order in which they are tried. With `prefer` each host comes twice: by
 * TLS, then without. Throws `UrlError` when a file of the URL cannot be read.
 */
export function serversOf(target: Url.Target): readonly Server[] {
  const files = readFiles(target.files)
  return target.hosts.flatMap((host) =>
    waysOf(target.mode, host).map((isEncrypted) => ({
      host,
      isEncrypted,
      client: {
        host: host.host,
        port: host.port,
        user: target.user,
        database: target.database,
        // A function, so that the driver reads neither PGPASSWORD nor ~/.pgpass.
        password: () => target.password ?? '',
        ssl: isEncrypted ? { ...files, ...checksOf(target.mode, host.host) } : false,
        application_name: 'turnpike',
        // Otherwise PGOPTIONS would be read.
        options: '-c client_encoding=UTF8',
      },
    })),
  )
}

function waysOf(mode: Url.Mode, host: Url.Host): boolean[] {
  if (mode === 'disable' || Url.isSocket(host)) return [false]
  return mode === 'prefer' ? [true, false] : [true]
}

/** What of the server's certificate is checked. */
function checksOf(mode: Url.Mode, host: string): ConnectionOptions {
  if (mode === 'verify-full')
    return {
      rejectUnauthorized: true,
      // By hand, because the driver names no host that is an address.
      checkServerIdentity: (_, certificate) => checkServerIdentity(host, certificate),
    }
  if (mode === 'verify-ca')
    return { rejectUnauthorized: true, checkServerIdentity: () => undefined }
  return { rejectUnauthorized: false }
}

function readFiles({ rootCertificate, certificate, key }: Url.Target['files']): ConnectionOptions {
  return {
    ...(rootCertificate !== undefined && { ca: readPem(rootCertificate, 'sslrootcert') }),
    ...(certificate !== undefined && { cert: readPem(certificate, 'sslcert') }),
    ...(key !== undefined && { key: readPem(key, 'sslkey') }),
  }
}

function readPem(path: string, name: string): string {
  let text: string
  try {
    text = readFileSync(path, 'utf8')
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? error.code : 'unknown error'
    throw new Url.UrlError(
      `the file that ${name} in DATABASE_URL names cannot be read (${code}): name one that the ` +
        'user of turnpike can read',
    )
  }
  if (text.includes('-----BEGIN ')) return text
  throw new Url.UrlError(`the file that ${name} in DATABASE_URL names is no PEM`)
}
