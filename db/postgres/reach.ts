import { DatabaseGoneError, PostgresError } from './errors'
import type { Line } from './Line'
import { NoPrimaryError, nameOf, openPrimary, type Place, UnfitError } from './primary'
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

export type Reached = {
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
  try {
    const found = await openPrimary(
      servers.map(({ client }) => client),
      { session: [], onEnd: () => undefined, answerMs },
    )
    const server = servers.find(({ client }) => client === found.client)
    if (server === undefined) throw new Error('a server that was not asked')
    return { ...found, server, servers, old: found.old.map(nameOf) }
  } catch (error) {
    throw startErrorOf(error, target)
  }
}

/** What the server refused at a start, with the remedy. Any other error is returned as it is. */
export function startErrorOf(error: unknown, target: Url.Target): unknown {
  if (error instanceof NoPrimaryError)
    return new DatabaseStartError(reasonsOf(error, target).join('\n'))
  const isGone = error instanceof DatabaseGoneError
  if (!isGone && !(error instanceof PostgresError)) return error
  // Of a connection only what the server said says more than that it was lost.
  const said = isGone ? error.cause : error
  const isState = said instanceof Error && 'code' in said && /^[0-9A-Z]{5}$/.test(`${said.code}`)
  const reason = isState
    ? reasonOf(said, target)
    : 'was lost during the start: start again when it answers'
  return new DatabaseStartError(`PostgreSQL at ${Url.describe(target)} ${reason}`)
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
    case '55P03':
    case '57014':
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
  if (/timeout|did not answer/i.test(error.message))
    return 'does not answer in time: check host and port, the network and the firewall before it'
  return `cannot be used: ${said}${code === '' ? '' : ` (${code})`}`
}
