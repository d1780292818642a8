import { Database } from 'bun:sqlite'
import { afterEach, beforeEach, describe, expect, spyOn, test } from 'bun:test'
import * as fs from 'node:fs'
import {
  closeSync,
  copyFileSync,
  existsSync,
  openSync,
  readdirSync,
  readlinkSync,
  rmSync,
  statSync,
  truncateSync,
  writeSync,
} from 'node:fs'
import { join } from 'node:path'
import { storageCode } from '../../db/fault'
import { DatabaseLostError } from '../../db/sqlite/directory'
import { type Db, open } from '../../db/sqlite/open'
import { createGroup, write } from '../../db/sqlite/write'
import { temporary, until } from '../harness/settlement'

/** Faults of the database: its file cannot be written, is damaged or is missing. */

const now = () => 1_700_000_000_000
let directory: ReturnType<typeof temporary>
let db: Db
let file: string

beforeEach(() => {
  directory = temporary()
  db = open({ dataDir: directory.path, now })
  file = join(directory.path, 'turnpike.sqlite')
})
afterEach(() => {
  db.close()
  directory.remove()
})

/** Makes this connection see a full disk. */
function fill(): void {
  const { page_count: pages } = db.sqlite.query('PRAGMA page_count').get() as { page_count: number }
  db.sqlite.run(`PRAGMA max_page_count = ${pages}`)
}
const free = () => db.sqlite.run('PRAGMA max_page_count = 1000000')
const put = (key: string, bytes: number) =>
  db.sqlite.query('INSERT INTO meta (key, value) VALUES (?, ?)').run(key, 'x'.repeat(bytes))
const keys = () =>
  (db.sqlite.query('SELECT key FROM meta ORDER BY key').all() as { key: string }[]).map(
    ({ key }) => key,
  )
const reopen = () => open({ dataDir: directory.path, now })

describe('faults of the storage', () => {
  test('error: a full disk is a fault until enough for payments can be written', async () => {
    const seen: (string | undefined)[] = []
    db.storage.onChange((code) => seen.push(code))
    fill()
    expect(() => write(db, () => void put('a', 200_000))).toThrow('full')
    expect(db.storage.fault()).toBe('SQLITE_FULL')
    // A write into a page with free space proves nothing for a payment or an attempt.
    write(db, () => void put('b', 1))
    let attempts = 0
    const run = db.sqlite.run.bind(db.sqlite)
    db.sqlite.run = (...input) => {
      attempts++
      return run(...input)
    }
    await until(() => attempts > 0)
    expect(db.storage.fault()).toBe('SQLITE_FULL')
    free()
    await until(() => db.storage.fault() === undefined)
    expect(seen).toEqual(['SQLITE_FULL', undefined])
    expect(keys()).toEqual(['b'])
    expect(db.storage.counts().get('SQLITE_FULL')).toBeGreaterThan(0)
  })

  test.if(existsSync('/proc/self/fd'))(
    'error: an I/O error is a fault until the file can be written again',
    async () => {
      const seen: (string | undefined)[] = []
      db.storage.onChange((code) => seen.push(code))
      write(db, () => void put('a', 1))
      const log = `${file}-wal`
      // Without its descriptor the system refuses each write of the log.
      const lost = descriptorsOf(log)
      expect(lost).toHaveLength(1)
      for (const descriptor of lost) closeSync(descriptor)
      try {
        expect(() => write(db, () => void put('b', 1))).toThrow('I/O')
        expect(db.storage.fault()).toStartWith('SQLITE_IOERR')
      } finally {
        // The system assigns the lowest free number, which is the closed one.
        expect(openSync(log, 'r+')).toBe(lost[0] ?? -1)
      }
      await until(() => db.storage.fault() === undefined)
      expect(seen).toEqual([expect.stringMatching(/^SQLITE_IOERR/), undefined])
      write(db, () => void put('c', 1))
      expect(keys()).toEqual(['a', 'c'])
    },
  )

  test.if(existsSync('/proc/self/fd'))(
    'error: a commit that the disk refuses to sync is not answered until SQLite has synced another',
    async () => {
      const group = createGroup(db)
      await group.add(() => void put('a', 1))
      const [, own] = descriptorsOf(`${file}-wal`)
      if (own === undefined) throw new Error('the log was not opened for syncs')
      closeSync(own)
      const refused = Object.assign(new Error('refused'), { code: 'SQLITE_IOERR_FSYNC' })
      const run = db.sqlite.run.bind(db.sqlite)
      let isRefused = true
      db.sqlite.run = (...input) => {
        if (isRefused && String(input[0]).includes('storage-probe')) throw refused
        return run(...input)
      }
      let isAnswered = false
      const added = group
        .add(() => void put('b', 1))
        .then(() => {
          isAnswered = true
        })
      await until(() => db.storage.fault() === refused.code)
      expect(keys()).toEqual(['a', 'b'])
      expect(isAnswered).toBe(false)
      isRefused = false
      await added
      expect(db.storage.fault()).toBeUndefined()
      // The frames that the failed sync may have lost are in the file.
      expect(statSync(`${file}-wal`).size).toBe(0)
      expect(openSync(`${file}-wal`, 'r+')).toBe(own)
    },
  )

  test.if(existsSync('/proc/self/fd'))(
    'error: a commit that is not on the disk at the end is never answered, and one that is, is',
    async () => {
      const others = temporary()
      const other = open({ dataDir: others.path, now })
      const answered: Db[] = []
      await unsynced(db, answered)
      const synced = await unsynced(other, answered)
      const full = spyOn(fs, 'fdatasyncSync').mockImplementationOnce(() => {
        throw Object.assign(new Error('no space'), { code: 'ENOSPC' })
      })
      try {
        db.close()
        expect(full).toHaveBeenCalledTimes(1)
      } finally {
        full.mockRestore()
      }
      other.close()
      // Both ended their attempts, the other one later.
      await synced.answer
      expect(answered).toEqual([other])
      others.remove()
    },
  )

  test('the fault is found in causes, and other errors are not storage faults', () => {
    const full = Object.assign(new Error('full'), { code: 'SQLITE_FULL' })
    expect(storageCode(new Error('a', { cause: new Error('b', { cause: full }) }))).toBe(
      'SQLITE_FULL',
    )
    for (const code of ['SQLITE_BUSY', 'SQLITE_CONSTRAINT_UNIQUE', 'ENOSPC', 'SQLITE_FULLER'])
      expect(storageCode(Object.assign(new Error(code), { code }))).toBeUndefined()
    write(db, () => void put('a', 1))
    expect(() => write(db, () => void put('a', 1))).toThrow()
    expect(db.storage.fault()).toBeUndefined()
  })

  test('error: a group that does not fit is not committed, in any order', async () => {
    const group = createGroup(db)
    fill()
    const results = await Promise.allSettled([
      group.add(() => void put('a', 1)),
      group.add(() => void put('b', 200_000)),
      group.add(() => void put('c', 1)),
    ])
    expect(results.map(({ status }) => status)).toEqual(['rejected', 'rejected', 'rejected'])
    expect(keys()).toEqual([])
  })

  test('error: a damaged page that a read finds is a fault until the next start', async () => {
    write(db, () => {
      for (let index = 0; index < 200; index++) put(`key-${index}`, 2_000)
    })
    db.close()
    damage()
    // It was sound when it was opened.
    const sqlite = new Database(file, { strict: true })
    const { watchStorage } = await import('../../db/sqlite/storage')
    const storage = watchStorage(sqlite, file)
    expect(() => sqlite.prepare('SELECT sum(length(value)) FROM meta').get()).toThrow('malformed')
    expect(storage.fault()).toStartWith('SQLITE_CORRUPT')
    storage.close()
    sqlite.close()
  })
})

test('error: a damaged file stays a fault though it can be written', async () => {
  const other = temporary()
  const mended = open({ dataDir: other.path, now })
  const noted = (code: string) => Object.assign(new Error(code), { code })
  db.storage.note(noted('SQLITE_CORRUPT'))
  // Both would recover by the same attempts.
  mended.storage.note(noted('SQLITE_READONLY'))
  await until(() => mended.storage.fault() === undefined)
  mended.close()
  other.remove()
  expect(db.storage.fault()).toBe('SQLITE_CORRUPT')
})

/** A database with a commit that waits for the disk, which refuses it. */
async function unsynced(of: Db, answered: Db[]) {
  const group = createGroup(of)
  const add = (key: string) =>
    group.add(() => void of.sqlite.query("INSERT INTO meta VALUES (?, '')").run(key))
  await add('a')
  const [, own] = descriptorsOf(`${of.file}-wal`)
  if (own === undefined) throw new Error('the log was not opened for syncs')
  closeSync(own)
  const run = of.sqlite.run.bind(of.sqlite)
  of.sqlite.run = (...input) => {
    if (!String(input[0]).includes('storage-probe')) return run(...input)
    throw Object.assign(new Error('refused'), { code: 'SQLITE_IOERR_FSYNC' })
  }
  const answer = add('b').then(() => void answered.push(of))
  await until(() => of.storage.fault() !== undefined)
  expect(openSync(`${of.file}-wal`, 'r+')).toBe(own)
  return { answer }
}

/** Numbers under which this process has a file open. */
function descriptorsOf(path: string): number[] {
  return readdirSync('/proc/self/fd')
    .filter((name) => {
      try {
        return readlinkSync(`/proc/self/fd/${name}`) === path
      } catch {
        return false
      }
    })
    .map(Number)
}

/** Overwrites the middle of the file. */
function damage(): void {
  const handle = openSync(file, 'r+')
  const middle = Math.floor(statSync(file).size / 2 / 4_096) * 4_096
  writeSync(handle, new Uint8Array(40_960).fill(0xa5), 0, 40_960, middle)
  closeSync(handle)
}

describe('a start', () => {
  test('error: a damaged page is found, and the message names the file', () => {
    write(db, () => {
      for (let index = 0; index < 200; index++) put(`key-${index}`, 2_000)
    })
    db.close()
    damage()
    expect(reopen).toThrow(`${file} is damaged (SQLITE_CORRUPT): restore a backup`)
  })

  test('error: the log of a killed process that the disk refuses is not used', () => {
    write(db, () => void put('a', 1))
    const killed = temporary()
    for (const end of ['', '-wal'])
      copyFileSync(file + end, join(killed.path, `turnpike.sqlite${end}`))
    const start = () => open({ dataDir: killed.path, now })
    const refused = spyOn(fs, 'fdatasyncSync').mockImplementation(() => {
      throw new Error('the disk refuses it')
    })
    try {
      expect(start).toThrow('the disk refuses it')
    } finally {
      refused.mockRestore()
    }
    const started = start()
    expect(started.sqlite.query("SELECT key FROM meta WHERE key = 'a'").all()).toHaveLength(1)
    started.close()
    killed.remove()
  })

  test('error: a file that is no database is named', () => {
    db.close()
    const handle = openSync(file, 'r+')
    writeSync(handle, Buffer.alloc(4_096, 'no database '))
    closeSync(handle)
    expect(reopen).toThrow(`${file} is damaged (SQLITE_NOTADB)`)
  })

  const losses: readonly (readonly [string, () => void])[] = [
    ['is empty', () => truncateSync(file, 0)],
    ['is missing', () => rmSync(file)],
    [
      'has no tables',
      () => {
        rmSync(file)
        const empty = new Database(file, { create: true })
        empty.run('CREATE TABLE a (b)')
        empty.run('DROP TABLE a')
        empty.close()
      },
    ],
  ]
  for (const [loss, lose] of losses) {
    test(`attack: no start with a database that ${loss}: spent credentials would be accepted again`, () => {
      db.close()
      lose()
      expect(reopen).toThrow(DatabaseLostError)
      expect(reopen).toThrow(file)
      // No new file was created in its place.
      expect(reopen).toThrow(DatabaseLostError)
    })
  }

  test('without the marker a start creates a new database, as its message says', () => {
    db.close()
    rmSync(file)
    rmSync(join(directory.path, 'turnpike.used'))
    db = reopen()
    expect(keys()).toEqual([])
  })
})
