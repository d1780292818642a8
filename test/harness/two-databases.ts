import type { SQLQueryBindings } from 'bun:sqlite'
import { Client } from 'pg'
import { openInMemory } from '../../db/sqlite/open'
import { freshDatabase } from './postgres'
import { type Row, rows } from './table-rows'

/** Why a database refuses a statement. `name`: the constraint, or the message of a trigger. */
export type Fault = {
  kind: 'check' | 'unique' | 'foreign key' | 'not null' | 'value' | 'trigger'
  name: string
}

/** A database with the whole schema, for statements that both databases understand. */
export type Target = {
  /** Writes `?` for each value. Resolves to undefined when the statement is accepted. */
  run(statement: string, values?: Row[string][]): Promise<Fault | undefined>
  /** Turns the CHECKs off for the rest of the test, so that triggers are tested alone. */
  ignoreChecks(): Promise<void>
  close(): Promise<void>
}

const postgresKinds: Readonly<Record<string, Fault['kind']>> = {
  '23514': 'check',
  '23505': 'unique',
  '23503': 'foreign key',
  '23502': 'not null',
  '22P02': 'value',
  TP003: 'trigger',
  TP004: 'trigger',
}
const sqliteMessage = /^(CHECK|UNIQUE|FOREIGN KEY|NOT NULL) constraint failed(?:: (.*))?$/s

export function sqliteTarget(): Target {
  const db = openInMemory({ now: () => 1 })
  return {
    async run(statement, values = []) {
      try {
        db.sqlite.run(statement, values as SQLQueryBindings[])
        return undefined
      } catch (error) {
        const message = error instanceof Error ? error.message : String(error)
        const [, kind, name = ''] = sqliteMessage.exec(message) ?? []
        if (kind !== undefined) return { kind: kind.toLowerCase() as Fault['kind'], name }
        if ((error as { code?: string }).code !== 'SQLITE_CONSTRAINT_TRIGGER') throw error
        return { kind: 'trigger', name: message }
      }
    },
    ignoreChecks: async () => void db.sqlite.run('PRAGMA ignore_check_constraints = ON'),
    close: async () => db.close(),
  }
}

export async function postgresTarget(): Promise<Target> {
  const client = new Client({ connectionString: await freshDatabase() })
  await client.connect()
  return {
    async run(statement, values = []) {
      let count = 0
      try {
        await client.query(
          statement.replaceAll('?', () => `$${++count}`),
          values,
        )
        return undefined
      } catch (error) {
        const { code = '', constraint, message } = error as Error & Record<string, string>
        const kind = postgresKinds[code]
        if (kind === undefined) throw error
        return { kind, name: kind === 'trigger' ? message : (constraint ?? '') }
      }
    },
    async ignoreChecks() {
      const { rows: checks } = await client.query(
        `SELECT conrelid::regclass AS of, conname AS name FROM pg_constraint
         WHERE contype = 'c' AND conrelid <> 0`,
      )
      for (const check of checks) {
        await client.query(`ALTER TABLE ${check.of} DROP CONSTRAINT ${check.name}`)
      }
      for (const table of ['payments', 'transactions'])
        await client.query(`DROP TRIGGER ${table}_fixed ON ${table}`)
    },
    close: () => client.end(),
  }
}

/** Inserts the sample row of a table with changes. */
export function insert(target: Target, table: string, changes: Row = {}) {
  const row = { ...rows[table], ...changes }
  const names = Object.keys(row).map((name) => `"${name}"`)
  return target.run(
    `INSERT INTO ${table} (${names.join(', ')}) VALUES (${names.map(() => '?').join(', ')})`,
    Object.values(row),
  )
}
