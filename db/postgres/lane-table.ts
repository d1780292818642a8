import type { Address } from 'viem'
import type * as Network from '../../src/protocol/Network'
import type { Lane, Overview } from '../LaneLedger'
import { keeper } from './fences'
import type { Query } from './Line'
import { lossKey } from './loss'
import type { Json } from './rows'

/** The statements on the tables `gateways` and `lanes`. */

/** This process among those that share the database. */
export type Gateway = {
  /** A UUID, new at each start. */
  id: string
  host: string
  version: string
  /** Hash of the configuration in force. */
  configHash(): string
  /** Short hashes of the keys that all gateways must share, by name. */
  fingerprints: Readonly<Record<string, Json | undefined>>
}

export type LaneRow = { network: Network.Id; relayer: string; holder: string | null } & Held

/** What the holder of a lane knows of it. */
export type Held = { epoch: number; next_nonce: number }

/** Both tables, read one after the other. `isBack`: the database lacks commits. */
export type Seen = { lanes: readonly LaneRow[]; gateways: readonly string[]; isBack: boolean }

export function keyOf({ network, relayer = keeper as Address }: Lane): string {
  return `${network} ${relayer}`
}

export function laneOf({ network, relayer }: Pick<LaneRow, 'network' | 'relayer'>): Lane {
  return { network, relayer: relayer === keeper ? undefined : (relayer as Address) }
}

export async function register(query: Query, gateway: Gateway): Promise<void> {
  const { id, host, version, configHash, fingerprints } = gateway
  await query(
    `INSERT INTO gateways (id, host, version, config_hash, fingerprints, seen_at)
     VALUES ($1, $2, $3, $4, $5, clock_timestamp())`,
    [id, host, version, configHash(), JSON.stringify(fingerprints)],
  )
}

/** A sign of life: the time of the database (unix ms), undefined when the others removed this one. */
export async function sign(
  query: Query,
  { id, configHash }: Pick<Gateway, 'id' | 'configHash'>,
): Promise<number | undefined> {
  const [row] = await query<{ at: number }>(
    `UPDATE gateways SET seen_at = clock_timestamp(), config_hash = $2 WHERE id = $1
     RETURNING (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS at`,
    [id, configHash()],
    { name: 'beat' },
  )
  return row?.at
}

/** Removes the other gateways that gave no sign of life for `deadMs`. Returns their ids. */
export async function reap(query: Query, id: string, deadMs: number): Promise<readonly string[]> {
  const dead = await query<{ id: string }>(
    `DELETE FROM gateways WHERE seen_at < clock_timestamp() - make_interval(secs => $2)
     AND id <> $1 RETURNING id`,
    [id, deadMs / 1_000],
    { name: 'reap' },
  )
  return dead.map((each) => each.id)
}

/** A lane exists from the first start that names it. */
export async function createLanes(query: Query, lanes: readonly Lane[]): Promise<void> {
  const rows = lanes.map(({ network, relayer = keeper }) => ({ network, relayer }))
  await query(
    `INSERT INTO lanes (network, relayer, epoch, next_nonce)
     SELECT network, relayer, 0, 0
     FROM jsonb_to_recordset($1::jsonb) AS lane (network text, relayer text)
     ORDER BY network, relayer ON CONFLICT DO NOTHING`,
    [JSON.stringify(rows)],
  )
}

export async function readLanes(query: Query): Promise<Seen> {
  const gateways = await query<{ id: string; isBack: boolean }>(
    `SELECT id, EXISTS (SELECT 1 FROM meta WHERE key = $1) AS "isBack" FROM gateways ORDER BY id`,
    [lossKey],
    { name: 'gateways' },
  )
  const lanes = await query<LaneRow>(
    'SELECT network, relayer, holder, epoch, next_nonce FROM lanes ORDER BY network, relayer',
    [],
    { name: 'lanes' },
  )
  const isBack = gateways.some((each) => each.isBack)
  return { lanes, gateways: gateways.map(({ id }) => id), isBack }
}

/** What an operator sees of both tables. */
export async function readOverview(query: Query): Promise<Overview> {
  const gateways = await query<Overview['gateways'][number]>(
    `SELECT id, host, version, config_hash AS "configHash",
       (extract(epoch FROM clock_timestamp() - seen_at) * 1000)::bigint AS "seenMsAgo"
     FROM gateways ORDER BY host, id`,
  )
  const { lanes } = await readLanes(query)
  return {
    gateways,
    lanes: lanes.map((row) => ({
      ...laneOf(row),
      holder: row.holder ?? undefined,
      epoch: row.epoch,
      nextNonce: row.next_nonce,
    })),
  }
}

/**
 * Takes a lane that is free, with the next epoch. A lane that this gateway has in the database, because
 * the answer to an earlier take was lost, is taken again. Undefined when another gateway was faster.
 */
export async function takeLane(query: Query, lane: Lane, id: string): Promise<Held | undefined> {
  const { network, relayer = keeper } = lane
  const [taken] = await query<Held>(
    `UPDATE lanes SET holder = $3, epoch = epoch + 1
     WHERE network = $1 AND relayer = $2 AND (holder IS NULL OR holder = $3)
     RETURNING epoch, next_nonce`,
    [network, relayer, id],
    { name: 'take' },
  )
  return taken
}

/** Gives a lane back, and tells the others. */
export async function giveLane(query: Query, lane: Lane, id: string): Promise<void> {
  const { network, relayer = keeper } = lane
  await query(
    `WITH given AS (
       UPDATE lanes SET holder = NULL
       WHERE network = $1 AND relayer = $2 AND holder = $3 RETURNING network)
     SELECT pg_notify('turnpike', '{"lanes":true}') FROM given`,
    [network, relayer, id],
    { name: 'give' },
  )
}

/** Leaves the gateways; the foreign key gives all lanes back. */
export async function leave(query: Query, id: string): Promise<void> {
  await query('DELETE FROM gateways WHERE id = $1', [id])
  await query(`SELECT pg_notify('turnpike', '{"lanes":true}')`)
}
