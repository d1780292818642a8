// Written by db/postgres/generate.ts from db/books.ts.
import type * as Network from '../../../src/protocol/Network'
import { address, at, check, integer, isAddress, primaryKey, sql, table, text } from '../../columns.pg'

/** What the figures of sales need besides payments and transactions. */

/** Requests by UTC hour and route. The table has no rowid, which the migration says. */
export const hours = table(
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
  (self) => [
    primaryKey({ columns: [self.hour, self.merchant, self.route] }),
    check('hours_hour', sql`${self.hour} >= 0 AND ${self.hour} % 3600000 = 0`),
    check('hours_counts', sql`${self.asked} >= 0 AND ${self.paid} >= 0 AND ${self.failed} >= 0`),
  ],
)

/** Accounts of this service, of all its configurations: what they pay is no sale. */
export const ownAccounts = table(
  'own_accounts',
  { address: address('address').notNull(), addedAt: at('added_at').notNull() },
  (self) => [
    primaryKey({ columns: [self.address] }),
    check('own_accounts_address', isAddress(self.address)),
  ],
)

/** Assets of the networks, of all configurations, as the newest one with them describes them. */
export const assets = table(
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
  (self) => [
    primaryKey({ columns: [self.network, self.address] }),
    check('assets_address', isAddress(self.address)),
    check('assets_decimals', sql`${self.decimals} BETWEEN 0 AND 36`),
  ],
)
