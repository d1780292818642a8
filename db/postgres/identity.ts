import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import * as Crypto from '../../src/protocol/Crypto'
import type { Query } from './Line'
import { isOlder, type Place } from './primary'
import { DatabaseStartError } from './reach'

/** Which service a database belongs to, without its secrets. */
export type Fingerprints = {
  /** Address of the receipt key. */
  receipt: string
  /** Addresses of the relayer keys. */
  relayers: readonly string[]
  /** One for each challenge secret; the first one signs. */
  challenges: readonly string[]
  /** Address of DESK_KEY, where that is set. */
  desk?: string
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
}

/** What identifies the service that has these secrets. */
export function fingerprintsOf({
  receiptKey,
  relayerKeys,
  challengeSecrets,
  deskKey,
  isDeskNamed,
}: KeySecrets): Fingerprints {
  return {
    receipt: Crypto.addressOf(receiptKey),
    relayers: relayerKeys.map(Crypto.addressOf),
    // Without DESK_KEY the first relayer is the desk's account, and gateways may order their relayers
    // differently.
    ...(isDeskNamed && { desk: Crypto.addressOf(deskKey) }),
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
export function assertSameService(stored: Fingerprints, own: Fingerprints, name: string): void {
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
    const { receipt, relayers, challenges, desk } = fingerprints
    const [signing = ''] = challenges
    const [ownSigning = ''] = own.challenges
    const differing = [
      receipt !== own.receipt && `RECEIPT_KEY (${receipt}, here ${own.receipt})`,
      relayers.toSorted().join() !== own.relayers.toSorted().join() &&
        `RELAYER_KEYS (${relayers.join(', ')}, here ${own.relayers.join(', ')})`,
      !(challenges.includes(ownSigning) && own.challenges.includes(signing)) && 'CHALLENGE_SECRETS',
      desk !== undefined &&
        own.desk !== undefined &&
        desk !== own.desk &&
        `DESK_KEY (${desk}, here ${own.desk})`,
    ].filter((name) => name !== false)
    if (differing.length === 0) continue
    throw new DatabaseStartError(
      `the gateway on ${host} has another ${differing.join(' and ')}: all gateways of a database have ` +
        'the same. To replace a challenge secret, first add the new one at the end everywhere',
    )
  }
}

/** Keeps who uses the database, and returns its id, which the first call decides. */
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
export function assertSameDatabase(dataDir: string, id: string | undefined, name: string): void {
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
export function assertNewest(dataDir: string, place: Place, name: string): void {
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
