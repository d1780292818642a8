import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import { createCommits } from '../db/postgres/commits'
import { installFunctions, searchFunctions } from '../db/postgres/functions'
import { type Lines, openLines } from '../db/postgres/lines'
import { migrate } from '../db/postgres/migrate'
import type { Json } from '../db/postgres/rows'
import { sessionOf } from '../db/postgres/session'
import { type Cluster, hasPostgres, startCluster, use } from './harness/postgres'
import { until } from './harness/settlement'

/** A primary and its standby, which takes its place: which of both a gateway uses, and for what. */

const database = 'turnpike'
const settings = { wal_keep_size: '256MB', wal_retrieve_retry_interval: '200' }
const monotonic = () => performance.now()
let first: Cluster
let second: Cluster

const clientOf = ({ port }: Cluster) => ({ host: '127.0.0.1', port, user: 'postgres', database })
const open = (...clusters: readonly Cluster[]): Promise<Lines> =>
  openLines({
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
      await migrate(client, Date.now())
      await client.query('CREATE TABLE marks (n int PRIMARY KEY)')
    })
    const lines = await open(first)
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
    const lines = await open(first)
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
})
