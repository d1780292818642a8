import { describe, expect, test } from 'bun:test'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { serversOf } from '../../db/postgres/reach'
import * as Url from '../../db/postgres/Url'

/** The URL of a PostgreSQL server, without a server. */

const faultOf = (text: string): string => {
  try {
    Url.parse(text)
  } catch (error) {
    if (error instanceof Url.UrlError) return error.message
    throw error
  }
  return 'none'
}

describe('what a URL names', () => {
  test('several hosts, ports and modes are read as libpq reads them', () => {
    expect(
      Url.parse('postgres://u:p@a,b:6432/db?sslmode=verify-full&sslrootcert=/etc/ca.pem'),
    ).toEqual({
      hosts: [
        { host: 'a', port: 5432 },
        { host: 'b', port: 6432 },
      ],
      user: 'u',
      password: 'p',
      database: 'db',
      mode: 'verify-full',
      files: { rootCertificate: '/etc/ca.pem' },
    })
    const hosts = (text: string) => Url.parse(text).hosts.map(Url.nameOf)
    expect(hosts('postgresql://u@[2001:db8::1]:5433,10.0.0.2/db')).toEqual([
      '[2001:db8::1]:5433',
      '10.0.0.2:5432',
    ])
    expect(hosts('postgres://u@/db?host=a,b,::1&port=1,2,3')).toEqual(['a:1', 'b:2', '[::1]:3'])
    expect(hosts('postgres://u@/db?host=a,b&port=7')).toEqual(['a:7', 'b:7'])
  })

  test('a Unix socket is a directory, by host= or encoded', () => {
    const socket = '/run/postgresql/.s.PGSQL.5432'
    for (const text of [
      'postgres://u@/db?host=/run/postgresql',
      'postgres:///db?host=%2Frun%2Fpostgresql&user=u',
      'postgres://u@%2Frun%2Fpostgresql/db',
    ])
      expect(Url.parse(text).hosts.map(Url.nameOf)).toEqual([socket])
  })

  test('user, password and database are decoded', () => {
    const { user, password, database } = Url.parse('postgres://u%40x:p%2F%3A%40:%23@h/d%20b')
    expect([user, password, database]).toEqual(['u@x', 'p/:@:#', 'd b'])
    expect(Url.parse('postgres://u@h/db').password).toBeUndefined()
    expect(Url.parse('postgres://u:@h/db').password).toBeUndefined()
  })

  test('the mode is prefer by default, and require with a file of authorities checks it', () => {
    const mode = (query: string) => Url.parse(`postgres://u@h/db${query}`).mode
    expect(['', '?sslmode=disable', '?sslmode=require'].map(mode)).toEqual([
      'prefer',
      'disable',
      'require',
    ])
    expect(mode('?sslmode=require&sslrootcert=/ca.pem')).toBe('verify-ca')
    expect(Url.parse('postgres://u@h/db?sslmode=verify-ca&sslrootcert=system').files).toEqual({})
  })
})

describe('a URL with a fault', () => {
  test('error: a wrong URL is reported with what to write', () => {
    const cases: readonly (readonly [string, string])[] = [
      ['mysql://u@h/db', 'does not begin with postgres://'],
      ['h:5432/db', 'does not begin with postgres://'],
      ['postgres://h/db', 'names no user'],
      ['postgres://u@h', 'names no database'],
      ['postgres://u@h/', 'names no database'],
      ['postgres://u@h/a/b', 'write the name only'],
      ['postgres://u@/db', 'names no host'],
      ['postgres://u@h,/db', 'host 2 in DATABASE_URL is no name'],
      ['postgres://u@h:x/db', 'the port of host 1'],
      ['postgres://u@a,h:65536/db', 'the port of host 2'],
      ['postgres://u@a,b/db?port=1,2,3', 'one port, or as many as there are hosts'],
      ['postgres://u@a/db?host=b', 'write one of both'],
      ['postgres://u@h/db?sslmode=allow', 'write disable, prefer, require, verify-ca, verify-full'],
      ['postgres://u@h/db?sslmode=require&sslmode=disable', 'has sslmode twice'],
      ['postgres://u@h/db?pool=3', 'has a parameter other than host, port, user,'],
      ['postgres://u@h/db?sslcert=/a', 'one of sslcert and sslkey'],
      ['postgres://u@/db?host=/run&sslmode=verify-full', 'a Unix socket has no TLS'],
      ['postgres://u@h/db?target_session_attrs=standby', 'only a primary is ever used'],
      ['postgres://u:%zz@h/db', 'the password in DATABASE_URL is not percent-encoded'],
      ['postgres://u:%00@h/db', 'the password in DATABASE_URL is not percent-encoded'],
    ]
    for (const [text, message] of cases)
      expect([text, faultOf(text)]).toEqual([text, expect.stringContaining(message)])
  })

  test('error: no part of a password that is not encoded is shown, or used as a host', () => {
    for (const secret of [
      'qzk@xvw',
      'qzk/xvw',
      'qzk?xvw',
      'qzk#xvw',
      'qzk xvw',
      'qzk@xvw:7',
      'qzk/x@vw',
    ]) {
      const fault = faultOf(`postgres://u:${secret}@h.example/db`)
      expect([secret, fault]).toEqual([secret, expect.stringContaining('must be percent-encoded')])
      expect(fault).not.toMatch(/qzk|xvw|vw/)
    }
  })

  test('error: a file that cannot be read, or is not PEM, is reported by its parameter', () => {
    const directory = mkdtempSync(join(tmpdir(), 'turnpike-url-'))
    try {
      const file = join(directory, 'ca.pem')
      const read = () =>
        serversOf(Url.parse(`postgres://u:secret@h/db?sslmode=verify-full&sslrootcert=${file}`))
      expect(read).toThrow(
        'the file that sslrootcert in DATABASE_URL names cannot be read (ENOENT)',
      )
      writeFileSync(file, 'hello')
      expect(read).toThrow('the file that sslrootcert in DATABASE_URL names is no PEM')
    } finally {
      rmSync(directory, { recursive: true, force: true })
    }
  })
})

test('nothing of a target but its password function has the password', () => {
  const target = Url.parse('postgres://u:p%40ss@a,b/db')
  expect(Url.describe(target)).toBe('a:5432,b:5432/db')
  expect(Url.redact(target, 'no p@ss and no p%40ss')).toBe('no *** and no ***')
  const [first] = serversOf(target)
  expect(JSON.stringify(serversOf(target))).not.toContain('p@ss')
  expect(first?.client.password).toBeInstanceOf(Function)
})

test('with prefer each host is tried by TLS, then without; a socket never has it', () => {
  const ways = (text: string) =>
    serversOf(Url.parse(text)).map(({ host, isEncrypted }) => [host.host, isEncrypted])
  expect(ways('postgres://u@a,b/db')).toEqual([
    ['a', true],
    ['a', false],
    ['b', true],
    ['b', false],
  ])
  expect(ways('postgres://u@a/db?sslmode=require')).toEqual([['a', true]])
  expect(ways('postgres://u@a/db?sslmode=disable')).toEqual([['a', false]])
  expect(ways('postgres://u@/db?host=/run')).toEqual([['/run', false]])
})
