import type { Statement } from 'bun:sqlite'
import {
  type AdminLedger,
  adminSql,
  createAdminLedger,
  type Pause,
  type StoryReads,
} from '../admin'
import { sqlite } from '../dialect'
import type { Db } from './open'
import { write } from './write'

/** Statements of the pages for operators. */
export const adminStatements = adminSql(sqlite, {
  // Row ids are in the index itself.
  rowsOfPayer: `SELECT p.rowid AS "row" FROM assets AS a
    CROSS JOIN payments AS p ON p.network = a.network AND p.asset = a.address AND p.payer = $payer
    LIMIT $limit`,
  isInRows: 'rowid IN (SELECT value FROM json_each($rows))',
})

const setMeta = `INSERT INTO meta (key, value) VALUES ($key, $value)
  ON CONFLICT (key) DO UPDATE SET value = excluded.value`

export function createAdmin(db: Db, reads: StoryReads): AdminLedger {
  const prepared = new Map<string, Statement>()
  /** Prepared on first use, because a service may never need them. */
  const prepare = (sql: string) => {
    const statement = prepared.get(sql) ?? db.sqlite.prepare(sql)
    prepared.set(sql, statement)
    return statement
  }
  return createAdminLedger(
    {
      sql: adminStatements,
      all: async <Row>(sql: string, values: Readonly<Record<string, string | number | null>>) =>
        prepare(sql).all({ ...values }) as Row[],
      async setPause(key, pause, isPause) {
        return write(db, () => {
          const [row] = prepare(adminStatements.metaValue).all({ key }) as { value: string }[]
          const pauses: readonly Pause[] = row === undefined ? [] : JSON.parse(row.value)
          const others = pauses.filter(
            ({ kind, name }) => kind !== pause.kind || name !== pause.name,
          )
          const next = isPause ? [...others, pause] : others
          prepare(setMeta).run({ key, value: JSON.stringify(next) })
          return next
        })
      },
    },
    reads,
  )
}
