import { check, primaryKey, sqliteTable, text } from 'drizzle-orm/sqlite-core'
import type * as Network from '../src/protocol/Network'
import { address, at, decimal, isAddress, isDecimal } from './columns'

/** Offers of a configuration that its successor does not make: buyers may still use them. */
export const offers = sqliteTable(
  'offers',
  {
    merchant: text('merchant').notNull(),
    /** Path below the merchant. */
    route: text('route').notNull(),
    network: text('network').$type<Network.Id>().notNull(),
    asset: address('asset').notNull(),
    payTo: address('pay_to').notNull(),
    amountAtomic: decimal('amount_atomic').notNull(),
    retiredAt: at('retired_at').notNull(),
  },
  (table) => [
    primaryKey({
      columns: [
        table.merchant,
        table.route,
        table.network,
        table.asset,
        table.payTo,
        table.amountAtomic,
      ],
    }),
    check('offers_addresses', isAddress(table.asset)),
    check('offers_payee', isAddress(table.payTo)),
    check('offers_amount', isDecimal(table.amountAtomic)),
  ],
)
