import type { Address } from 'viem'
import { type Lane, lanesOfOthers } from '../LaneLedger'
import { createChanges, type Ledger, type NewPayment, type SettlingCommits } from '../Ledger'
import { createJobReads, createTransactionReads } from '../payment-reads'
import type { TransactionRow } from '../schema'
import { createAdmin } from './admin'
import { createAnswers } from './answers'
import { createAuthorizations } from './authorizations'
import { createChannels } from './channels'
import { type ChangedIds, createCommits, startPruning, startStatistics } from './commits'
import { createDeliveries } from './deliveries'
import { createEntitlements } from './entitlements'
import { DatabaseGoneError, LaneLostError } from './errors'
import { type Fence, type Fences, keeper } from './fences'
import type { Gateways } from './gateways'
import { createGrants } from './grants'
import type { Lines } from './line-pool'
import { createOffers } from './offers'
import { createOrders } from './orders'
import { createReader, createSharedPaymentReads, selectsOf } from './reader'
import { createRefunds } from './refunds'
import { createSales } from './sales'
import { createSettling, type SettlingParts } from './settling'
import { startFailures, startGas } from './sums'
import { createOutbox, createWebhooks } from './webhooks'

type LedgerOptions = {
  lines: Lines
  /** This process among the gateways; undefined for a command beside the service. */
  gateways?: Gateways | undefined
  /** Unix ms. */
  now: () => number
  /** Milliseconds that never decrease. */
  monotonic: () => number
}

type OpenLedger = {
  ledger: Ledger
  /** Takes a notification of the database. */
  notify(payload: string): void
  /** Ends the commits; the lines stay open. */
  close(): Promise<void>
}

/** Longest time of the last commits, ms; while the database is away, and while it is not. */
const closeMs = { away: 1_000, there: 5_000 }

/** The ledger over open lines, in a database whose schema and functions are there. */
export async function createLedger(options: LedgerOptions): Promise<OpenLedger> {
  const { lines, gateways, now, monotonic } = options
  const stop = new AbortController()
  const changes = createChanges()
  const offerListeners: (() => void)[] = []
  const outbox = createOutbox()
  const gateway = gateways?.id ?? crypto.randomUUID()
  const { signal } = stop
  const changed = ({ payments, jobs }: ChangedIds) => {
    for (const id of payments) changes.payment(id)
    for (const id of jobs) changes.job(id)
  }
  const commits = createCommits({ lines, gateway, messages: outbox, changed, signal, monotonic })
  const reader = createReader(lines)
  const selects = selectsOf(reader)
  const gas = await startGas(reader, now)
  const parts = { commits, reader, changes, gateway }
  const failures = await startFailures(parts, now)
  const payments = createSharedPaymentReads(reader)
  const authorizations = createAuthorizations(parts)
  const orders = createOrders(parts)
  const entitlements = createEntitlements(parts)
  const channels = createChannels(parts)
  if (gateways !== undefined) {
    const recover = async () => {
      await Promise.all([entitlements.recover(), channels.recover()])
    }
    gateways.onReaped(recover)
    await recover()
  }
  const upkeep = [startPruning({ lines, commits }, gateway), startStatistics({ lines, commits })]
  return {
    ledger: {
      payments,
      transactions: createTransactionReads(selects),
      jobs: createJobReads(selects),
      settling: createFencedSettling({ ...parts, gas, spent: outbox.spent }, gateways),
      deliveries: createDeliveries(parts),
      gas: gas.totals,
      failures: failures.ledger,
      answers: createAnswers(parts),
      authorizations,
      channels,
      offers: createOffers(parts, (listener) => void offerListeners.push(listener)),
      orders,
      grants: createGrants(parts),
      entitlements,
      refunds: createRefunds(parts),
      webhooks: createWebhooks({ ...parts, outbox, isSender: () => gateways?.isFirst() ?? false }),
      sales: createSales(parts),
      admin: createAdmin(parts, { payments, authorizations, channels, orders, entitlements }),
      lanes: gateways?.lanes ?? lanesOfOthers,
      fault: lines.storage.fault,
      writable: lines.storage.writable,
      onChange: changes.listen,
      flush: commits.flush,
    },
    notify(payload) {
      const { by, lanes, offers, payments: ids = [], jobs = [] } = parse(payload)
      if (by === gateway) return
      // No sender: the connection was lost, and notifications were missed.
      if (offers === true || by === undefined) for (const each of offerListeners) each()
      changed({ payments: ids, jobs })
      if (lanes === true) gateways?.wake()
      const isEmpty = ids.length + jobs.length === 0 && lanes !== true && offers !== true
      if (isEmpty) changes.anything()
      if (isEmpty && by === undefined) {
        gateways?.reconnected()
        gateways?.wake()
      }
    },
    async close() {
      for (const end of [gas.close, failures.close, ...upkeep]) end()
      const ms = lines.storage.fault() === undefined ? closeMs.there : closeMs.away
      await Promise.race([commits.idle(), Bun.sleep(ms)])
      stop.abort()
    },
  }
}

function createFencedSettling(
  parts: Omit<SettlingParts, 'fences'>,
  gateways: Gateways | undefined,
): SettlingCommits {
  const fences = createFences(gateways)
  const settling = createSettling({ ...parts, fences })
  return gateways ? noting(settling, gateways) : settling
}

/** What a commit, or a gateway that leaves, tells the others. An empty one: all may have changed. */
type Notification = Partial<ChangedIds> & { by?: string; lanes?: boolean; offers?: boolean }

/** Any user of the database can notify, so a payload of another form is ignored. */
function parse(payload: string): Notification {
  try {
    const given: unknown = JSON.parse(payload)
    if (typeof given !== 'object' || given === null) return {}
    const { payments = [], jobs = [] } = given as Notification
    return Array.isArray(payments) && Array.isArray(jobs) ? given : {}
  } catch {
    return {}
  }
}

function createFences(gateways: Gateways | undefined): Fences {
  return ({ network, relayer, nonce }) => {
    const lane: Lane = { network, relayer: relayer === keeper ? undefined : (relayer as Address) }
    // After so long the others may have removed this process, and the write would be refused.
    if (gateways?.lanes.isFresh() === false)
      throw new DatabaseGoneError('the database has not heard of this process lately', {
        mayHaveRun: false,
      })
    // The keeper of the network records what an account sent that is no longer configured.
    const fence = gateways?.isUnconfigured(lane)
      ? gateways.fenceOf({ network: lane.network, relayer: undefined })
      : gateways?.fenceOf(lane, nonce ?? undefined)
    if (fence === undefined) throw new LaneLostError(`${network} ${relayer}`)
    return fence as Fence
  }
}

/** One gateway knows what its payers have open, and checks that itself. */
function withoutLimits<T extends { fresh: readonly NewPayment[] }>(input: T): T {
  return { ...input, fresh: input.fresh.map((each) => ({ ...each, fundsAtomic: undefined })) }
}

/** Tells the gateways which account nonces the database has acknowledged, and which lanes are lost. */
function noting(settling: SettlingCommits, gateways: Gateways): SettlingCommits {
  const note = async <T>(
    lane: Pick<TransactionRow, 'network' | 'relayer' | 'nonce'>,
    write: () => Promise<T>,
    // A refused write is rolled back, and with it the account nonce of the fence.
    isStored: (result: T) => boolean = () => true,
  ): Promise<T> => {
    const epoch = gateways.lanes.epochOf(lane)
    try {
      const result = await write()
      if (isStored(result)) gateways.stored(lane, lane.nonce)
      return result
    } catch (error) {
      if (error instanceof LaneLostError && epoch !== undefined) await gateways.lost(lane, epoch)
      throw error
    }
  }
  return {
    ...settling,
    launch(...inputs) {
      const last = inputs.at(-1)
      if (last === undefined) throw new Error('nothing to write')
      const limited = gateways.lanes.gateways() > 1 ? inputs : inputs.map(withoutLimits)
      const write = () => settling.launch(...limited)
      return note(last.transaction, write, ({ kind }) => kind === 'stored')
    },
    launchJob: (input) =>
      note(
        input.transaction,
        () => settling.launchJob(input),
        (refusal) => refusal === undefined,
      ),
    replace: (input) => note(input.transaction, () => settling.replace(input)),
    record: (inclusion, ...rest) =>
      note(inclusion.included, () => settling.record(inclusion, ...rest)),
  }
}
