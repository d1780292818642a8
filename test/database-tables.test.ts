import { expect, test } from 'bun:test'
import type * as Authorizations from '../db/authorizations'
import type * as Books from '../db/books'
import type * as Grants from '../db/grants'
import type * as Jobs from '../db/jobs'
import type * as Offers from '../db/offers'
import type * as Orders from '../db/orders'
import { generate, pathOf, tableFiles } from '../db/postgres/generate'
import type * as PgAuthorizations from '../db/postgres/schema/authorizations'
import type * as PgBooks from '../db/postgres/schema/books'
import type * as PgGrants from '../db/postgres/schema/grants'
import type * as PgJobs from '../db/postgres/schema/jobs'
import type * as PgOffers from '../db/postgres/schema/offers'
import type * as PgOrders from '../db/postgres/schema/orders'
import type * as PgSchema from '../db/postgres/schema/schema'
import type * as PgWebhooks from '../db/postgres/schema/webhooks'
import type * as Schema from '../db/schema'
import type * as Webhooks from '../db/webhooks'

/** Rows of all tables of a file, by table. */
type Selected<Tables> = {
  [Name in keyof Tables]: Tables[Name] extends { $inferSelect: infer Row } ? Row : never
}
type Inserted<Tables> = {
  [Name in keyof Tables]: Tables[Name] extends { $inferInsert: infer Row } ? Row : never
}
/** A type that no other one is assignable to in both directions, deeply. */
type Same<Left, Right> =
  (<T>() => T extends Left ? 1 : 2) extends <T>() => T extends Right ? 1 : 2 ? true : false
type SameRows<Left, Right> =
  Same<Selected<Left>, Selected<Right>> extends true
    ? Same<Inserted<Left>, Inserted<Right>>
    : 'the rows that are read differ'

/** The types decide: a row of one database is a row of the other one. */
const same: readonly true[] = [
  true satisfies SameRows<typeof Schema, typeof PgSchema>,
  true satisfies SameRows<typeof Authorizations, typeof PgAuthorizations>,
  true satisfies SameRows<typeof Jobs, typeof PgJobs>,
  true satisfies SameRows<typeof Offers, typeof PgOffers>,
  true satisfies SameRows<typeof Orders, typeof PgOrders>,
  true satisfies SameRows<typeof Grants, typeof PgGrants>,
  true satisfies SameRows<typeof Books, typeof PgBooks>,
  true satisfies SameRows<typeof Webhooks, typeof PgWebhooks>,
]

test('behavior: the tables of PostgreSQL have the rows of those of SQLite', () => {
  expect(same).toHaveLength(tableFiles.length)
})

for (const name of tableFiles) {
  test(`behavior: db/postgres/schema/${name}.ts is written from db/${name}.ts`, async () => {
    expect(await Bun.file(pathOf(name)).text()).toBe(await generate(name))
  })
}
