import { getTableColumns, getTableName, type SQL, sql } from 'drizzle-orm'
import {
  type AnyPgColumn,
  bigint,
  boolean,
  check,
  customType,
  type PgColumnBuilderBase,
  type PgTableExtraConfigValue,
  pgTable,
  foreignKey as tableForeignKey,
  index as tableIndex,
  primaryKey as tablePrimaryKey,
  uniqueIndex as tableUniqueIndex,
} from 'drizzle-orm/pg-core'
import type { Address, Hex } from 'viem'
import { nullable } from './nullable'

/**
 * The names of columns.ts for PostgreSQL. The generated files of postgres/schema import them.
 *
 * Text sorts by bytes, as in SQLite and whatever the database's locale is. Indexes and keys over an
 * address are over `lower(address)`, so that the same money cannot pass a UNIQUE twice in different
 * letter case; statements compare in the same way.
 */
export { check, sql }

type Rule = PgTableExtraConfigValue

/** `pgTable`, in which a rule may consist of several. */
export function table<Name extends string, Columns extends Record<string, PgColumnBuilderBase>>(
  name: Name,
  columns: Columns,
  rules: (
    self: Parameters<NonNullable<Parameters<typeof pgTable<Name, Columns>>[2]>>[0],
  ) => readonly (Rule | readonly Rule[])[] = () => [],
) {
  return pgTable(name, columns, (self) => rules(self).flat())
}

export const text = customType<{ data: string; driverData: string }>({
  dataType: () => 'text COLLATE "C"',
})

const bytes = customType<{ data: Buffer; driverData: Uint8Array }>({ dataType: () => 'bytea' })
export const blob = (name: string, _: { mode: 'buffer' }) => bytes(name)

/** SQLite has 64 bits, too. Values are below 2^53. */
export const integer = (name: string) => bigint(name, { mode: 'number' })

/** Non-negative integer of any size, TEXT as in SQLite. */
export const decimal = customType<{ data: bigint; driverData: string }>({
  dataType: () => 'text COLLATE "C"',
  toDriver: (value) => nullable(value, String),
  fromDriver: BigInt,
})

/**
 * A decimal that statements add to. As a number of JSON it would be rounded, so statements return it
 * as text.
 */
export const decimalSum = customType<{ data: bigint; driverData: string }>({
  dataType: () => 'numeric',
  toDriver: (value) => nullable(value, String),
  fromDriver: (sum) => {
    if (typeof sum !== 'string') throw new TypeError('a sum must be read as text')
    return BigInt(sum)
  },
})

/** Hex with `0x` in lower case. */
export const hex = customType<{ data: Hex; driverData: string }>({
  dataType: () => 'text COLLATE "C"',
  toDriver: (value) => nullable(value, (text) => text.toLowerCase()),
  fromDriver: (value) => value as Hex,
})

/** The column's type says that its indexes ignore letter case; for the server it is a comment. */
const addressType = 'text COLLATE "C" /* address */'

/** Address, written in its checksummed form. */
export const address = customType<{ data: Address; driverData: string }>({
  dataType: () => addressType,
  fromDriver: (value) => value as Address,
})

/** Block number. */
export const block = customType<{ data: bigint; driverData: string | number }>({
  dataType: () => 'bigint',
  toDriver: (value) => nullable(value, String),
  fromDriver: BigInt,
})

/** Unix ms. */
export const at = integer

/**
 * The number of a row in the order in which rows were written. Of two commits that run side by side,
 * the one with the lower numbers may end last.
 */
export const sequence = (name: string) => integer(name).primaryKey().generatedByDefaultAsIdentity()

export const flag = (name: string) => boolean(name)

/** Columns as `getTableColumns` has them; those that rules get do not know their type. */
function isAddressColumn(column: AnyPgColumn): boolean {
  const known = Object.values(getTableColumns(column.table))
  return known.find(({ name }) => name === column.name)?.getSQLType() === addressType
}

function withoutCase(columns: readonly AnyPgColumn[]): [AnyPgColumn | SQL, ...SQL[]] {
  const all = columns.map((column) => (isAddressColumn(column) ? sql`lower(${column})` : column))
  return all as unknown as [AnyPgColumn | SQL, ...SQL[]]
}

export const index = (name: string) => ({
  on: (...columns: readonly AnyPgColumn[]) => tableIndex(name).on(...withoutCase(columns)),
})

export const uniqueIndex = (name: string) => ({
  on: (...columns: readonly AnyPgColumn[]) => tableUniqueIndex(name).on(...withoutCase(columns)),
})

/** An index, because a constraint takes no expressions. */
export const unique = uniqueIndex

/** A primary key takes no expressions. With an address it is a UNIQUE index, `<table>_key`. */
export function primaryKey({ columns }: { columns: [AnyPgColumn, ...AnyPgColumn[]] }): Rule {
  const [first] = columns
  if (columns.some(isAddressColumn)) {
    return uniqueIndex(`${getTableName(first.table)}_key`).on(...columns)
  }
  return tablePrimaryKey({ columns })
}

type ForeignKey = { columns: AnyPgColumn[]; foreignColumns: AnyPgColumn[] }

/** A foreign key takes no expressions. With an address it is a trigger of the migrations. */
export function foreignKey({ columns, foreignColumns }: ForeignKey): Rule[] {
  if (columns.some(isAddressColumn)) return []
  const [column, ...more] = columns
  const [other, ...others] = foreignColumns
  if (column === undefined || other === undefined) return []
  return [tableForeignKey({ columns: [column, ...more], foreignColumns: [other, ...others] })]
}

type Column = Parameters<typeof sql>[1]

/** A CHECK by a regular expression without quotes. */
function matches(column: Column, pattern: string): SQL {
  return sql`${column} ~ ${sql.raw(`'${pattern}'`)}`
}

/** `column IN ('a', 'b')` for a CHECK: literals, because a CHECK takes no parameters. */
export function oneOf(column: Column, values: readonly string[]): SQL {
  return sql`${column} IN (${sql.raw(values.map((value) => `'${value}'`).join(', '))})`
}

/** A decimal without sign, exponent or leading zero. */
export function isDecimal(column: Column): SQL {
  return matches(column, '^(0|[1-9][0-9]*)$')
}

/** `numeric` has fractions, infinity and NaN, which is above it. */
export function isDecimalSum(column: Column): SQL {
  return sql`${column} >= 0 AND ${column} < 'Infinity' AND scale(${column}) = 0`
}

/**
 * A text of that length. The pattern does not have the length: `{64}` makes an automaton of 64 states,
 * which takes ten times as long for each row of each UPDATE.
 */
function matchesWithLength(column: Column, pattern: string, length: number): SQL {
  return sql`${matches(column, pattern)} AND length(${column}) = ${sql.raw(`${length}`)}`
}

/** `0x` and that many lower-case hex digits. */
export function isHex(column: Column, digits: number): SQL {
  return matchesWithLength(column, '^0x[0-9a-f]*$', digits + 2)
}

export function isAddress(column: Column): SQL {
  return matchesWithLength(column, '^0x[0-9a-fA-F]*$', 42)
}

/** The type says it already. */
export function isFlag(column: Column): SQL {
  return sql`${column} IN (false, true)`
}

/** A flag that is not set. */
export function isUnset(column: Column): SQL {
  return sql`NOT ${column}`
}

/** Hex digits in lower case, without `0x`. */
export function isDigest(column: Column, digits: number): SQL {
  return matchesWithLength(column, '^[0-9a-f]*$', digits)
}

/** A number of digits without sign that is at most another one. */
export function isAtMost(column: Column, limit: Column): SQL {
  return sql`length(${column}) < length(${limit}) OR (length(${column}) = length(${limit}) AND ${column} <= ${limit})`
}

/** `prefix`: letters, digits and `_`. */
export function startsWith(column: Column, prefix: string): SQL {
  return matches(column, `^${prefix}`)
}

export function isNetwork(column: Column): SQL {
  return matches(column, '^eip155:[1-9]')
}

/** `2026-11-20`. */
export function isDay(column: Column): SQL {
  return matches(column, '^[0-9]{4}-[01][0-9]-[0-3][0-9]$')
}

/** An error of the cast refuses the row, too. */
export function isJson(column: Column): SQL {
  return sql`${column}::json IS NOT NULL`
}
