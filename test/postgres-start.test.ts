import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import { chownSync, mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type Admitted, type AdmitOptions, admit } from '../db/postgres/admit'
import { assertFit, type Facts } from '../db/postgres/checks'
import { type Fingerprints, markDatabase, writeIdentity } from '../db/postgres/identity'
import { DatabaseStartError } from '../db/postgres/reach'
import * as Url from '../db/postgres/Url'
import { certificate } from './harness/certificate'
import { type Cluster, hasPostgres, startCluster } from './harness/postgres'

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

  test('behavior: a sound server is used, and its certificate is worth a warning unless it is checked', async () => {
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
    expect(await faultOf(urlOf('template1'))).toStartWith(`${at} refuses the user seller: no pg_hba`)
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
    expect(await faultOf(urlOf('plain', { query: '?sslmode=require' }))).toContain('refuses TLS: set')
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
})

test('error: an old server, and settings that lose commits, are refused together', () => {
  const facts: Facts = {
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
void markDatabase
void writeIdentity
