import { webhookTest } from '../../db/WebhookEvent'
import type { Config, Merchant } from '../config/Config'
import { refusedOf } from '../gateway/upstream/refusals'
import { dayMs } from '../protocol/Time'
import type { Actions, Done, MerchantState } from '../web/admin/sources'
import { createAdminPages } from '../web/admin/start'
import { createPages, type PagesOptions } from '../web/public/pages'
import { createProblemPages } from '../web/public/problems'
import { createApiDocument } from './openapi'
import type { AppParts } from './parts'

/** The pages and documents that only people read. A start does not load this file. */
export type People = ReturnType<typeof createPeople>

type Options = PagesOptions & {
  /** Whether a merchant can deliver, paused or not. */
  availabilityOf(merchant: Merchant): MerchantState['health']
  /** Origins of upstreams whose circuit is open. */
  openOrigins(): readonly string[]
}

export function createPeople(config: Config, parts: AppParts, options: Options) {
  const { settlement, latency, startedStock, ledger, database } = parts
  const sources = {
    ...parts,
    networks: settlement.details,
    merchants: () =>
      config.merchants.map((merchant) => ({
        merchant,
        health: options.availabilityOf(merchant),
        times: latency.of(merchant.slug),
      })),
    refusedRoutes: () => refusedOf(config, parts.refusals),
    otherHost: parts.middleware.otherHost,
    openCircuits: options.openOrigins,
    channels: ledger.channels,
    claimsOf: settlement.channels.claimsOf,
    heldOrders: () => startedStock?.desk.held(),
    spentBudgets: parts.sponsoring.spent,
    storageFault: () => database.storage.fault(),
    flushRequests: parts.requestCounts.flush,
    file: parts.operator?.file,
    assets: ledger.sales.assets,
    webhooks: ledger.webhooks,
    ledger: ledger.admin,
    findPayment: settlement.findById,
    refunds: { ...parts.refunds, list: ledger.refunds.list },
    actions: actionsOf(parts),
  }
  return {
    pages: createPages(options),
    /** The pages of the operator. */
    admin: createAdminPages(config, { ...parts, ...options, sources }),
    /** What the codes of problems mean. */
    problems: createProblemPages(config),
    /** Our own endpoints as OpenAPI. */
    apiDocument: createApiDocument(config),
  }
}

/** The actions of an operator. */
function actionsOf(parts: AppParts): Actions {
  const { pauses, ledger, operator, startedStock, refunds, settlement, now } = parts
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
    async claim(network) {
      const count = await settlement.channels.claimAll(network)
      if (count === undefined) return { ok: false, text: 'Another gateway claims there.' }
      if (count === 0) return { ok: true, text: 'All of it is on chain.' }
      const named = `${count} ${count === 1 ? 'channel' : 'channels'}`
      return { ok: true, text: `${named} will be claimed now. Load the page again in a moment.` }
    },
    refund: refunds.request,
    retryRefund: refunds.retry,
    async testWebhook(endpoint) {
      await ledger.webhooks.add(webhookTest(endpoint, now()))
      return { ok: true, text: 'A test is on its way. Load the page again to see the answer.' }
    },
    async resend(id) {
      const at = now()
      const message = await ledger.webhooks.resend(id, { at, expiresAt: at + dayMs })
      if (message === undefined) return { ok: false, text: 'There is no such message.' }
      return { ok: true, text: 'The message is sent again. Load the page again to see the answer.' }
    },
    reload:
      operator &&
      (async (): Promise<Done> => {
        const faults = await operator.reload()
        if (faults.length === 0) return { ok: true, text: 'The file is in force.' }
        return { ok: false, text: `Nothing was changed: ${faults.slice(0, 10).join('; ')}` }
      }),
    backUp: operator && (() => operator.backUp(now())),
  }
}
