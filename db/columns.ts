import { type SQL, sql } from 'drizzle-orm'
import { customType, integer } from 'drizzle-orm/sqlite-core'
import type { Address, Hex } from 'viem'

// Prepared statements pass nulls to these functions too.
function nullable<In, Out>(value: In, map: (value: In) => Out): Out {
  return value === null ? (null as Out) : map(value)
}

/** Non-negative integer of any size as decimal TEXT: bun:sqlite rounds INTEGER above 2^53. */
export const decimal = customType<{ data: bigint; driverData: string }>({
  dataType: () => 'text',
  toDriver: (value) => nullable(value, String),
  fromDriver: (text) => BigInt(text),
})

/** Hex with `0x` in lower case. */
export const hex = customType<{ data: Hex; driverData: string }>({
  dataType: () => 'text',
  toDriver: (value) => nullable(value, (text) => text.toLowerCase()),
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
  toDriver: (value) => nullable(value, Number),
  fromDriver: BigInt,
})

/** Unix ms. */
export const at = (name: string) => integer(name, { mode: 'number' })

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
