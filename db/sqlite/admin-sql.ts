import { adminSql } from '../admin-sql'
import { sqlite } from '../dialect'

/** Statements of the pages for operators. */
export const adminStatements = adminSql(sqlite, {
  // Row ids are in the index itself.
  rowsOfPayer: `SELECT p.rowid AS "row" FROM assets AS a
    CROSS JOIN payments AS p ON p.network = a.network AND p.asset = a.address AND p.payer = $payer
    LIMIT $limit`,
  isInRows: 'rowid IN (SELECT value FROM json_each($rows))',
})
