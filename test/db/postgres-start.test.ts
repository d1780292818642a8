import type { Database } from 'bun:sqlite'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import {
  chownSync,
  existsSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import {
  type AdmitOptions,
  type Admitted,
  admit,
  assertFit,
  type Fingerprints,
  markDatabase,
  type ServerFacts,
  writeIdentity,
} from '../../db/postgres/admit'
import { DatabaseStartError, unreachableReasonOf } from '../../db/postgres/reach'
import * as Url from '../../db/postgres/Url'
import { lock } from '../../db/sqlite/directory'
import { DatabaseMovedError, markMoved } from '../../db/sqlite/moved'
import { open } from '../../db/sqlite/open'
import { certificate } from '../harness/certificate'
import { startPooler } from '../harness/pooler'
import {
  type Cluster,
  hasPostgres,
  postgresBin,
  sharedCluster,
  startCluster,
  use,
} from '../harness/postgres'

/** What ends a start on a PostgreSQL server: each message says why and what to do. */

const host = 'localhost'
const service: Fingerprints = { receipt: '0xR1', relayers: ['0xA1', '0xA2'], challenges: ['c1'] }
let directory = ''
let cluster: Cluster
const admitted: Admitted[] = []

describe.skipIf(!hasPostgres)('a PostgreSQL server', () => {
  beforeAll(async () => {
    directory = mkdtempSync(join(tmpdir(), 'turnpike-start-'))
    cluster = await startCluster({ tcp: true, settings: { fsync: 'on', full_page_writes: 'on' } })
    const { cert, key } = certificate(host)
    const data = join(cluster.directory, 'data')
    const { uid, gid } = statSync(data)
    for (const [name, text] of [
      ['server.crt', cert],
      ['server.key', key],
    ] as const) {
      writeFileSync(join(data, name), text, { mode: 0o600 })
      chownSync(join(data, name), uid, gid)
    }
    writeFileSync(join(directory, 'ca.pem'), cert)
    writeFileSync(join(directory, 'other.pem'), certificate(host).cert)
    writeFileSync(
      join(data, 'pg_hba.conf'),
      `local all all trust
local replication all trust
host all postgres all trust
hostssl tls all all scram-sha-256
hostnossl plain all all scram-sha-256
host shop all all scram-sha-256
host empty all all scram-sha-256
`,
    )
    await cluster.run(`CREATE ROLE seller LOGIN PASSWORD 'qzkxvw'`)
    await cluster.run(`CREATE ROLE guest LOGIN PASSWORD 'qzkxvw'`)
    for (const name of ['tls', 'plain', 'shop'])
      await cluster.run(`CREATE DATABASE ${name} OWNER seller`)
    await cluster.run('ALTER SYSTEM SET ssl = on')
    await cluster.run('SELECT pg_reload_conf()')
  })
  afterAll(async () => {
    for (const { line } of admitted) line.close()
    await cluster?.stop()
    rmSync(directory, { recursive: true, force: true })
  })
  let dataDir = ''
  beforeEach(() => {
    for (const { line } of admitted.splice(0)) line.close()
    dataDir = mkdtempSync(join(directory, 'data-'))
  })

  const urlOf = (database: string, { user = 'seller:qzkxvw', query = '' } = {}) =>
    `postgres://${user}@${host}:${cluster.port}/${database}${query}`

  async function start(url: string, options: Partial<AdmitOptions> = {}): Promise<Admitted> {
    const target = Url.parse(url)
    const result = await admit({ target, service, dataDir, now: Date.now, ...options })
    admitted.push(result)
    return result
  }

  async function faultOf(url: string, options: Partial<AdmitOptions> = {}): Promise<string> {
    try {
      await start(url, options)
    } catch (error) {
      if (!(error instanceof DatabaseStartError)) throw error
      expect(`${error.stack} ${error.cause}`).not.toContain('qzkxvw')
      return error.message
    }
    return 'none'
  }

  test('a sound server is used, and its certificate is worth a warning unless it is checked', async () => {
    const plain = await start(urlOf('plain', { query: '?sslmode=disable' }))
    expect([plain.warnings, Math.abs(plain.aheadMs) < 5_000]).toEqual([[], true])
    const ca = join(directory, 'ca.pem')
    for (const query of ['', '?sslmode=require', `?sslmode=verify-full&sslrootcert=${ca}`]) {
      const { line } = await start(urlOf('tls', { query }))
      const rows = await line.run((query) =>
        query<{ ssl: boolean }>('SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()'),
      )
      line.close()
      expect([query, rows]).toEqual([query, [{ ssl: true }]])
      await released('tls')
    }
  })

  /** Waits until the server has noticed the end of the connection with the lock. */
  async function released(database: string): Promise<void> {
    for (;;) {
      const rows = await cluster.run(
        `SELECT 1 FROM pg_stat_activity WHERE datname = '${database}' AND usename = 'seller'`,
      )
      if (rows.length === 0) return
    }
  }

  test('error: a wrong password, user or database is named', async () => {
    const at = `PostgreSQL at ${host}:${cluster.port}`
    expect(await faultOf(urlOf('shop', { user: 'seller:qzkxvwy' }))).toBe(
      `${at} refuses the password of the user seller: correct it in DATABASE_URL`,
    )
    expect(await faultOf(urlOf('shop', { user: 'seller' }))).toBe(
      `${at} asks for a password of the user seller: write it into DATABASE_URL`,
    )
    expect(await faultOf(urlOf('empty'))).toBe(
      `${at} has no database empty: create it (createdb empty), or correct the name in DATABASE_URL`,
    )
    expect(await faultOf(urlOf('template1'))).toStartWith(
      `${at} refuses the user seller: no pg_hba`,
    )
    expect(await faultOf(urlOf('shop', { user: 'guest:qzkxvw' }))).toContain(
      'make it the owner of the database',
    )
  })

  test('error: TLS that is refused, and certificates that do not fit', async () => {
    const ca = join(directory, 'ca.pem')
    expect(await faultOf(urlOf('tls', { query: '?sslmode=verify-full' }))).toContain(
      'has a certificate of an authority that is not trusted',
    )
    const other = `?sslmode=verify-full&sslrootcert=${join(directory, 'other.pem')}`
    expect(await faultOf(urlOf('tls', { query: other }))).toContain('is not trusted')
    const byAddress = urlOf('tls', { query: `?sslmode=verify-full&sslrootcert=${ca}` })
    expect(await faultOf(byAddress.replace(`@${host}`, '@127.0.0.1'))).toContain(
      'has a certificate of another name',
    )
    const byCa = byAddress.replace('verify-full', 'verify-ca').replace(`@${host}`, '@127.0.0.1')
    ;(await start(byCa)).line.close()
    await released('tls')
    await cluster.run('ALTER SYSTEM SET ssl = off')
    await cluster.run('SELECT pg_reload_conf()')
    while ((await cluster.run('SHOW ssl'))[0]?.ssl !== 'off') {}
    expect(await faultOf(urlOf('plain', { query: '?sslmode=require' }))).toContain(
      'refuses TLS: set',
    )
    // By default TLS is preferred and not required.
    ;(await start(urlOf('plain'))).line.close()
    await cluster.run('ALTER SYSTEM SET ssl = on')
    await cluster.run('SELECT pg_reload_conf()')
  })

  test('error: hosts that do not answer are all named, and a primary after them is found', async () => {
    const silent = createServer(() => undefined)
    const { promise, resolve } = Promise.withResolvers<void>()
    silent.listen(0, '127.0.0.1', resolve)
    await promise
    const address = silent.address()
    const port = typeof address === 'object' ? address?.port : 0
    try {
      const hosts = `127.0.0.1:1,nowhere.invalid,127.0.0.1:${port}`
      const dead = urlOf('shop').replace(`${host}:${cluster.port}`, hosts)
      const fault = await faultOf(dead, { tests: { answerMs: 500 } })
      expect(fault.split('\n')).toEqual([
        'PostgreSQL at 127.0.0.1:1 does not listen there (ECONNREFUSED): start it, or correct host ' +
          'and port in DATABASE_URL',
        expect.stringMatching(/^PostgreSQL at nowhere.invalid:5432 has a name that is not known/),
        `PostgreSQL at 127.0.0.1:${port} does not answer in time: check host and port, the network ` +
          'and the firewall before it',
      ])
      const both = urlOf('shop').replace(`@${host}`, `@127.0.0.1:1,${host}`)
      ;(await start(both)).line.close()
    } finally {
      silent.close()
    }
    expect(await faultOf(`postgres://seller@/shop?host=${directory}`)).toBe(
      `PostgreSQL at ${directory}/.s.PGSQL.5432 does not listen there (ENOENT): start it, or correct ` +
        'host and port in DATABASE_URL',
    )
  })

  test('error: a standby and a read-only primary are refused', async () => {
    await cluster.run('ALTER ROLE seller SET default_transaction_read_only = on')
    expect(await faultOf(urlOf('shop'))).toContain('is read-only (default_transaction_read_only)')
    await cluster.run('ALTER ROLE seller RESET default_transaction_read_only')
    const standby = await standbyOf(cluster)
    try {
      const url = `postgres://postgres@/postgres?host=${standby.directory}&port=${cluster.port}`
      expect(await faultOf(url)).toBe(
        `PostgreSQL at ${standby.directory}/.s.PGSQL.${cluster.port} is a standby: name the primary ` +
          'in DATABASE_URL, or promote this server',
      )
    } finally {
      await standby.stop()
    }
  })

  test('attack: a pooler that keeps no sessions is refused, and one that keeps them is used', async () => {
    const target = (port: number) => `postgres://postgres@127.0.0.1:${port}/plain?sslmode=disable`
    const cases = (['longest idle', 'shortest idle'] as const).flatMap((mode) =>
      [1, 2, 3].map((servers) => ({ mode, servers })),
    )
    for (const options of cases) {
      await using pooler = await startPooler(cluster.port, options)
      expect([options, await faultOf(target(pooler.port))]).toEqual([
        options,
        `PostgreSQL at 127.0.0.1:${pooler.port} is behind a pooler that keeps no sessions, such as ` +
          'pgbouncer with pool_mode = transaction: name the server itself in DATABASE_URL',
      ])
    }
    await using pooler = await startPooler(cluster.port, { servers: 3, mode: 'session' })
    ;(await start(target(pooler.port))).line.close()
    const refusal = Object.assign(new Error('unsupported startup parameter: options'), {
      code: '08P01',
    })
    expect(unreachableReasonOf(refusal, Url.parse(target(1)))).toBe(
      'is behind a pooler (unsupported startup parameter: options): name the server itself in ' +
        'DATABASE_URL',
    )
  })

  test('error: a lock that the start meets is named', async () => {
    await use(cluster.url('plain'), async (client) => {
      await client.query('CREATE TABLE meta (key text PRIMARY KEY, value text NOT NULL)')
      await client.query('BEGIN')
      await client.query('LOCK TABLE meta IN ACCESS EXCLUSIVE MODE')
      const url = urlOf('plain', { user: 'postgres', query: '?sslmode=disable' })
      expect(await faultOf(url, { tests: { answerMs: 500 } })).toStartWith(
        `PostgreSQL at ${host}:${cluster.port}/plain has a lock that turnpike waits for: end the session`,
      )
      await client.query('ROLLBACK')
      await client.query('DROP TABLE meta')
    })
  })

  test('error: a server that loses commits is refused, except for tests', async () => {
    const url = (await sharedCluster()).url()
    const fault = await faultOf(url)
    expect(fault).toContain('has fsync = off')
    expect(fault).toContain('has full_page_writes = off')
    await start(url, { tests: { acceptsLoss: true } })
  })

  test('error: clocks that differ by more than five seconds are refused', async () => {
    for (const [ms, word] of [
      [8_000, 'behind'],
      [-8_000, 'ahead of'],
    ] as const) {
      const fault = await faultOf(urlOf('shop'), { now: () => Date.now() + ms })
      expect(fault).toMatch(
        new RegExp(`^the clock of PostgreSQL is \\d+\\.\\d s ${word} the clock of this machine`),
      )
    }
    const tests = { acceptsSkew: true }
    ;(await start(urlOf('shop'), { now: () => 1, tests })).line.close()
    await released('shop')
  })

  test('error: the database of another service is refused, and nothing is written', async () => {
    const { line } = await start(urlOf('shop'))
    const first = await line.run(async (query) => {
      await query('CREATE TABLE meta (key text PRIMARY KEY, value text NOT NULL)')
      return await writeIdentity(query, service)
    })
    line.close()
    await released('shop')
    const other = { receipt: '0xR2', relayers: ['0xB1'], challenges: ['c2'] }
    const fault = await faultOf(urlOf('shop'), { service: other })
    expect(fault).toContain(
      'belongs to another service, which signs its receipts as 0xR1 and sends',
    )
    expect(fault).toContain('as 0xA1, 0xA2: name a database of its own')
    for (const same of [
      { ...other, receipt: '0xR1' },
      { ...other, relayers: ['0xB1', '0xA2'] },
      { ...other, challenges: ['c2', 'c1'] },
    ]) {
      const again = await start(urlOf('shop'), { service: same })
      const id = await again.line.run((query) => writeIdentity(query, service))
      again.line.close()
      await released('shop')
      expect(id).toBe(first)
    }
    // The data directory knows its database, so an empty one is not mistaken for it.
    markDatabase(dataDir, first)
    ;(await start(urlOf('shop'))).line.close()
    await released('shop')
    expect(await faultOf(urlOf('plain'))).toContain(
      `/plain is empty, and ${join(dataDir, 'turnpike.database')} says that this service has used ` +
        `the database ${first}: correct DATABASE_URL, or restore a backup.`,
    )
    markDatabase(dataDir, 'another')
    expect(await faultOf(urlOf('shop'))).toContain('/shop is another one, and')
  })

  test('error: a file with payments, or one that was moved to another database, is not left behind', async () => {
    const db = open({ dataDir, now: Date.now })
    // A file without payments does not matter.
    ;(await start(urlOf('shop'))).line.close()
    await released('shop')
    writeTransaction(db.sqlite)
    expect(await faultOf(urlOf('shop'))).toContain(
      `${db.file} has the payments of this service, and DATABASE_URL names a database without them: ` +
        'stop the service and run turnpike move',
    )
    markMoved(db.sqlite, { id: 'x', to: 'db:5432/old', at: 0 })
    db.close()
    expect(await faultOf(urlOf('shop'))).toContain(
      'was moved to another database (db:5432/old): correct DATABASE_URL',
    )
    expect(() => open({ dataDir, now: Date.now })).toThrow(
      new DatabaseMovedError(db.file, { id: 'x', to: 'db:5432/old', at: 0 }),
    )
    // The directory is not locked by the start that was refused.
    lock(dataDir)()
  })
})

/** A file with one transaction that was sent. */
function writeTransaction(sqlite: Database): void {
  sqlite.run('PRAGMA ignore_check_constraints = ON')
  const columns = sqlite
    .query<{ name: string; type: string; notnull: number }, []>('PRAGMA table_info(transactions)')
    .all()
    .filter(({ notnull }) => notnull === 1)
  const values = columns.map(({ type }) => (type.startsWith('INT') ? 0 : '0'))
  sqlite.run(
    `INSERT INTO transactions (${columns.map(({ name }) => `"${name}"`).join()})
     VALUES (${columns.map(() => '?').join()})`,
    values,
  )
  sqlite.run('PRAGMA ignore_check_constraints = OFF')
}

/** A standby from a copy of a cluster. It follows no primary and listens on a socket only. */
async function standbyOf(primary: Cluster): Promise<{ directory: string; stop(): Promise<void> }> {
  const directory = mkdtempSync(join(tmpdir(), 'turnpike-standby-'))
  const data = join(directory, 'data')
  const { uid, gid } = statSync(join(primary.directory, 'data'))
  chownSync(directory, uid, gid)
  const as =
    process.getuid?.() === 0
      ? ['setpriv', `--reuid=${uid}`, `--regid=${gid}`, '--clear-groups']
      : []
  const bin = postgresBin ?? ''
  const copy = Bun.spawnSync(
    [
      ...[...as, join(bin, 'pg_basebackup'), '-D', data, '-h', primary.directory],
      ...['-p', String(primary.port), '-U', 'postgres', '-c', 'fast', '-X', 'stream', '--no-sync'],
    ],
    { cwd: '/' },
  )
  if (copy.exitCode !== 0) throw new Error(copy.stderr.toString())
  writeFileSync(join(data, 'standby.signal'), '')
  const server = Bun.spawn(
    [
      ...[...as, join(bin, 'postgres'), '-D', data, '-k', directory, '-p', String(primary.port)],
      ...['-c', 'listen_addresses=', '-c', 'fsync=off', '-c', 'max_connections=200'],
    ],
    { cwd: '/', stdin: 'ignore', stdout: 'ignore', stderr: 'ignore' },
  )
  while (
    !existsSync(join(data, 'postmaster.pid')) ||
    !readFileSync(join(data, 'postmaster.pid'), 'utf8').includes('ready')
  ) {
    if (server.exitCode !== null) throw new Error('the standby does not start')
    await Bun.sleep(10)
  }
  return {
    directory,
    async stop() {
      server.kill('SIGQUIT')
      await server.exited
      rmSync(directory, { recursive: true, force: true })
    },
  }
}

test('error: an old server, and settings that lose commits, are refused together', () => {
  const facts: ServerFacts = {
    version: 140_011,
    fsync: false,
    fullPageWrites: false,
    encoding: 'SQL_ASCII',
    mayCreate: true,
  }
  expect(() => assertFit(facts, 'db:5432')).toThrow(
    new DatabaseStartError(
      'PostgreSQL at db:5432 is of the version 14: turnpike needs 15 or newer\n' +
        'PostgreSQL at db:5432 has fsync = off, so that a power loss can undo payments: set it to on\n' +
        'PostgreSQL at db:5432 has full_page_writes = off, so that a power loss can undo payments: ' +
        'set it to on\n' +
        "the database at db:5432 has the encoding SQL_ASCII: create it with ENCODING 'UTF8'",
    ),
  )
  const sound = { ...facts, version: 150_000, encoding: 'UTF8' }
  expect(() => assertFit(sound, 'db')).toThrow(DatabaseStartError)
  assertFit(sound, 'db', { acceptsLoss: true })
})
