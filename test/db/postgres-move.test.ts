import { Database } from 'bun:sqlite'
import { afterAll, beforeEach, describe, expect, test } from 'bun:test'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { type AddressInfo, connect, createServer, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { migrate } from '../../db/postgres/migrate'
import { copyToServer } from '../../db/postgres/move'
import * as Url from '../../db/postgres/Url'
import { databaseName, lock } from '../../db/sqlite/directory'
import { DatabaseMovedError } from '../../db/sqlite/moved'
import { open } from '../../db/sqlite/open'
import { move } from '../../src/cli/operate/move'
import { loadSecrets } from '../../src/config/env'
import { exitCode } from '../harness/command'
import { fill, read, sumsOf } from '../harness/money-rows'
import { outcomeOf } from '../harness/outcome'
import { emptyDatabase, hasPostgres, queryOf, use } from '../harness/postgres'

/** `turnpike move`: all rows of a file in an empty PostgreSQL database, or none. */

const now = () => Date.now()
const directory = mkdtempSync(join(tmpdir(), 'turnpike-move-'))
afterAll(() => rmSync(directory, { recursive: true, force: true }))

describe.skipIf(!hasPostgres)('a move', () => {
  let dataDir = ''
  let url = ''
  beforeEach(async () => {
    dataDir = mkdtempSync(join(directory, 'data-'))
    url = await emptyDatabase()
    const db = open({ dataDir, now })
    fill(db.sqlite)
    // An amount that a number would round.
    db.sqlite.run("UPDATE payments SET amount_atomic = '123456789012345678901' WHERE rowid = 1")
    db.close()
  })

  const secrets = () => loadSecrets({ dataDir: join(directory, 'keys'), env: {} })
  const run = (at = url) =>
    copyToServer({
      target: Url.parse(at),
      secrets: secrets(),
      dataDir,
      now,
      program: '1.0.0',
      tests: { acceptsLoss: true },
    })
  const file = () => join(dataDir, databaseName)
  const stored = () => {
    const sqlite = new Database(file(), { readonly: true })
    const rows = read(sqlite)
    sqlite.close()
    return rows
  }

  test('a move copies every row and amount, and the file is no longer used', async () => {
    const before = stored()
    const copied = await run()
    const sums = sumsOf(before)
    expect(sums.get('payments.amount_atomic')).toBeGreaterThan(123456789012345678901n)
    await use(url, async (client) => {
      for (const [table, rows] of before) {
        const { rows: found } = await client.query(`SELECT * FROM "${table}"`)
        const own = table === 'meta' ? found.filter(({ key }) => key === 'kept') : found
        const all = table === 'meta' ? rows.filter(({ key }) => key === 'kept') : rows
        expect([table, own.length]).toEqual([table, all.length])
        expect(copied).toContainEqual({ name: table, rows: all.length })
        for (const column of Object.keys(rows[0] ?? {})) {
          const name = `${table}.${column}`
          const sum = sums.get(name)
          if (sum === undefined) continue
          const stored = await client.query(
            `SELECT sum("${column}"::numeric)::text AS sum FROM "${table}"`,
          )
          expect([name, stored.rows[0]?.sum]).toEqual([name, String(sum)])
        }
      }
      expect([...before.values()].flat().length).toBeGreaterThan(30)
      // Triggers protect the rows again.
      const off = await client.query("SELECT 1 FROM pg_trigger WHERE tgenabled = 'D'")
      expect(off.rows).toEqual([])
    })
    expect(() => open({ dataDir, now })).toThrow(DatabaseMovedError)
    expect(() => open({ dataDir, now })).toThrow(`${file()} was moved to PostgreSQL (`)
    lock(dataDir)()
    expect(await outcomeOf(run())).toThrow('already: start serve with DATABASE_URL')
  })

  test('a move that ended before its commit is repeated, with the same id', async () => {
    const db = open({ dataDir, now })
    const id = crypto.randomUUID()
    db.sqlite.run('INSERT INTO meta (key, value) VALUES (?, ?)', [
      'moved',
      JSON.stringify({ id, to: 'db', at: 1 }),
    ])
    db.close()
    await run()
    await use(url, async (client) => {
      const { rows } = await client.query("SELECT value FROM meta WHERE key = 'database'")
      expect(rows).toEqual([{ value: id }])
    })
  })

  test('attack: a move that is repeated before the commit of the first one arrives does not free the file', async () => {
    const way = await holdingCommit(url)
    const first = outcomeOf(run(way.url))
    const release = await way.held
    // The operator ends the first move; its commit is still on the way.
    way.end()
    expect(await first).toThrow('to the commit was lost: run turnpike move again')
    const second = outcomeOf(run())
    const waits = `SELECT 1 FROM pg_stat_activity
      WHERE datname = current_database() AND wait_event_type = 'Lock'`
    await use(url, async (client) => {
      while ((await client.query(waits)).rows.length === 0) {}
    })
    release()
    expect(await second).toThrow(
      `${file()} stays marked by an earlier move, whose commit may have come or may still come: run ` +
        'turnpike move again with the same DATABASE_URL',
    )
    expect(() => open({ dataDir, now })).toThrow(DatabaseMovedError)
    expect(await outcomeOf(run())).toThrow('already: start serve with DATABASE_URL')
    way.stop()
  })

  test('error: a move that meets a lock names it, and the file is used as before', async () => {
    const other = await emptyDatabase()
    await use(other, (client) => migrate(queryOf(client), now()))
    await use(other, async (client) => {
      await client.query('BEGIN')
      await client.query('LOCK TABLE payments IN ACCESS EXCLUSIVE MODE')
      expect(await outcomeOf(run(other))).toThrow('has a lock that turnpike waits')
    })
    open({ dataDir, now }).close()
  })

  test('error: the directory of a running service is not moved', async () => {
    const unlock = lock(dataDir)
    expect(await outcomeOf(run())).toThrow(`is in use by process ${process.pid}: stop it`)
    unlock()
    await run()
  })

  test('error: a database with rows is refused, and the file is used as before', async () => {
    await run()
    const other = mkdtempSync(join(directory, 'other-'))
    open({ dataDir: other, now }).close()
    dataDir = other
    expect(await outcomeOf(run())).toThrow('is in use by a service: create a new one for the move')
    await use(url, (client) =>
      client.query("DELETE FROM meta WHERE key IN ('database', 'service')"),
    )
    expect(await outcomeOf(run())).toThrow(
      /is not empty \(table \w+\): create a new one for the move/,
    )
    open({ dataDir, now }).close()
  })

  test('error: a row that PostgreSQL refuses undoes the whole move', async () => {
    await run()
    const other = await emptyDatabase()
    const first = url
    url = other
    const next = mkdtempSync(join(directory, 'next-'))
    const db = open({ dataDir: next, now })
    fill(db.sqlite)
    db.sqlite.run('PRAGMA ignore_check_constraints = ON')
    db.sqlite.run("UPDATE answers SET status = 'odd'")
    db.close()
    dataDir = next
    expect(await outcomeOf(run())).toThrow('refuses a row of the table answers (')
    await use(url, async (client) => {
      const { rows } = await client.query('SELECT count(*)::int AS count FROM payments')
      expect(rows).toEqual([{ count: 0 }])
    })
    // The file is in use as before.
    open({ dataDir, now }).close()
    expect(first).not.toBe(url)
  })
})

/** Passes bytes on to a server by TCP, and holds the commit of a move back. */
async function holdingCommit(url: string) {
  const { hostname, pathname, searchParams } = new URL(url)
  const path = join(searchParams.get('host') ?? hostname, '.s.PGSQL.5432')
  const held = Promise.withResolvers<() => void>()
  const clients = new Set<Socket>()
  const listener = createServer((client) => {
    const server = connect({ path })
    clients.add(client)
    let isMove = false
    let isHeld = false
    for (const each of [client, server]) each.on('error', () => undefined)
    server.on('data', (chunk) => void (client.destroyed || client.write(chunk)))
    client.on('data', (chunk: Buffer) => {
      isMove ||= chunk.includes('DISABLE TRIGGER')
      isHeld ||= isMove && chunk.includes('COMMIT')
      if (isHeld) held.resolve(() => void server.write(chunk))
      else server.write(chunk)
    })
    client.on('close', () => void (isHeld || server.destroy()))
    server.on('close', () => void client.destroy())
  })
  await new Promise<void>((resolve) => void listener.listen(0, '127.0.0.1', resolve))
  const { port } = listener.address() as AddressInfo
  return {
    url: `postgres://postgres@127.0.0.1:${port}${pathname}?sslmode=disable`,
    held: held.promise,
    /** Ends the client's side of all connections. */
    end() {
      for (const client of clients) client.destroy()
    },
    stop: () => void listener.close(),
  }
}

describe('the command', () => {
  const ask = async (env: Record<string, string>, dataDir: string) => {
    const lines: string[] = []
    const code = await exitCode(move, { dataDir, env, now, out: (line) => lines.push(line) })
    return [code, lines.join('\n')] as const
  }

  test('error: a missing secret or file is named, and nothing is created', async () => {
    const dataDir = mkdtempSync(join(directory, 'cli-'))
    const url = 'postgres://u:qzkxvw@127.0.0.1:1/db'
    const cases: readonly (readonly [Record<string, string>, string])[] = [
      [{}, 'turnpike: DATABASE_URL is not set: name the empty PostgreSQL database'],
      [{ DATABASE_URL: 'mysql://x' }, 'turnpike: DATABASE_URL does not begin with postgres://'],
      [{ DATABASE_URL: url }, `turnpike: there is no database at ${join(dataDir, databaseName)}`],
    ]
    for (const [env, message] of cases)
      expect(await ask(env, dataDir)).toEqual([1, expect.stringContaining(message)])
    open({ dataDir, now }).close()
    expect(await ask({ DATABASE_URL: url }, dataDir)).toEqual([
      1,
      expect.stringContaining(
        'RELAYER_KEYS is not set. With DATABASE_URL every gateway has the same',
      ),
    ])
    const urlFile = join(dataDir, 'url')
    writeFileSync(urlFile, `${url}\n`)
    const env = {
      DATABASE_URL_FILE: urlFile,
      RELAYER_KEYS: '11'.repeat(32),
      RECEIPT_KEY: '11'.repeat(32),
      CHALLENGE_SECRETS: '11'.repeat(32),
      ADMIN_TOKEN: 'an-admin-token-of-mine',
    }
    const [code, text] = await ask(env, dataDir)
    expect([code, text]).toEqual([
      1,
      'turnpike: PostgreSQL at 127.0.0.1:1 does not listen there (ECONNREFUSED): start it, or correct ' +
        'host and port in DATABASE_URL',
    ])
    open({ dataDir, now }).close()
  })
})
