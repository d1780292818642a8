import { DatabaseGoneError, PostgresError } from './errors'
import type { Line, LineOptions, Query } from './Line'
import {
  NoPrimaryError,
  nameOf,
  openPrimary,
  type Place,
  type Primary,
  UnfitError,
} from './primary'
import { type Server, serversOf } from './servers'
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
    if (reasons.get(name)?.startsWith(noTls) !== false) reasons.set(name, reasonOf(error, target))
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
        ? reasonOf(said, target)
        : 'was lost during the start: start again when it answers'
      return new DatabaseStartError(`PostgreSQL at ${Url.describe(target)} ${reason}`)
    }
    each = each.cause
  }
  return error
}

/** Why a server cannot be reached, after its name. */
export function reasonOf(error: unknown, target: Url.Target): string {
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
