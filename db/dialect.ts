/**
 * Where the SQL of reads differs between SQLite and PostgreSQL. Their statements are one text for both,
 * with these parts and with parameters such as `$from`.
 */
export type Dialect = {
  /** A decimal column as a number. */
  number(decimal: string): string
  /** The whole part of a division. */
  divide(dividend: string, divisor: string): string
  /** An address in the form that ignores letter case. */
  fold(address: string): string
  /** An address of a group of rows that have the same one but for letter case. */
  any(address: string): string
  /** A text column that the planner must not look up in an index or read in the order of one. */
  opaque(column: string): string
  /**
   * An inner join of a table that is looked up for each row of those before it. Neither database
   * chooses another order, as PostgreSQL would without statistics, and read the whole table.
   */
  join(table: string, alias: string, condition: string): string
  /** Whether a JSON array of texts in a parameter has the value of a column. */
  isIn(column: string, parameter: string): string
  /** A column that grows with each inserted row of `transactions`. */
  serial: string
}

export const sqlite: Dialect = {
  number: (decimal) => `CAST(${decimal} AS INTEGER)`,
  divide: (dividend, divisor) => `(${dividend}) / (${divisor})`,
  // The columns have the collation NOCASE.
  fold: (address) => address,
  any: (address) => address,
  opaque: (column) => `+${column}`,
  join: (table, alias, condition) => `CROSS JOIN ${table} AS ${alias} ON ${condition}`,
  isIn: (column, parameter) => `${column} IN (SELECT value FROM json_each(${parameter}))`,
  serial: 'rowid',
}

export const postgres: Dialect = {
  number: (decimal) => `CAST(${decimal} AS NUMERIC)`,
  divide: (dividend, divisor) => `div(${dividend}, ${divisor})`,
  fold: (address) => `lower(${address})`,
  any: (address) => `min(${address})`,
  opaque: (column) => `(${column} || '')`,
  join: (table, alias, condition) =>
    `CROSS JOIN LATERAL (SELECT * FROM ${table} AS ${alias} WHERE ${condition} OFFSET 0) AS ${alias}`,
  // An array, because the planner joins a subquery, and without statistics it reads the whole table.
  isIn: (column, parameter) =>
    `${column} = ANY (ARRAY(SELECT jsonb_array_elements_text(CAST(${parameter} AS JSONB))))`,
  serial: 'seq',
}
