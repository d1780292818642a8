import type { Hex } from 'viem'
import type { JobRider, Ledger, RowsRefusal } from '../../db/Ledger'
import type { OrderLedger } from '../../db/orders'
import type { Db } from '../../db/sqlite/open'
import type { Riders } from '../../db/sqlite/settling'
import { RefusedError, write } from '../../db/sqlite/write'
import { RpcFault } from '../../src/chain/client'
import * as Receipt from '../../src/chain/receipt'
import * as Abi from '../../src/protocol/Abi'
import type { Job, JobEnd } from '../../src/settlement/send/Job'
import type { SwapTerms } from '../../src/stock/market'
import { refundId, swapId } from '../../src/stock/Order'
import type { Snapshot, Verdict } from '../../src/stock/Snapshot'
import type { DeskContext, DeskSettlement } from '../../src/stock/steps'
import { type Chain, type ModelJob, newHash, sharesFor } from './desk-chain'
import { asset, deskAddress, encode, readSigned } from './desk-orders'

/** The view of a desk process: a settlement, a market and their node. */

export type World = {
  readonly db: Db
  readonly ledger: Pick<Ledger, 'payments' | 'settling' | 'orders'>
  readonly riders: Riders['orders']
  readonly chain: Chain
  /** A killed process never gets an answer. */
  generation: number
  /** The next nonce of the account that sends the jobs. */
  nonce: number
  /** Arguments of the last call of the market. */
  terms: SwapTerms | undefined
}

/** The view of a process that is started now. */
export function connect(world: World): {
  settlement: DeskSettlement
  market: DeskContext['market']
  orders: OrderLedger
} {
  const born = world.generation
  return {
    settlement: settlementOf(world, born),
    market: marketOf(world, born),
    orders: ordersOf(world, born),
  }
}

/** An answer of the node, a fault, or no answer for a killed process. */
async function node<T>(world: World, born: number, answer: () => T): Promise<T> {
  const { random, state } = world.chain
  for (let turn = random.between(0, 2); turn > 0; turn--) await Promise.resolve()
  if (random.chance(0.3)) await new Promise((resolve) => setImmediate(resolve))
  if (born !== world.generation) return new Promise<T>(() => undefined)
  if (random.chance(state.faults)) throw new RpcFault('no node answers')
  return answer()
}

/**
 * A ledger that is far away: other things happen before it does its work, and before the answer is
 * here. A process that was killed asks for nothing more.
 */
async function remote<T>(world: World, born: number, work: () => T | Promise<T>): Promise<T> {
  await pause(world)
  if (born !== world.generation) return new Promise<T>(() => undefined)
  const result = await work()
  await pause(world)
  return born === world.generation ? result : new Promise<T>(() => undefined)
}

async function pause({ chain: { random } }: World): Promise<void> {
  for (let turn = random.between(0, 2); turn > 0; turn--) await Promise.resolve()
  if (random.chance(0.15)) await new Promise((resolve) => setImmediate(resolve))
}

function ordersOf(world: World, born: number): OrderLedger {
  const { orders } = world.ledger
  const far =
    <A extends unknown[], T>(ask: (...args: A) => Promise<T>) =>
    (...args: A) =>
      remote(world, born, () => ask(...args))
  return {
    find: far(orders.find),
    findByPayment: far(orders.findByPayment),
    open: far(orders.open),
    toRecheck: far(() => toRecheck(world)),
    countOpen: far(orders.countOpen),
    history: far(orders.history),
    countRefunds: far(orders.countRefunds),
    countUnderWay: far(orders.countUnderWay),
    countRefundable: far(orders.countRefundable),
    move: far(orders.move),
  }
}

/** The ledger's own answer reads the jobs of its database; those of the model are in memory. */
async function toRecheck({ db, ledger, chain: { jobs } }: World): Promise<readonly string[]> {
  const ended = db.sqlite
    .query<{ id: string }, []>("SELECT id FROM orders WHERE state IN ('delivered', 'refunded')")
    .all()
  const found = await Promise.all(ended.map(({ id }) => ledger.orders.find(id)))
  return found.flatMap((order) => {
    if (order === undefined) return []
    const swap = jobs.get(swapId(order))?.state
    const refund = jobs.get(refundId(order))?.state
    const isDoubtful =
      order.state === 'delivered'
        ? swap !== 'confirmed'
        : swap === 'confirmed' || refund !== 'confirmed'
    return isDoubtful ? [order.id] : []
  })
}

function settlementOf(world: World, born: number): DeskSettlement {
  const { chain, ledger } = world
  const { jobs, listeners } = chain
  const isMine = () => born === world.generation
  return {
    desk: deskAddress,
    hasDesk: () => true,
    deskEpoch: () => '1',
    isShared: false,
    findById: (id) => remote(world, born, () => ledger.payments.findById(id)),
    job: (id) =>
      remote(world, born, () => {
        const known = jobs.get(id)
        return known && { ...known }
      }),
    onJob: (listener) => void listeners.job.push((id) => isMine() && listener(id)),
    onPayment: (listener) => void listeners.payment.push((id) => isMine() && listener(id)),
    async run(job, { waitMs, rider }) {
      if (!jobs.has(job.id)) {
        const { random, state } = chain
        const answered = node(world, born, () => !random.chance(state.faults))
        if (!(await answered.catch(() => false))) {
          return { kind: 'unavailable', detail: 'poor', retryAfterSeconds: 1 }
        }
      }
      const refusal = jobs.has(job.id) ? undefined : send(world, job, rider)
      if (refusal !== undefined) return { kind: 'refused', reason: refusal }
      if (waitMs > 0) await node(world, born, () => undefined).catch(() => undefined)
      return endOf(jobs.get(job.id))
    },
    read: (_, calls) => node(world, born, () => readNonces(chain, calls)),
    observationOf: ({ transaction, transfer }) =>
      node(world, born, () => {
        const logs = chain.receipts.get(transaction)?.logs ?? []
        return logs.some((log) => Receipt.isTransfer(log, transfer)) ? 'shown' : 'unseen'
      }),
    rpc: (_, method, [first]) =>
      node(world, born, () => {
        if (method === 'eth_blockNumber') return `0x${chain.block.toString(16)}`
        if (method === 'eth_getLogs') return usesOf(chain, first as { topics: readonly Hex[] })
        const receipt = chain.receipts.get(first as Hex)
        return receipt ? encode(receipt) : null
      }),
  }
}

function marketOf(world: World, born: number): DeskContext['market'] {
  const { chain } = world
  const { random, state } = chain
  // The desk reads only the shares of a snapshot.
  const verdicts = new WeakMap<Snapshot, Verdict>()
  return {
    snapshotOf: (_, usdgAtomic, { people = [], fresh } = {}) =>
      node(world, born, () => {
        if (!fresh) throw new Error('the desk takes the newest block')
        const isBlocked = people.some((each) => state.blocked.has(each)) && random.chance(0.5)
        const code = state.isPaused ? 'paused' : isBlocked ? 'halted' : undefined
        const isClosed = state.isDrained || state.isPaused
        const sharesAtomic = isClosed ? undefined : sharesFor(chain, usdgAtomic)
        const snapshot = { sharesAtomic } as Snapshot
        verdicts.set(
          snapshot,
          code ? { ok: false, code, detail: code } : { ok: true, warnings: [] },
        )
        return snapshot
      }),
    judge(snapshot) {
      const verdict = verdicts.get(snapshot)
      if (verdict === undefined) throw new Error('a snapshot of another market')
      return verdict
    },
    // The model reads the terms, not calldata.
    swap(asked) {
      world.terms = asked
      return []
    },
  }
}

/** Writes a job and the rows of its caller. Returns the reason if they are refused. */
function send(world: World, job: Job, rider: JobRider | undefined): RowsRefusal | undefined {
  const transaction = newHash(world.chain)
  try {
    write(world.db, () => ride(world, rider, transaction))
  } catch (error) {
    if (error instanceof RefusedError) return error.reason
    throw error
  }
  const sent = compose(world, job)
  const unknown = { receipt: undefined, sharesAtomic: undefined, returnedAtomic: undefined }
  const row = { job, nonce: world.nonce++, transaction, blockNumber: undefined, ...sent }
  world.chain.jobs.set(job.id, { ...row, state: 'broadcast', ...unknown })
  return undefined
}

/** The jobs of the model are not in the database: what a rider asks of them is answered here. */
function ride({ chain, riders }: World, rider: JobRider | undefined, transaction: Hex): void {
  if (rider?.kind !== 'order') return
  const { withoutEffect = [], ...rest } = rider
  const states = withoutEffect.map((id) => chain.jobs.get(id)?.state)
  if (!states.every((state) => state === 'failed' || state === 'replaced')) {
    throw new RefusedError('job-may-have-effect')
  }
  riders.ride(rest, transaction)
}

/** The job as the settlement would send it now. */
function compose(world: World, job: Job): Pick<ModelJob, 'signed' | 'terms'> {
  world.terms = undefined
  if (!('compose' in job)) throw new Error(`${job.id} is not signed`)
  const sign = () => `0x${'11'.repeat(64)}1b` as const
  const call = job.compose({ address: deskAddress, nonce: world.nonce, sign })
  // `compose` has called the market.
  return { signed: readSigned(call), terms: world.terms }
}

function endOf(known: ModelJob | undefined): JobEnd {
  if (known === undefined) throw new Error('a job has no row')
  const { state, transaction, receipt } = known
  if (state === 'broadcast') return { kind: 'pending', transaction }
  if (state === 'replaced') return { kind: 'replaced', transaction }
  if (receipt === undefined) throw new Error('a job ended without receipt')
  return { kind: state, transaction, receipt }
}

/** `authorizationState` of the desk. */
function readNonces({ block, used }: Chain, calls: readonly { data: Hex }[]) {
  const results = calls.map(({ data }): Hex => {
    const isUsed = used.has(`0x${data.slice(-64)}`)
    return `0x${Abi.uint(isUsed ? 1 : 0)}`
  })
  return { blockNumber: block, results }
}

function usesOf({ refunds }: Chain, { topics }: { topics: readonly Hex[] }): object[] {
  const uses = refunds.filter((each) => each.nonce === topics[2])
  return uses.map(({ transaction }) => ({
    address: asset,
    topics: [...topics],
    data: '0x',
    logIndex: '0x0',
    transactionHash: transaction,
    blockNumber: '0x1',
  }))
}
