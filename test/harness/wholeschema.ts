import type { Database } from 'bun:sqlite'
import { migrations } from '../../db/sqlite/migrate'

/**
 * The text of db/migrations/whole.sql: the statements that make what all migrations leave of an empty
 * database. Throws when they leave a row, which the statements would not make.
 */
export function wholeSchema(sqlite: Database): string {
  for (const { sql } of migrations) sqlite.run(sql)
  const all = sqlite
    .query<{ type: string; name: string; sql: string }, []>(
      `SELECT type, name, sql FROM sqlite_schema
       WHERE sql IS NOT NULL AND name NOT GLOB 'sqlite_*' ORDER BY rowid`,
    )
    .all()
  const tables = all.filter(({ type }) => type === 'table')
  for (const { name } of tables) {
    if (sqlite.query(`SELECT 1 FROM "${name}"`).get() !== null)
      throw new Error(`the migrations leave rows in ${name}`)
  }
  const others = all.filter(({ type }) => type !== 'table')
  return `${[...tables, ...others].map(({ sql }) => `${sql};`).join('\n')}\n`
}
