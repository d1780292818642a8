import { sql } from 'drizzle-orm'
import { check, integer, primaryKey, sqliteTable, text } from 'drizzle-orm/sqlite-core'
import type * as Network from '../src/protocol/Network'
import { address, at, isAddress } from './columns'

/** What the figures of sales need besides payments and transactions. */

/** Requests by UTC hour and route. The table has no rowid, which the migration says. */
export const hours = sqliteTable(
  'hours',
  {
    /** Unix ms of its begin. */
    hour: at('hour').notNull(),
    merchant: text('merchant').notNull(),
    route: text('route').notNull(),
    /** Answers 402 to requests without a credential. */
    asked: integer('asked').notNull(),
    /** Purchases whose payment was confirmed, or whose answer by use was given. */
    paid: integer('paid').notNull(),
    /** Requests with a credential that got a problem. */
    failed: integer('failed').notNull(),
  },
  (table) => [
    primaryKey({ columns: [table.hour, table.merchant, table.route] }),
    check('hours_hour', sql`${table.hour} >= 0 AND ${table.hour} % 3600000 = 0`),
    check('hours_counts', sql`${table.asked} >= 0 AND ${table.paid} >= 0 AND ${table.failed} >= 0`),
  ],
)

/** Accounts of this service, of all its configurations: what they pay is no sale. */
export const ownAccounts = sqliteTable(
  'own_accounts',
  { address: address('address').primaryKey(), addedAt: at('added_at').notNull() },
  (table) => [check('own_accounts_address', isAddress(table.address))],
)

/** Assets of the networks, of all configurations, as the newest one with them describes them. */
export const assets = sqliteTable(
  'assets',
  {
    network: text('network').$type<Network.Id>().notNull(),
    address: address('address').notNull(),
    networkName: text('network_name').notNull(),
    symbol: text('symbol').notNull(),
    decimals: integer('decimals').notNull(),
    /** `eth_price_usd` of the network, as a decimal. */
    coinUsd: text('coin_usd').notNull(),
    updatedAt: at('updated_at').notNull(),
  },
  (table) => [
    primaryKey({ columns: [table.network, table.address] }),
    check('assets_address', isAddress(table.address)),
    check('assets_decimals', sql`${table.decimals} BETWEEN 0 AND 36`),
  ],
)
