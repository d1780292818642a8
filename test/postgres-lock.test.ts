import { afterAll, describe, expect, test } from 'bun:test'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { admit } from '../db/postgres/admit'
import { keepLock } from '../db/postgres/sole'
import * as Url from '../db/postgres/Url'
import { createHealth, type Sources } from '../src/http/health'
import { emptyDatabase, hasPostgres, use } from './harness/postgres'

/** The lock of the one service that uses a database, and what it learns of the server. */

const directory = mkdtempSync(join(tmpdir(), 'turnpike-lock-'))
afterAll(() => rmSync(directory, { recursive: true, force: true }))

const service = { receipt: '0xR1', relayers: ['0xA1'], challenges: ['c1'] }
describe.skipIf(!hasPostgres)('the lock of a database', () => {
  async function start(url: string, { now = Date.now, lookMs = 20 } = {}) {
    const target = Url.parse(url)
    const tests = { acceptsLoss: true, acceptsSkew: true }
    const { line, aheadMs } = await admit({ target, service, dataDir: directory, now, tests })
    const taken = Promise.withResolvers<void>()
    const sole = keepLock({ target, line, now, aheadMs, onTaken: taken.resolve, lookMs })
    return { sole, taken: taken.promise }
  }

  const holders = `SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`

  const until = async (done: () => boolean | Promise<boolean>) => {
    while (!(await done())) await Bun.sleep(5)
  }

  test('behavior: after the connection is lost the lock is taken again', async () => {
    const url = await emptyDatabase()
    const { sole } = await start(url)
    await use(url, async (client) => {
      const [first] = (await client.query(holders)).rows
      await client.query('SELECT pg_terminate_backend($1)', [first.pid])
      await until(async () => {
        const [next] = (await client.query(holders)).rows
        return next !== undefined && next.pid !== first.pid
      })
    })
    await expect(start(url)).rejects.toThrow('another turnpike uses the database')
    sole.close()
    await use(url, (client) => until(async () => (await client.query(holders)).rows.length === 0))
    ;(await start(url)).sole.close()
  })

  test('error: a service whose lock another one took meanwhile is told so', async () => {
    const url = await emptyDatabase()
    // The server ends a connection within 100 ms of a request.
    const { sole, taken } = await start(url, { lookMs: 400 })
    await use(url, async (client) => {
      // Again when the service was faster.
      await client.query(
        `DO $$ BEGIN
           LOOP
             PERFORM pg_terminate_backend(pid, 5000) FROM (${holders}) AS holder;
             EXIT WHEN pg_try_advisory_lock(7408122);
           END LOOP;
         END $$`,
      )
      await taken
    })
    sole.close()
  })

  test('behavior: the clock and the standbys are known, and a difference is a reason', async () => {
    const url = await emptyDatabase()
    let behindMs = 0
    const { sole } = await start(url, { now: () => Date.now() - behindMs })
    await until(() => sole.server.standby() === 'none')
    expect([Math.abs(sole.server.aheadMs()) < 5_000, sole.server.reason()]).toEqual([
      true,
      undefined,
    ])
    behindMs = 60_000
    await until(() => sole.server.aheadMs() > 50_000)
    expect(sole.server.reason()).toMatch(/^the clock of PostgreSQL is (59|60)\.\d s ahead of/)
    sole.close()
  })
})

test('behavior: readyz shows the server, and names a clock that differs', async () => {
  const sources: Sources = {
    canSell: () => true,
    networks: () => [],
    merchantsOutOfService: () => [],
    spentBudgets: async () => [],
    openCircuits: () => [],
    storageFaults: () => [],
    certificateFaults: () => [],
  }
  const ask = async (database?: Sources['database']) => {
    const answer = await createHealth({ ...sources, ...(database && { database }) }).readyz()
    return [answer.status, await answer.json()]
  }
  const none = { networks: [], merchants: [], sponsor: [], circuits: [] }
  const notReady = { ...none, storage: [], certificates: [] }
  expect(await ask()).toEqual([200, { status: 'ok', notReady, networks: [] }])
  const server = { aheadMs: () => 12.4, reason: () => undefined, standby: () => 'sync' }
  expect(await ask(server)).toEqual([
    200,
    {
      status: 'ok',
      notReady: { ...notReady, database: [] },
      networks: [],
      database: { standby: 'sync', clockAheadMs: 12 },
    },
  ])
  expect(await ask({ ...server, reason: () => 'the clock' })).toEqual([
    503,
    expect.objectContaining({ notReady: { ...notReady, database: [{ reason: 'the clock' }] } }),
  ])
})
