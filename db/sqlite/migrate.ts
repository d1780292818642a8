import type { Database } from 'bun:sqlite'
import { readdirSync, renameSync } from 'node:fs'
import { basename, dirname, join, resolve } from 'node:path'
import * as Crypto from '../../src/protocol/Crypto'
import type { Upgrade } from '../Database'
import ledger from '../migrations/0001_ledger.sql' with { type: 'text' }
import {
  type About,
  type Applied,
  lastMigrationOf,
  leavesOrphans,
  type Migration,
  MigrationError,
  misfit,
  pendingOf,
  programKey,
  type Schema,
} from '../schemas'
import { BackupError, copyTo, removeCopy } from './backup'

/** In order. Embedded as text, so that the compiled binary contains them. */
export const migrations: readonly Migration[] = [{ name: '0001_ledger', sql: ledger }]

/** Reads what a database is. */
export function schemaOf(sqlite: Database): Schema {
  const hasTable = (name: string) =>
    sqlite.query('SELECT 1 FROM sqlite_schema WHERE name = ?').get(name) !== null
  const applied = hasTable('migrations')
    ? sqlite.query<Applied, []>('SELECT name, hash FROM migrations ORDER BY name').all()
    : []
  const program = hasTable('meta')
    ? sqlite
        .query<{ value: string }, [string]>('SELECT value FROM meta WHERE key = ?')
        .get(programKey)?.value
    : undefined
  return { applied, program }
}

/** Notes which program opens the database, for the message of an older one. */
export function noteProgram(sqlite: Database, program: string): void {
  if (schemaOf(sqlite).program === program) return
  sqlite.run('INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)', [programKey, program])
}

/**
 * Brings the schema up to date, all pending migrations in one transaction. Returns the names of
 * those that it applied. Throws `MigrationError` when the database does not fit this program;
 * nothing is changed then.
 */
export function migrate(
  sqlite: Database,
  now: number,
  list = migrations,
  about: About = {},
): string[] {
  sqlite.run(
    'CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY NOT NULL, hash TEXT NOT NULL, applied_at INTEGER NOT NULL)',
  )
  const apply = sqlite.transaction(() => {
    const pending = pendingOf(schemaOf(sqlite), list, about)
    for (const { name, sql } of pending) {
      sqlite.run(sql)
      sqlite.run('INSERT INTO migrations (name, hash, applied_at) VALUES (?, ?, ?)', [
        name,
        Crypto.sha256(sql),
        now,
      ])
    }
    if (pending.length > 0) assertReferences(sqlite, about)
    return pending.map(({ name }) => name)
  })
  return apply.immediate()
}

/** Throws when a migration left a row that names a missing one. */
function assertReferences(sqlite: Database, about: About): void {
  const [fault] = sqlite.query<{ table: string }, []>('PRAGMA foreign_key_check').all()
  if (fault === undefined) return
  throw new MigrationError(leavesOrphans(fault.table, about))
}

/**
 * Why a command cannot use a database as it is, because a program of another version made it;
 * undefined when its schema is that of this program. Changes nothing.
 */
export function misfitOf(sqlite: Database, about: About = {}): string | undefined {
  return misfit(schemaOf(sqlite), migrations, about)
}

export type UpgradeOptions = {
  /** Path of the database file. */
  file: string
  /** Unix ms. */
  now: number
  /** The version of this program, which the database keeps. */
  program?: string | undefined
  list?: typeof migrations
}

/** The database cannot be copied before its migration. Nothing was changed. */
export class UpgradeError extends Error {
  override readonly name = 'UpgradeError'
}

/** Number of copies from before an upgrade that are kept. */
const keptCopies = 2
/** End of a copy's name while it is written. */
const unfinished = '.partial'
/** Names of copies, after the name of the database. The time is their order. */
const copyName = /^\.backup-\d+(?:-.+)?-(\d{8}T\d{9}Z)$/

/**
 * Brings a database up to date. Copies one of an earlier schema first, to a file beside it. Returns
 * what was done; undefined when the database was new or up to date. Throws UpgradeError, and what
 * `migrate` throws; then the database has not changed.
 */
export function upgrade(sqlite: Database, options: UpgradeOptions): Upgrade | undefined {
  const { file, now, program, list = migrations } = options
  const before = schemaOf(sqlite)
  const from = lastMigrationOf(before)
  const to = list.at(-1)?.name ?? ''
  const apply = () => {
    const applied = migrate(sqlite, now, list, { file, program })
    if (program !== undefined) noteProgram(sqlite, program)
    return applied
  }
  if (from === undefined || before.applied.length >= list.length) {
    apply()
    return undefined
  }
  const backup = copyBefore(sqlite, { ...options, before, to })
  try {
    const applied = apply()
    removeOld(resolve(file))
    return { from, to, applied, backup }
  } catch (error) {
    // The copy equals the database. A service that restarts again and again would fill the disk.
    removeCopy(backup)
    throw error
  }
}

/** Copies the database beside itself and returns the path of the copy. */
function copyBefore(
  sqlite: Database,
  { file, now, before, to }: UpgradeOptions & { before: Schema; to: string },
): string {
  const path = resolve(file)
  const backup = path + nameOf(before, now)
  try {
    removeOld(path)
    copyTo(backup + unfinished, sqlite)
    renameSync(backup + unfinished, backup)
    return backup
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : 'unknown'
    throw new UpgradeError(
      `${file} has schema ${lastMigrationOf(before)} and needs ${to}. It is copied before it is migrated, ` +
        `and ${cause instanceof BackupError ? reason : `that failed: ${reason}`}. Nothing was changed.`,
      { cause },
    )
  }
}

/** `.backup-0001-1.4.0-20260102T030405678Z`: the schema, the program if it is known, the time. */
function nameOf(schema: Schema, now: number): string {
  const { program } = schema
  const parts = [
    lastMigrationOf(schema)?.split('_', 1)[0],
    ...(program === undefined ? [] : [program.replace(/[^\w.+-]/g, '_')]),
    new Date(now).toISOString().replace(/[-:.]/g, ''),
  ]
  return `.backup-${parts.join('-')}`
}

/** Removes all but the newest copies, and what an opening that was killed has left. */
function removeOld(file: string): void {
  const copies: { path: string; time: string }[] = []
  for (const name of readdirSync(dirname(file))) {
    if (!name.startsWith(basename(file))) continue
    const end = name.slice(basename(file).length)
    const path = join(dirname(file), name)
    const [, time] = copyName.exec(end) ?? []
    if (time !== undefined) copies.push({ path, time })
    else if (end.startsWith('.backup-') && end.includes(unfinished)) removeCopy(path)
  }
  copies.sort((left, right) => (left.time < right.time ? 1 : -1))
  for (const { path } of copies.slice(keptCopies)) removeCopy(path)
}
