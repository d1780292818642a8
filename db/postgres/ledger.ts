import type { Lane } from '../LaneLedger'
import type { ChangeListener, Ledger, SettlingCommits } from '../Ledger'
import type { TransactionRow } from '../schema'
import { createAdmin } from './admin'
import { createAnswers } from './answers'
import { createAuthorizations } from './authorizations'
import { createCommits } from './commits'
import { createDeliveries } from './deliveries'
import { DatabaseGoneError, LaneLostError } from './errors'
import { type Fence, type Fences, keeper } from './fences'
import { startGas } from './gas'
import { type Gateways, type GatewaysOptions, joinGateways } from './gateways'
import { createGrants } from './grants'
import { createJobReads } from './jobs'
import { type Lines, type LinesOptions, openLines } from './lines'
import { createOffers } from './offers'
import { createOrders } from './orders'
import { createOutbox } from './outbox'
import { createPaymentReads } from './payments'
import { productRows } from './product-rows'
import { startPruning } from './prune'
import { createReader } from './reader'
import { createSales } from './sales'
import { createSettling } from './settling'
import { createTransactionReads } from './transactions'
import { createWebhooks } from './webhooks'

export type OpenLedgerOptions = Pick<LinesOptions, 'servers' | 'name' | 'session' | 'answerMs'> &
  Pick<GatewaysOptions, 'gateway' | 'now' | 'monotonic' | 'on' | 'beatMs'>

/** Longest time of the last commits, ms. */
const closeMs = 5_000

export type OpenLedger = {
  ledger: Ledger
  lines: Lines
  gateways: Gateways
  /** Gives the lanes back, and ends the connections. Idempotent. */
  close(): Promise<void>
}

/**
 * The ledger of one gateway in a database whose schema and functions are there. Rejects when no
 * server can be written.
 */
export async function openLedger(options: OpenLedgerOptions): Promise<OpenLedger> {
  const { gateway, now } = options
  const stop = new AbortController()
  const listeners: ChangeListener[] = []
  const changes: ChangeListener = {
    payment(id) {
      for (const listener of listeners) listener.payment(id)
    },
    job(id) {
      for (const listener of listeners) listener.job(id)
    },
  }
  const changed = ({ payments, jobs }: Changed) => {
    for (const id of payments) changes.payment(id)
    for (const id of jobs) changes.job(id)
  }
  let gateways: Gateways | undefined
  const lines = await openLines({
    ...options,
    onNotification(payload) {
      const { by, lanes, payments = [], jobs = [] } = JSON.parse(payload) as Notification
      if (by === gateway.id) return
      changed({ payments, jobs })
      if (lanes === true) gateways?.wake()
    },
  })
  try {
    const joined = await joinGateways({ ...options, lines })
    gateways = joined
    const outbox = createOutbox()
    const commits = createCommits({
      lines,
      gateway: gateway.id,
      messages: outbox,
      changed,
      signal: stop.signal,
      monotonic: options.monotonic,
    })
    const reader = createReader(lines)
    const gas = await startGas(reader, now)
    const parts = { commits, reader, changes, gateway: gateway.id }
    const payments = createPaymentReads(reader)
    const authorizations = createAuthorizations(parts)
    const orders = createOrders(parts)
    const fences = createFences(joined)
    const settling = createSettling({
      ...parts,
      gas,
      spent: outbox.spent,
      products: productRows,
      fences,
    })
    const pruning = startPruning({ lines, commits, gateway: gateway.id })
    return {
      ledger: {
        payments,
        transactions: createTransactionReads(reader),
        jobs: createJobReads(reader),
        settling: noting(settling, joined),
        deliveries: createDeliveries(parts),
        gas: gas.totals,
        answers: createAnswers(parts),
        authorizations,
        offers: createOffers(parts),
        orders,
        grants: createGrants(parts),
        webhooks: createWebhooks({ ...parts, outbox, isSender: joined.isFirst }),
        sales: createSales(parts),
        admin: createAdmin(parts, { payments, authorizations, orders }),
        lanes: joined.lanes,
        fault: lines.storage.fault,
        writable: lines.storage.writable,
        onChange: (listener) => void listeners.push(listener),
        flush: commits.flush,
      },
      lines,
      gateways: joined,
      async close() {
        gas.close()
        pruning.close()
        // Without the database there is nothing to wait for.
        await Promise.race([commits.idle(), Bun.sleep(closeMs)])
        stop.abort()
        await joined.close()
        lines.close()
      },
    }
  } catch (error) {
    await gateways?.close()
    lines.close()
    throw error
  }
}

type Changed = { payments: readonly string[]; jobs: readonly string[] }

/** What a commit, or a gateway that leaves, tells the others. An empty one: all may have changed. */
type Notification = Partial<Changed> & { by?: string; lanes?: boolean }

function createFences(gateways: Gateways): Fences {
  return ({ network, relayer, nonce }) => {
    const lane: Lane = { network, relayer: relayer === keeper ? undefined : (relayer as never) }
    // After so long the others may have removed this process, and the write would be refused.
    if (!gateways.isFresh())
      throw new DatabaseGoneError('the database has not heard of this process lately', {
        mayHaveRun: false,
      })
    const fence = gateways.fenceOf(lane, nonce ?? undefined)
    if (fence === undefined) throw new LaneLostError(`${network} ${relayer}`)
    return fence as Fence
  }
}

/** Tells the gateways which account nonces the database has acknowledged, and which lanes are lost. */
function noting(settling: SettlingCommits, gateways: Gateways): SettlingCommits {
  const note = async <T>(
    lane: Pick<TransactionRow, 'network' | 'relayer' | 'nonce'>,
    write: () => Promise<T>,
  ): Promise<T> => {
    try {
      const result = await write()
      gateways.stored(lane, lane.nonce)
      return result
    } catch (error) {
      if (error instanceof LaneLostError) gateways.lost(lane)
      throw error
    }
  }
  return {
    ...settling,
    launch: (input) => note(input.transaction, () => settling.launch(input)),
    launchJob: (input) => note(input.transaction, () => settling.launchJob(input)),
    replace: (input) => note(input.transaction, () => settling.replace(input)),
    record: (inclusion, ...rest) =>
      note(inclusion.included, () => settling.record(inclusion, ...rest)),
  }
}
