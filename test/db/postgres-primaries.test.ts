import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { admit, markPlace } from '../../db/postgres/admit'
import { createCommits } from '../../db/postgres/commits'
import { DatabaseGoneError } from '../../db/postgres/errors'
import { installFunctions, searchFunctions } from '../../db/postgres/functions'
import { type Lines, type LinesOptions, openLines, sessionOf } from '../../db/postgres/line-pool'
import { migrate } from '../../db/postgres/migrate'
import { NoPrimaryError, type Place } from '../../db/postgres/reach'
import type { Json } from '../../db/postgres/rows'
import * as Url from '../../db/postgres/Url'
import { type Cluster, hasPostgres, queryOf, startCluster, use } from '../harness/postgres'
import { until } from '../harness/settlement'

/** A primary and its standby, which takes its place: which of both a gateway uses, and for what. */

const database = 'turnpike'
const settings = { wal_keep_size: '256MB', wal_retrieve_retry_interval: '200' }
const monotonic = () => performance.now()
let first: Cluster
let second: Cluster

const clientOf = ({ port }: Cluster) => ({ host: '127.0.0.1', port, user: 'postgres', database })
const open = (clusters: readonly Cluster[], more: Partial<LinesOptions> = {}): Promise<Lines> =>
  openLines({
    ...more,
    servers: clusters.map(clientOf),
    name: 'test',
    session: sessionOf,
    monotonic,
    answerMs: 2_000,
  })

describe.skipIf(!hasPostgres)('a primary and its standby', () => {
  beforeAll(async () => {
    first = await startCluster({ tcp: true, settings })
    await first.run(`CREATE DATABASE ${database}`)
    await use(first.url(database), async (client) => {
      await migrate(queryOf(client), Date.now())
      await client.query('CREATE TABLE marks (n int PRIMARY KEY)')
    })
    const lines = await open([first])
    await lines.run('commit', installFunctions)
    await lines.run('commit', async (query) => {
      await query(searchFunctions())
      await query(`CREATE FUNCTION put(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
        BEGIN
          INSERT INTO marks (n) VALUES ((input->>'n')::int);
          RETURN jsonb_build_object('value', input->'n');
        END $$`)
    })
    lines.close()
    second = await startCluster({ tcp: true, settings, standbyOf: first.url() })
  })
  afterAll(async () => {
    await second?.stop()
    await first?.stop()
  })

  test('attack: a commit whose wait for the standby is cancelled is not done before the standby has it', async () => {
    await first.run("ALTER SYSTEM SET synchronous_standby_names = '*'")
    await first.run('SELECT pg_reload_conf()')
    await until(async () =>
      (await first.run('SELECT sync_state FROM pg_stat_replication')).some(
        ({ sync_state }) => sync_state === 'sync',
      ),
    )
    const stop = new AbortController()
    const lines = await open([first])
    const commits = createCommits({
      lines,
      gateway: crypto.randomUUID(),
      messages: { takes: () => false, write: async () => undefined, notify: () => undefined },
      changed: () => undefined,
      signal: stop.signal,
      monotonic,
    })
    /** Processes of the server whose commit waits for the standby. */
    const waiting = async () =>
      (await first.run("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'")).map(
        ({ pid }) => pid,
      )
    await second.crash()
    const added = commits.add<Json>({
      ...{ call: 'put', input: { n: 1 }, key: 'mark:1', read: (value: Json) => value },
    })
    await until(async () => (await waiting()).length > 0)
    const [cancelled] = await waiting()
    await first.run(`SELECT pg_cancel_backend(${cancelled})`)
    const end = await Promise.race([
      added.then(() => 'acknowledged'),
      until(async () => (await waiting()).some((pid) => pid !== cancelled)).then(
        () => 'asked for again',
      ),
    ])
    expect(end).toBe('asked for again')
    await second.start()
    expect(await added).toBe(1)
    expect(await second.run('SELECT n FROM marks', database)).toEqual([{ n: 1 }])
    stop.abort()
    lines.close()
    await first.run('ALTER SYSTEM RESET synchronous_standby_names')
    await first.run('SELECT pg_reload_conf()')
  })

  const kinds = ['commit', 'soon', 'read', 'beat'] as const

  /** Ports of the servers that the lines lead to; undefined while one is being opened. */
  async function portsOf(lines: Lines) {
    const port = 'SELECT inet_server_port() AS port'
    return Promise.all(
      // Two lines of a kind: each takes one of two statements at once.
      [...kinds, ...kinds].map((kind) =>
        lines.run(kind, (query) => query<{ port: number }>(port)).then(([row]) => row?.port),
      ),
    ).catch(() => undefined)
  }
  const leadTo = ({ port }: Cluster, lines: Lines) =>
    until(async () => (await portsOf(lines))?.every((each) => each === port) ?? false)
  /** Ends one connection of the lines at a server. */
  const cutOne = (cluster: Cluster) =>
    cluster.run(
      `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
       WHERE datname = '${database}' ORDER BY backend_start LIMIT 1`,
    )
  const promote = (cluster: Cluster) => cluster.run('SELECT pg_promote()')

  test('attack: no line stays at a primary that was replaced and runs on', async () => {
    const places: Place[] = []
    const lines = await open([first, second], { onPlace: (place) => void places.push(place) })
    await leadTo(first, lines)
    await promote(second)
    await cutOne(first)
    await leadTo(second, lines)
    expect(places).toEqual([{ system: expect.any(String), timeline: 2 }])
    lines.close()
  })

  test('attack: an old primary that runs again is not used beside the new one', async () => {
    const lines = await open([first, second])
    expect(new Set(await portsOf(lines))).toEqual(new Set([second.port]))
    await cutOne(second)
    await until(async () => (await portsOf(lines)) !== undefined)
    expect(new Set(await portsOf(lines))).toEqual(new Set([second.port]))
    // Away, so that only the old one answers.
    await second.crash()
    const refused = await lines.run('read', (query) => query('SELECT 1')).catch((error) => error)
    expect(refused).toBeInstanceOf(DatabaseGoneError)
    await second.start()
    await leadTo(second, lines)
    lines.close()
  })

  test('attack: a start refuses an old primary by the data directory, and warns of one that runs', async () => {
    const dataDir = mkdtempSync(join(tmpdir(), 'turnpike-primaries-'))
    const start = async (...clusters: readonly Cluster[]) => {
      const hosts = clusters.map(({ port }) => `127.0.0.1:${port}`).join()
      const { line, place, server, warnings } = await admit({
        target: Url.parse(`postgres://postgres@${hosts}/${database}?sslmode=disable`),
        service: { receipt: '0xR1', relayers: ['0xA1'], challenges: ['c1'] },
        ...{ dataDir, now: Date.now, tests: { acceptsLoss: true } },
      })
      line.close()
      markPlace(dataDir, place)
      return { port: server.host.port, timeline: place.timeline, warnings }
    }
    expect(await start(first)).toEqual({ port: first.port, timeline: 1, warnings: [] })
    expect(await start(first, second)).toEqual({
      ...{ port: second.port, timeline: 2 },
      warnings: [
        expect.stringContaining(
          `PostgreSQL at 127.0.0.1:${first.port} was replaced by a newer primary, and still runs`,
        ),
      ],
    })
    expect(await start(first).catch((error) => error.message)).toStartWith(
      `PostgreSQL at 127.0.0.1:${first.port} is an old primary: it is of the timeline 1, and ` +
        `${join(dataDir, 'turnpike.timeline')} says that this service has used the timeline 2. Name`,
    )
    rmSync(dataDir, { recursive: true })
  })

  test('error: of two standbys that were both promoted none is used', async () => {
    const third = await startCluster({ tcp: true, settings, standbyOf: first.url() })
    try {
      await promote(third)
      const failed = await open([first, second, third]).catch((error) => error)
      expect(failed).toBeInstanceOf(NoPrimaryError)
      expect(failed.failures[1].error.message).toStartWith(
        `is a primary of the timeline 2 beside 127.0.0.1:${third.port}, and it is not known which is`,
      )
    } finally {
      await third.stop()
    }
  })
})
