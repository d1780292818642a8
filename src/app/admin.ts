import type { Config } from '../config/Config'
import { originsOf } from '../proxy/origins'
import type { Sources } from '../web/admin/sources'
import type { Parts } from './parts'
import type { State } from './state'

/** What the pages for operators show and do, under one configuration. */
export function createAdminSources(config: Config, parts: Parts, state: State): Sources {
  const { settlement, breaker, exchange, startedStock, ledger, now } = parts
  const { storage } = parts.db
  const origins = new Set(config.merchants.flatMap((each) => originsOf(each, exchange?.data)))
  return {
    networks: settlement.details,
    merchants: () =>
      config.merchants.map((merchant) => ({
        merchant,
        health: state.healthOf(merchant),
        pause: undefined,
      })),
    openCircuits: () => [...origins].filter((origin) => breaker.isOpen(origin, now())),
    pending: parts.pending,
    heldOrders: () => startedStock?.desk.held(),
    spentBudgets: parts.sponsoring.spent,
    storageFault: () => storage.fault(),
    recent: parts.recent,
    flushRequests: parts.hours.flush,
    assets: ledger.sales.assets,
    ledger: ledger.admin,
    now,
  }
}
