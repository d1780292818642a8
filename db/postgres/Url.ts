import { isIPv6 } from 'node:net'

/** How a connection is encrypted, by the names of libpq. */
export type Mode = 'disable' | 'prefer' | 'require' | 'verify-ca' | 'verify-full'

/** A server: a DNS name, an address, or the directory of a Unix socket. */
export type Host = { host: string; port: number }

/** What DATABASE_URL names. */
export type Target = {
  /** All are asked; the newest primary is used. */
  hosts: readonly Host[]
  user: string
  /** Undefined for a server that asks for none, such as one with `peer`. */
  password: string | undefined
  database: string
  mode: Mode
  /** Files of PEM: the authorities of the server, and the certificate and key of this client. */
  files: { rootCertificate?: string; certificate?: string; key?: string }
}

/** DATABASE_URL cannot be read. The message shows neither the URL nor a part of its password. */
export class UrlError extends Error {
  override readonly name = 'UrlError'
}

const defaultPort = 5432
const modes: readonly Mode[] = ['disable', 'prefer', 'require', 'verify-ca', 'verify-full']
const parameters = [
  'host',
  'port',
  'user',
  'password',
  'sslmode',
  'sslrootcert',
  'sslcert',
  'sslkey',
  'target_session_attrs',
] as const
type Name = (typeof parameters)[number]
type Query = Partial<Record<Name, string>>

const form = 'write postgres://USER:PASSWORD@HOST:5432/DATABASE?sslmode=verify-full'

/**
 * Reads `postgres://user:password@a:5432,b:5432/database?sslmode=verify-full`. Throws `UrlError`
 * with one fault. It is stricter than libpq: a password with an unencoded `@` or `/` is refused,
 * because a part of it would be read, and shown, as a host.
 */
export function parse(text: string): Target {
  const [, rest] = /^postgres(?:ql)?:\/\/(.*)$/s.exec(text) ?? []
  if (rest === undefined)
    throw new UrlError(`DATABASE_URL does not begin with postgres://: ${form}`)
  assertEncoded(rest)
  const [, authority = '', path, search] = /^([^/?]*)(?:\/([^?]*))?(?:\?(.*))?$/s.exec(rest) ?? []
  const query = queryOf(search ?? '')
  const [credentials, addresses] = halves(authority)
  const [user, password] = credentialsOf(credentials, query)
  if (user === '') throw new UrlError(`DATABASE_URL names no user: ${form}`)
  const database = decode(path ?? '', 'the name of the database')
  if (database === '') throw new UrlError(`DATABASE_URL names no database: ${form}`)
  if (database.includes('/'))
    throw new UrlError('the name of the database in DATABASE_URL has a /: write the name only')
  const hosts = hostsOf(addresses, query)
  assertSession(query.target_session_attrs)
  return { hosts, user, password, database, mode: modeOf(query, hosts), files: filesOf(query) }
}

/** Whether a host is the directory of a Unix socket. */
export function isSocket({ host }: Host): boolean {
  return host.startsWith('/')
}

/** A host for a message: `db.example.com:5432`, or the path of a socket. */
export function nameOf(host: Host): string {
  if (isSocket(host)) return `${host.host}/.s.PGSQL.${host.port}`
  return isIPv6(host.host) ? `[${host.host}]:${host.port}` : `${host.host}:${host.port}`
}

/** Where the database is, for a message: without user and password. */
export function describe({ hosts, database }: Target): string {
  return `${hosts.map(nameOf).join(',')}/${database}`
}

/** A text of the driver or of the server without the password. */
export function redact({ password }: Pick<Target, 'password'>, text: string): string {
  if (!password) return text
  return text.replaceAll(password, '***').replaceAll(encodeURIComponent(password), '***')
}

/** Characters whose meaning is uncertain in a password that is not percent-encoded. */
function assertEncoded(rest: string): void {
  const encode =
    'DATABASE_URL has characters that must be percent-encoded: in a password write @ as %40, ' +
    '/ as %2F, ? as %3F, # as %23 and a blank as %20'
  const firstEnd = rest.search(/[/?]/)
  const authority = firstEnd < 0 ? rest : rest.slice(0, firstEnd)
  const isUnclear = authority.split('@').length > 2 || rest.slice(authority.length).includes('@')
  if (isUnclear || /[#\s\p{Cc}]/u.test(rest)) throw new UrlError(encode)
}

function halves(authority: string): [credentials: string, addresses: string] {
  const [first = '', second] = authority.split('@')
  return second === undefined ? ['', first] : [first, second]
}

function credentialsOf(text: string, query: Query): [user: string, password: string | undefined] {
  const colon = text.indexOf(':')
  const user = decode(colon < 0 ? text : text.slice(0, colon), 'the user')
  const password = colon < 0 ? '' : decode(text.slice(colon + 1), 'the password')
  return [query.user ?? user, query.password || password || undefined]
}

function decode(text: string, what: string): string {
  try {
    const decoded = decodeURIComponent(text)
    // The protocol ends texts by a zero.
    if (!decoded.includes('\0')) return decoded
  } catch {
    // Reported below, without the text.
  }
  throw new UrlError(`${what} in DATABASE_URL is not percent-encoded UTF-8: write % as %25`)
}

function queryOf(search: string): Query {
  const query: Query = {}
  for (const part of search.split('&')) {
    if (part === '') continue
    const [key = '', ...rest] = part.split('=')
    const name = parameters.find((each) => each === key)
    // The key of an unknown one is not shown: it may be the rest of a password.
    if (name === undefined)
      throw new UrlError(
        `DATABASE_URL has a parameter other than ${parameters.join(', ')}: remove it`,
      )
    if (query[name] !== undefined) throw new UrlError(`DATABASE_URL has ${name} twice: remove one`)
    query[name] = decode(rest.join('='), name)
  }
  return query
}

function hostsOf(addresses: string, query: Query): Host[] {
  if (query.host !== undefined && addresses !== '')
    throw new UrlError(
      'DATABASE_URL names hosts before the database and by host=: write one of both',
    )
  const named = query.host === undefined ? addresses : bracketed(query.host)
  const ports = query.port?.split(',') ?? []
  if (named === '')
    throw new UrlError(
      `DATABASE_URL names no host: ${form}, or ?host=/run/postgresql for a Unix socket`,
    )
  const parts = named.split(',')
  if (ports.length > 1 && ports.length !== parts.length)
    throw new UrlError('port= in DATABASE_URL must have one port, or as many as there are hosts')
  return parts.map((part, index) => hostOf(part, index + 1, ports[index] ?? ports[0]))
}

/** IPv6 addresses have no brackets in `host=`, as libpq reads it. */
function bracketed(list: string): string {
  return list
    .split(',')
    .map((each) => (isIPv6(each) ? `[${each}]` : each))
    .join(',')
}

function hostOf(text: string, number: number, given: string | undefined): Host {
  const [, name, own] = /^(\[[^\]]*\]|[^:]*)(?::(.*))?$/s.exec(text) ?? []
  const host = decode(name ?? '', `host ${number}`)
  const port = own ?? given
  if (port !== undefined && !isPort(port))
    throw new UrlError(`the port of host ${number} in DATABASE_URL is no number from 1 to 65535`)
  const plain = host.replace(/^\[(.*)\]$/, '$1')
  const isName = plain === host && /^[\w.-]+$/.test(host)
  if (!isName && !host.startsWith('/') && !(plain !== host && isIPv6(plain)))
    throw new UrlError(
      `host ${number} in DATABASE_URL is no name, no address and no directory: write a name, an ` +
        'IPv4 address, an IPv6 address in brackets, or ?host=/run/postgresql',
    )
  return { host: plain, port: port === undefined ? defaultPort : Number(port) }
}

function isPort(text: string): boolean {
  return /^\d{1,5}$/.test(text) && Number(text) > 0 && Number(text) < 65_536
}

/** `prefer` by default, as libpq: TLS where the server offers it, and no check of its name. */
function modeOf(query: Query, hosts: readonly Host[]): Mode {
  const mode = modes.find((each) => each === (query.sslmode ?? 'prefer'))
  if (mode === undefined)
    throw new UrlError(`sslmode in DATABASE_URL is unknown: write ${modes.join(', ')}`)
  if (mode === 'verify-full' && hosts.every(isSocket))
    throw new UrlError(
      'sslmode=verify-full in DATABASE_URL needs a host: a Unix socket has no TLS, remove sslmode',
    )
  // libpq does the same: a file of authorities is there to be used.
  return mode === 'require' && query.sslrootcert !== undefined ? 'verify-ca' : mode
}

function filesOf({ sslrootcert, sslcert, sslkey }: Query): Target['files'] {
  if ((sslcert === undefined) !== (sslkey === undefined))
    throw new UrlError('DATABASE_URL has one of sslcert and sslkey: name both files or none')
  // The authorities that the program has itself are used without a file.
  const isFile = sslrootcert !== undefined && sslrootcert !== 'system'
  return {
    ...(isFile && { rootCertificate: sslrootcert }),
    ...(sslcert !== undefined && { certificate: sslcert }),
    ...(sslkey !== undefined && { key: sslkey }),
  }
}

/** Only a primary can be used: other values would ask for something else. */
function assertSession(value: string | undefined): void {
  if (value === undefined || value === 'read-write' || value === 'primary') return
  throw new UrlError(
    'target_session_attrs in DATABASE_URL must be read-write or primary: remove it, because only ' +
      'a primary is ever used',
  )
}
