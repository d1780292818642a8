import { drizzle } from 'drizzle-orm/bun-sqlite'
import type { Order } from '../../db/Order'
import { payments } from '../../db/schema'
import { createLedger } from '../../db/sqlite/ledger'
import type { Db } from '../../db/sqlite/open'
import { createOrders } from '../../db/sqlite/orders'
import { createOutbox } from '../../db/sqlite/webhooks'
import { write } from '../../db/sqlite/write'
import type { Random } from '../soak/random'
import {
  type Chain,
  createChain,
  emit,
  execute,
  newHash,
  receiptOf,
  takeBack,
  transferLog,
} from './desk-chain'
import { connect, type World } from './desk-node'
import { asset, deskAddress, network, paymentRow } from './desk-orders'

/**
 * A chain and a settlement in memory, for thousands of orders. The order machine and the database
 * are the real ones. Everything that can happen is an event that the test draws.
 */

/** The state of the model, and functions that change it. */
export function createModel(db: Db, random: Random) {
  const chain = createChain(random)
  const world: World = {
    db,
    ledger: createLedger(db),
    riders: createOrders(db, createOutbox(db)).riders,
    chain,
    generation: 0,
    nonce: 0,
    terms: undefined,
  }
  const { state, swaps, refunds, paid } = chain
  return {
    /** The ledger itself, without the desk's wrapper. */
    orders: world.ledger.orders,
    state,
    swaps,
    refunds,
    paid,
    /** The view of a process that is started now. */
    connect: () => connect(world),
    /** Ends the connected process at any point. */
    kill: () => void world.generation++,
    /** A payment and its order, as the settlement writes them together. */
    buy: (order: NewOrder) => buy(world, order),
    /** Payments that are not on the chain. */
    unpaid: () => [...paid].filter(([, each]) => !each.isPaid).map(([id]) => id),
    /** Includes a payment, or proves that it never will be included. */
    endPayment: (id: string, isPaid: boolean) => endPayment(world, id, isPaid),
    /** A reorganisation removes a settled payment, which is included again later. */
    dropPayment: (id: string) => dropPayment(world, id),
    /** Includes the job with the lowest account nonce, or another transaction with that nonce. */
    mine: (isReplaced: boolean) => mine(chain, isReplaced),
    /** Removes the newest included job, at most a few blocks deep. */
    reorganise: () => reorganise(chain),
    /**
     * Removes all transactions of the newest blocks at once. On the new fork the same bytes may
     * have another result: a swap that had failed may succeed, before a refund that had paid.
     */
    reorganiseDeeply: () => reorganiseDeeply(chain),
    /** Blocks without a transaction of ours. */
    pass(blocks: bigint): void {
      chain.block += blocks
    },
  }
}

type NewOrder = Omit<Order, 'paymentId' | 'settlementTx'>

function buy({ db, chain, riders }: World, order: NewOrder): Order {
  const transaction = newHash(chain)
  const full: Order = { ...order, paymentId: `pay_${++chain.serial}`, settlementTx: transaction }
  write(db, () => {
    drizzle(db.sqlite).insert(payments).values(paymentRow(full)).run()
    riders.insert({ order: full, quota: undefined }, { id: full.paymentId, transaction })
  })
  chain.paid.set(full.paymentId, { order: full, transaction, isPaid: false, wasPaid: false })
  return full
}

async function endPayment({ ledger, chain }: World, id: string, isPaid: boolean): Promise<void> {
  const { payments, settling } = ledger
  const payment = chain.paid.get(id)
  if (payment === undefined || (await payments.findById(id))?.state !== 'broadcast') return
  const { transaction, order } = payment
  const blockNumber = ++chain.block
  if (isPaid) {
    payment.isPaid = true
    payment.wasPaid = true
    chain.state.deskAtomic += order.totalAtomic
    const log = transferLog(order.payer, deskAddress, asset, order.totalAtomic)
    chain.receipts.set(transaction, receiptOf(chain, transaction, true, [log]))
    const logIndex = chain.serial++
    await settling.confirm(id, { transaction, logIndex, blockNumber }, 1)
  } else if (!payment.wasPaid) {
    await settling.expire(id, false)
  }
  emit(chain.listeners.payment, id)
}

async function dropPayment({ ledger, chain }: World, id: string): Promise<void> {
  const { state, paid, receipts, listeners } = chain
  const payment = paid.get(id)
  if (payment === undefined) return
  if ((await ledger.payments.findById(id))?.state !== 'confirmed') return
  if (state.deskAtomic < payment.order.totalAtomic) return
  payment.isPaid = false
  state.deskAtomic -= payment.order.totalAtomic
  receipts.delete(payment.transaction)
  await ledger.settling.reopen(network.id, payment.transaction)
  emit(listeners.payment, id)
}

/** Whether there was a job to include. */
function mine(chain: Chain, isReplaced: boolean): boolean {
  const next = [...chain.jobs.values()]
    .filter((each) => each.state === 'broadcast')
    .sort((left, right) => left.nonce - right.nonce)[0]
  if (next === undefined) return false
  chain.block++
  if (!isReplaced) execute(chain, next)
  else {
    next.state = 'replaced'
    emit(chain.listeners.job, next.job.id)
  }
  return true
}

function reorganise(chain: Chain): void {
  const jobs = [...chain.jobs.values()]
  const newest = jobs
    .filter((each) => each.blockNumber !== undefined && each.blockNumber > chain.block - 4n)
    .sort((left, right) => right.nonce - left.nonce)[0]
  if (newest === undefined) return
  if (jobs.some((each) => each.nonce > newest.nonce && each.receipt)) return
  takeBack(chain, newest)
}

function reorganiseDeeply(chain: Chain): void {
  const since = chain.block - 8n
  const gone = [...chain.jobs.values()]
    .filter(({ blockNumber, receipt }) => receipt && blockNumber && blockNumber > since)
    .sort((left, right) => right.nonce - left.nonce)
  for (const each of gone) {
    // Only a job above every nonce that stays.
    const jobs = [...chain.jobs.values()]
    const isTop = !jobs.some((other) => other.nonce > each.nonce && other.receipt)
    if (isTop) takeBack(chain, each)
  }
}
