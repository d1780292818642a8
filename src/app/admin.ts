import type { Config } from '../config/Config'
import { availabilityOf, originsOf } from '../gateway/origins'
import { refusedOf } from '../gateway/upstream/refusals'
import type { Actions, Done, Sources } from '../web/admin/sources'
import type { Parts } from './parts'

/** What the pages for operators show and do, under one configuration. */
export function createAdminSources(config: Config, parts: Parts): Sources {
  const { settlement, breaker, latency, exchange, startedStock, ledger, now } = parts
  const { storage } = parts.database
  const isOpen = (origin: string) => breaker.isOpen(origin, now())
  const origins = new Set(config.merchants.flatMap((each) => originsOf(each, exchange?.data)))
  return {
    networks: settlement.details,
    merchants: () =>
      config.merchants.map((merchant) => ({
        merchant,
        health: availabilityOf(originsOf(merchant, exchange?.data), merchant, isOpen),
        times: latency.of(merchant.slug),
      })),
    refusedRoutes: () => refusedOf(config, parts.refusals),
    otherHost: parts.middleware.otherHost,
    openCircuits: () => [...origins].filter(isOpen),
    pending: parts.pending,
    heldOrders: () => startedStock?.desk.held(),
    spentBudgets: parts.sponsoring.spent,
    storageFault: () => storage.fault(),
    recent: parts.recent,
    flushRequests: parts.hours.flush,
    file: parts.operator?.file,
    assets: ledger.sales.assets,
    ledger: ledger.admin,
    actions: createActions(parts),
    now,
  }
}

/** The actions of an operator. */
function createActions({ pauses, ledger, operator, startedStock, now }: Parts): Actions {
  return {
    async pause(of, isPause) {
      const hasChanged = await pauses.set(of, isPause)
      const word = isPause ? 'paused' : 'sold again'
      return { ok: true, text: `${of.name} is ${word}${hasChanged ? '' : ' already'}.` }
    },
    async retry(id) {
      const moved = await ledger.orders.move({ kind: 'request-retry', id, at: now() })
      if (moved === undefined) return { ok: false, text: `${id} is not held: nothing was done.` }
      startedStock?.desk.drive(id)
      return { ok: true, text: `${id} is tried again. Load the page again to see its state.` }
    },
    reload:
      operator &&
      (async (): Promise<Done> => {
        const faults = await operator.reload()
        if (faults.length === 0) return { ok: true, text: 'The file is in force.' }
        return { ok: false, text: `Nothing was changed: ${faults.slice(0, 10).join('; ')}` }
      }),
    backUp:
      operator &&
      (async (): Promise<Done> => {
        const { ok, text } = await operator.backUp(now())
        return { ok, text }
      }),
  }
}
