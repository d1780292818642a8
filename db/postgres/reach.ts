import { connect, type Line } from './Line'
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

const ignore = () => undefined

export type Reached = { line: Line; server: Server; servers: readonly Server[] }

/**
 * Connects to the first host that is a primary. Throws `DatabaseStartError` with the reason of every
 * host when there is none, and `UrlError` when a file of the URL cannot be read.
 */
export async function reach(
  target: Url.Target,
  { answerMs }: { answerMs?: number | undefined } = {},
): Promise<Reached> {
  const servers = serversOf(target)
  const reasons = new Map<string, string>()
  for (const server of servers) {
    const name = Url.nameOf(server.host)
    try {
      const line = await connect({ client: server.client, session: [], onEnd: ignore, answerMs })
      const reason = await standbyReason(line)
      if (reason === undefined) return { line, server, servers }
      line.close()
      reasons.set(name, reason)
    } catch (error) {
      // With `prefer` the second attempt says more only when there is no TLS.
      if (reasons.get(name)?.startsWith(noTls) !== false) reasons.set(name, reasonOf(error, target))
    }
  }
  const list = [...reasons].map(([name, reason]) => `PostgreSQL at ${name} ${reason}`)
  throw new DatabaseStartError(list.join('\n'))
}

/** Why a server cannot be written; undefined for a primary. */
async function standbyReason(line: Line): Promise<string | undefined> {
  const [row] = await line.run((query) =>
    query<{ standby: boolean; readonly: boolean }>(
      `SELECT pg_is_in_recovery() AS standby,
         current_setting('default_transaction_read_only')::boolean AS readonly`,
    ),
  )
  if (row?.standby !== false)
    return 'is a standby: name the primary in DATABASE_URL, or promote this server'
  if (row.readonly)
    return (
      'is read-only (default_transaction_read_only): name the primary, or set it to off for this ' +
      'user and this database'
    )
  return undefined
}

/** Why a server cannot be reached, after its name. */
export function reasonOf(error: unknown, target: Url.Target): string {
  if (!(error instanceof Error)) return 'cannot be used: report this'
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
      return 'is starting or stopping: try again when it answers'
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
