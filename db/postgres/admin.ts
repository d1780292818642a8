import {
  type AdminLedger,
  adminSql,
  createAdminLedger,
  type Pause,
  type StoryReads,
} from '../admin'
import { postgres } from '../dialect'
import type { Values } from '../select'
import type { Parts } from './parts'
import { positional } from './rows'

/** Statements of the pages for operators. */
export const adminStatements = adminSql(postgres, {
  // The limit keeps the planner from reading all payments: it asks the index for each asset.
  rowsOfPayer: `SELECT p.id AS "row" FROM assets AS a
    CROSS JOIN LATERAL (SELECT id FROM payments WHERE network = a.network
      AND lower(asset) = lower(a.address) AND lower(payer) = lower($payer) LIMIT $limit) AS p
    LIMIT $limit`,
  isInRows: 'id = ANY (ARRAY(SELECT jsonb_array_elements_text(CAST($rows AS JSONB))))',
})

/** Twin: db/sqlite/admin.ts. */
export function createAdmin(
  { commits, reader }: Pick<Parts, 'commits' | 'reader'>,
  reads: StoryReads,
): AdminLedger {
  return createAdminLedger(
    {
      sql: adminStatements,
      all: <Row>(sql: string, values: Values) => reader.all<Row>(...positional(sql, values)),
      setPause: (key, pause, isPause) =>
        commits.add({
          call: 'set_pause',
          input: { key, pause, is_pause: isPause },
          key: `meta:${key}`,
          read: (value) => value as readonly Pause[],
        }),
    },
    reads,
  )
}
