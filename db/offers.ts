import type * as Network from '../src/protocol/Network'
import {
  address,
  at,
  check,
  decimal,
  isAddress,
  isDecimal,
  primaryKey,
  table,
  text,
} from './columns'

/** Offers of a configuration that its successor does not make: buyers may still use them. */
export const offers = table(
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
  (self) => [
    primaryKey({
      columns: [self.merchant, self.route, self.network, self.asset, self.payTo, self.amountAtomic],
    }),
    check('offers_addresses', isAddress(self.asset)),
    check('offers_payee', isAddress(self.payTo)),
    check('offers_amount', isDecimal(self.amountAtomic)),
  ],
)
