import { type SQL, sql } from 'drizzle-orm'
import {
  blob,
  check,
  customType,
  foreignKey,
  index,
  integer,
  primaryKey,
  sqliteTable as table,
  text,
  unique,
  uniqueIndex,
} from 'drizzle-orm/sqlite-core'
import type { Address, Hex } from 'viem'

/**
 * What the files of tables are made of. They describe the tables of SQLite; the migrations of
 * PostgreSQL are written by hand, and rows of both databases are read by these columns.
 */
export {
  blob,
  check,
  foreignKey,
  index,
  integer,
  primaryKey,
  sql,
  table,
  text,
  unique,
  uniqueIndex,
}

/** Non-negative integer of any size as decimal TEXT: bun:sqlite rounds INTEGER above 2^53. */
export const decimal = customType<{ data: bigint; driverData: string }>({
  dataType: () => 'text',
  toDriver: String,
  fromDriver: (text) => BigInt(text),
})

/** Hex with `0x` in lower case. */
export const hex = customType<{ data: Hex; driverData: string }>({
  dataType: () => 'text',
  toDriver: (text) => text.toLowerCase(),
  fromDriver: (text) => text as Hex,
})

/**
 * Address, written in its checksummed form. NOCASE, so that the same money cannot pass a UNIQUE
 * twice in different letter case.
 */
export const address = customType<{ data: Address; driverData: string }>({
  dataType: () => 'text COLLATE NOCASE',
  fromDriver: (text) => text as Address,
})

/** Block number: INTEGER, because it is compared and stays far below 2^53. */
export const block = customType<{ data: bigint; driverData: number }>({
  dataType: () => 'integer',
  toDriver: Number,
  fromDriver: BigInt,
})

/** Unix ms. */
export const at = (name: string) => integer(name, { mode: 'number' })

/**
 * The number of a row in the order in which rows were written. In PostgreSQL, of two commits that run
 * side by side, the one with the lower numbers may end last.
 */
export const sequence = (name: string) => integer(name).primaryKey()

export const flag = (name: string) => integer(name, { mode: 'boolean' })

type Column = Parameters<typeof sql>[1]

/** `column IN ('a', 'b')` for a CHECK: literals, because a CHECK takes no parameters. */
export function oneOf(column: Column, values: readonly string[]): SQL {
  return sql`${column} IN (${sql.raw(values.map((value) => `'${value}'`).join(', '))})`
}

/** A decimal without sign, exponent or leading zero. */
export function isDecimal(column: Column): SQL {
  return sql`typeof(${column}) = 'text' AND ${column} <> '' AND ${column} NOT GLOB '*[^0-9]*' AND (${column} = '0' OR ${column} NOT GLOB '0*')`
}

/** `0x` and that many lower-case hex digits. */
export function isHex(column: Column, digits: number): SQL {
  return sql`length(${column}) = ${sql.raw(String(digits + 2))} AND ${column} GLOB '0x*' AND substr(${column}, 3) NOT GLOB '*[^0-9a-f]*'`
}

export function isAddress(column: Column): SQL {
  return sql`length(${column}) = 42 AND ${column} GLOB '0x*' AND substr(${column}, 3) NOT GLOB '*[^0-9a-fA-F]*'`
}

export function isFlag(column: Column): SQL {
  return sql`${column} IN (0, 1)`
}

/** A flag that is not set. */
export function isUnset(column: Column): SQL {
  return sql`${column} = 0`
}

/** Hex digits in lower case, without `0x`. */
export function isDigest(column: Column, digits: number): SQL {
  return sql`length(${column}) = ${sql.raw(String(digits))} AND ${column} NOT GLOB '*[^0-9a-f]*'`
}

/** A number of digits without sign that is at most another one. */
export function isAtMost(column: Column, limit: Column): SQL {
  return sql`length(${column}) < length(${limit}) OR (length(${column}) = length(${limit}) AND ${column} <= ${limit})`
}

/** `prefix`: letters, digits and `_`. */
export function startsWith(column: Column, prefix: string): SQL {
  return sql`${column} GLOB ${sql.raw(`'${prefix}*'`)}`
}

export function isNetwork(column: Column): SQL {
  return sql`${column} GLOB 'eip155:[1-9]*'`
}

/** `2026-11-20`. */
export function isDay(column: Column): SQL {
  return sql`${column} GLOB '[0-9][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9]'`
}

export function isJson(column: Column): SQL {
  return sql`json_valid(${column})`
}
