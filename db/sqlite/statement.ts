import type { Database, Statement } from 'bun:sqlite'
import { getTableName } from 'drizzle-orm'
import type { SQLiteTable } from 'drizzle-orm/sqlite-core'
import { sqlite as dialect } from '../dialect'
import { columnsOf, type Selects, type Values } from '../select'
import type { Db } from './open'

type Connection = Pick<Db, 'sqlite'>

/** Values by name, or one of a place. */
type Parameter = Values | string | number | null

const unmade = new WeakMap<Database, Set<() => unknown>>()

/**
 * A statement with parameters such as `$id`, which the result prepares at its first call, because to
 * prepare all of them would take a large part of a start. `unused` returns the remaining ones.
 */
export function statement<Row = object>({ sqlite }: Connection, text: string) {
  let made: Statement<Row, Parameter[]> | undefined
  const others = unmade.get(sqlite) ?? new Set()
  const prepare = () => {
    if (made !== undefined) return made
    others.delete(prepare)
    made = sqlite.prepare<Row, Parameter[]>(text)
    return made
  }
  unmade.set(sqlite, others.add(prepare))
  return prepare
}

/** An insert of whole rows. `rest` is what follows the values. */
export function insertInto<T extends SQLiteTable>(db: Connection, table: T, rest = '') {
  const columns = columnsOf(table)
  const names = columns.map(({ column }) => `"${column.name}"`).join(', ')
  const values = columns.map(() => '?').join(', ')
  const insert = statement(
    db,
    `INSERT INTO ${getTableName(table)} (${names}) VALUES (${values}) ${rest}`,
  )
  return (row: T['$inferSelect']): void => {
    const given: Record<string, unknown> = row
    // By position, because a name is looked up again at each call.
    const written = columns.map(({ key, toDriver }) => {
      const value = given[key]
      return value === null || toDriver === undefined ? value : toDriver(value)
    })
    insert().run(...(written as Parameter[]))
  }
}

/** The reads that both databases have. They are done when the call returns. */
export function selectsOf(db: Connection): Selects {
  return {
    dialect,
    select<Row>(text: string) {
      const select = statement<Row>(db, text)
      return async (values = {}) => select().all(values)
    },
  }
}

/** Functions that prepare statements before their first use. A call is optional. */
export function unused({ sqlite }: Connection): readonly (() => unknown)[] {
  return [...(unmade.get(sqlite) ?? [])]
}
