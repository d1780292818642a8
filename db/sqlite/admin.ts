import type { Statement } from 'bun:sqlite'
import type { AdminLedger } from '../AdminLedger'
import { createAdminLedger, type StoryReads } from '../admin-reads'
import { adminStatements } from './admin-sql'
import type { Db } from './open'
import { write } from './write'

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
      async setMeta(key, value) {
        write(db, () => void prepare(setMeta).run({ key, value }))
      },
    },
    reads,
  )
}
