import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import * as Crypto from '../../src/protocol/Crypto'
import type { Standby } from '../Database'
import { databaseName } from '../sqlite/directory'
import { fileState } from '../sqlite/moved'
import { assertNoLoss, type Times } from './gateways'
import type { Line, Query } from './Line'
import { DatabaseStartError, isOlder, type Place, reach, type Server, startErrorOf } from './reach'
import * as Url from './Url'

export type AdmitOptions = {
  target: Url.Target
  service: Fingerprints
  /** The directory that had the file of SQLite, if the service had one. */
  dataDir: string
  /** Unix ms. */
  now: () => number
  /** The database is empty, and the rows of the directory are moved into it. */
  isMove?: boolean
  /** The operator accepts that a failover has lost commits. */
  isLossAccepted?: boolean
  tests?: TestOptions | undefined
}

/** What tests may change. There is no setting for it: an operator could set it by mistake. */
type TestOptions = {
  /** Accepts a server that loses commits at a power loss. */
  acceptsLoss?: boolean
  /** Accepts any difference of the clocks, for a service with a clock of its own. */
  acceptsSkew?: boolean
  /** Longest time of a statement, and of a connection's start, ms. */
  answerMs?: number
  /** When processes count as dead. */
  times?: Partial<Times>
}

export type Admitted = {
  /** A connection to the newest primary. */
  line: Line
  place: Place
  /** Where it leads. */
  server: Server
  /** The ways to connect to every host. */
  servers: readonly Server[]
  aheadMs: number
  warnings: readonly string[]
}

/**
 * Looks whether a service may use a database. Throws `DatabaseStartError`, and
 * `UrlError` for a file of the URL; then nothing was written.
 */
export async function admit(options: AdmitOptions): Promise<Admitted> {
  const { target, service, dataDir, now, tests = {} } = options
  const { line, place, server, servers, old } = await reach(target, { answerMs: tests.answerMs })
  const name = Url.describe(target)
  try {
    assertNewest(dataDir, place, Url.nameOf(server.host))
    const { facts, aheadMs, identity } = await line.run(async (query) => ({
      facts: await readFacts(query),
      aheadMs: await readAheadMs(query, now),
      identity: await readIdentity(query),
    }))
    assertFit(facts, Url.nameOf(server.host), tests)
    const skew = tests.acceptsSkew ? undefined : skewReason(aheadMs)
    if (skew !== undefined) throw new DatabaseStartError(skew)
    if (identity !== undefined) assertSameService(identity.service, service, name)
    if (identity !== undefined && !options.isLossAccepted)
      await line.run((query) => assertNoLoss(query, name))
    if (!options.isMove) {
      assertNoFile(dataDir, identity?.id)
      assertSameDatabase(dataDir, identity?.id, name)
    }
    const warnings = [...old.map(oldWarning), ...warningsOf(target, server)]
    return { line, place, server, servers, aheadMs, warnings }
  } catch (error) {
    line.close()
    throw startErrorOf(error, target)
  }
}

/** A file with payments whose rows this database does not have must not be left behind. */
function assertNoFile(dataDir: string, id: string | undefined): void {
  const state = fileState(dataDir, databaseName)
  if (state === undefined) return
  const { file, moved } = state
  if (moved === undefined)
    throw new DatabaseStartError(
      `${file} has the payments of this service, and DATABASE_URL names a database without them: ` +
        'stop the service and run turnpike move, or name another directory with --data',
    )
  if (moved.id === id) return
  throw new DatabaseStartError(
    `${file} was moved to another database (${moved.to}): correct DATABASE_URL, or name another ` +
      'directory with --data',
  )
}

function oldWarning(name: string): string {
  return (
    `PostgreSQL at ${name} was replaced by a newer primary, and still runs as one: stop it, because a ` +
    'gateway that reaches only this one would use it'
  )
}

function warningsOf({ mode }: Url.Target, { host, isEncrypted }: Server): string[] {
  if (Url.isSocket(host) || isLoopback(host.host) || mode === 'verify-full') return []
  const name = Url.nameOf(host)
  if (!isEncrypted)
    return [
      `the connection to PostgreSQL at ${name} is not encrypted: write sslmode=verify-full in ` +
        'DATABASE_URL unless the network is yours alone',
    ]
  if (mode === 'verify-ca') return []
  return [
    `the certificate of PostgreSQL at ${name} is not checked: write sslmode=verify-full in ` +
      'DATABASE_URL, so that no other server can take its place',
  ]
}

function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '::1' || host.startsWith('127.')
}

/** What a start must know of a server. */
export type ServerFacts = {
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

async function readFacts(query: Query): Promise<ServerFacts> {
  const [facts] = await query<ServerFacts>(
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
export function assertFit(facts: ServerFacts, name: string, { acceptsLoss = false } = {}): void {
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
async function readAheadMs(query: Query, now: () => number): Promise<number> {
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

/** Which service a database belongs to, without its secrets. */
export type Fingerprints = {
  /** Address of the receipt key. */
  receipt: string
  /** Addresses of the relayer keys. */
  relayers: readonly string[]
  /** One for each challenge secret; the first one signs. */
  challenges: readonly string[]
  /** Addresses of DESK_KEY, REFUND_KEY and RECEIVER_AUTHORIZER_KEY, where they are set. */
  desk?: string
  refund?: string
  authorizer?: string
}

type Identity = { id: string; service: Fingerprints }

/** Keys of the table `meta`. */
const idKey = 'database'
const serviceKey = 'service'
/** File of a data directory with the id of the database that it was used with. */
const markerName = 'turnpike.database'
/** File of a data directory with the newest primary that it was used with. */
const timelineName = 'turnpike.timeline'

export type KeySecrets = {
  receiptKey: Uint8Array
  relayerKeys: readonly Uint8Array[]
  challengeSecrets: readonly Uint8Array[]
  deskKey: Uint8Array
  isDeskNamed: boolean
  refundKey?: Uint8Array | undefined
  receiverAuthorizerKey?: Uint8Array | undefined
}

/** What identifies the service that has these secrets. */
export function fingerprintsOf({
  receiptKey,
  relayerKeys,
  challengeSecrets,
  deskKey,
  isDeskNamed,
  refundKey,
  receiverAuthorizerKey,
}: KeySecrets): Fingerprints {
  return {
    receipt: Crypto.addressOf(receiptKey),
    relayers: relayerKeys.map(Crypto.addressOf),
    // Without DESK_KEY the first relayer is the desk's account, and gateways may order their relayers
    // differently.
    ...(isDeskNamed && { desk: Crypto.addressOf(deskKey) }),
    ...(refundKey && { refund: Crypto.addressOf(refundKey) }),
    ...(receiverAuthorizerKey && { authorizer: Crypto.addressOf(receiverAuthorizerKey) }),
    // Every challenge publishes an HMAC of the same secret, so this reveals nothing more.
    challenges: challengeSecrets.map((secret) =>
      new Bun.CryptoHasher('sha256', secret).update('fingerprint').digest('hex').slice(0, 16),
    ),
  }
}

/** What the database belongs to; undefined for one that no service has used. */
export async function readIdentity(query: Query): Promise<Identity | undefined> {
  const [table] = await query<{ name: string | null }>("SELECT to_regclass('meta')::text AS name")
  if (table?.name == null) return undefined
  const rows = await query<{ key: string; value: string }>(
    'SELECT key, value FROM meta WHERE key IN ($1, $2)',
    [idKey, serviceKey],
  )
  const values = new Map(rows.map(({ key, value }) => [key, value]))
  const [id, service] = [values.get(idKey), values.get(serviceKey)]
  if (id === undefined || service === undefined) return undefined
  return { id, service: JSON.parse(service) }
}

/**
 * Throws `DatabaseStartError` when the database belongs to another service. A service that shares one
 * key is the same one: keys are replaced one after the other.
 */
function assertSameService(stored: Fingerprints, own: Fingerprints, name: string): void {
  const shares = (one: readonly string[], other: readonly string[]) =>
    one.some((each) => other.includes(each))
  if (stored.receipt === own.receipt || shares(stored.relayers, own.relayers)) return
  if (shares(stored.challenges, own.challenges)) return
  throw new DatabaseStartError(
    `the database ${name} belongs to another service, which signs its receipts as ${stored.receipt} ` +
      `and sends as ${stored.relayers.join(', ')}: name a database of its own in DATABASE_URL. If ` +
      'you have replaced all keys of one service, start it with one of the previous keys first',
  )
}

/**
 * Throws `DatabaseStartError` when a gateway that lives has other keys: its challenges, receipts and
 * relayers would be others.
 */
export async function assertSameKeys(query: Query, own: Fingerprints): Promise<void> {
  const [table] = await query<{ name: string | null }>(
    "SELECT to_regclass('gateways')::text AS name",
  )
  if (table?.name == null) return
  const rows = await query<{ host: string; fingerprints: Fingerprints }>(
    `SELECT host, fingerprints FROM gateways WHERE seen_at > clock_timestamp() - interval '10 s'`,
  )
  for (const { host, fingerprints } of rows) {
    const { receipt, relayers, challenges, ...given } = fingerprints
    const named = [
      ['DESK_KEY', given.desk, own.desk],
      ['REFUND_KEY', given.refund, own.refund],
      ['RECEIVER_AUTHORIZER_KEY', given.authorizer, own.authorizer],
    ] as const
    const [signing = ''] = challenges
    const [ownSigning = ''] = own.challenges
    const differing = [
      receipt !== own.receipt && `RECEIPT_KEY (${receipt}, here ${own.receipt})`,
      relayers.toSorted().join() !== own.relayers.toSorted().join() &&
        `RELAYER_KEYS (${relayers.join(', ')}, here ${own.relayers.join(', ')})`,
      !(challenges.includes(ownSigning) && own.challenges.includes(signing)) && 'CHALLENGE_SECRETS',
      ...named.map(
        ([name, its, ours]) =>
          its !== undefined &&
          ours !== undefined &&
          its !== ours &&
          `${name} (${its}, here ${ours})`,
      ),
    ].filter((name) => name !== false)
    if (differing.length === 0) continue
    throw new DatabaseStartError(
      `the gateway on ${host} has another ${differing.join(' and ')}: all gateways of a database have ` +
        'the same. To replace a challenge secret, first add the new one at the end everywhere',
    )
  }
}

/** Stores the service of the database, and returns the database's id, which the first call sets. */
export async function writeIdentity(
  query: Query,
  service: Fingerprints,
  given: string = crypto.randomUUID(),
): Promise<string> {
  await query(
    `INSERT INTO meta (key, value) VALUES ($1, $2)
     ON CONFLICT (key) DO NOTHING`,
    [idKey, given],
  )
  await query(
    `INSERT INTO meta (key, value) VALUES ($1, $2)
     ON CONFLICT (key) DO UPDATE SET value = excluded.value WHERE meta.value <> excluded.value`,
    [serviceKey, JSON.stringify(service)],
  )
  const [row] = await query<{ value: string }>('SELECT value FROM meta WHERE key = $1', [idKey])
  if (row === undefined) throw new DatabaseStartError('the table meta keeps no rows: report this')
  return row.value
}

/**
 * Throws `DatabaseStartError` when the data directory was used with another database: with an empty
 * one, paid credentials would be accepted again.
 */
function assertSameDatabase(dataDir: string, id: string | undefined, name: string): void {
  const path = join(dataDir, markerName)
  const used = existsSync(path) ? readFileSync(path, 'utf8').trim() : undefined
  if (used === undefined || used === id) return
  const what = id === undefined ? 'is empty' : 'is another one'
  throw new DatabaseStartError(
    `the database ${name} ${what}, and ${path} says that this service has used the database ` +
      `${used}: correct DATABASE_URL, or restore a backup. Without it paid credentials are accepted ` +
      `again and orders are lost; to use this database, remove ${path}`,
  )
}

/** Notes which database the directory is used with. */
export function markDatabase(dataDir: string, id: string): void {
  const path = join(dataDir, markerName)
  if (existsSync(path) && readFileSync(path, 'utf8').trim() === id) return
  writeFileSync(path, `${id}\n`, { mode: 0o600 })
}

/**
 * Throws `DatabaseStartError` when the service has used a primary that took the place of this one: what
 * was paid there is unknown here. A database cannot say so itself, because the old primary has the rows
 * of its own time only.
 */
function assertNewest(dataDir: string, place: Place, name: string): void {
  const path = join(dataDir, timelineName)
  const [system = '', timeline] = existsSync(path) ? readFileSync(path, 'utf8').split(/\s/) : []
  const used = { system, timeline: Number(timeline) }
  if (!isOlder(place, used)) return
  throw new DatabaseStartError(
    `PostgreSQL at ${name} is an old primary: it is of the timeline ${place.timeline}, and ${path} ` +
      `says that this service has used the timeline ${used.timeline}. Name the primary that took its ` +
      'place in DATABASE_URL, and stop this one. If that primary is lost, its payments are accepted ' +
      `again; to use this one nevertheless, end all gateways and remove ${path} of each`,
  )
}

/** Notes which primary the directory is used with. */
export function markPlace(dataDir: string, { system, timeline }: Place): void {
  writeFileSync(join(dataDir, timelineName), `${system} ${timeline}\n`, { mode: 0o600 })
}
