import * as Crypto from '../../src/protocol/Crypto'
import type { Reservation } from '../Channel'
import type {
  ChangeListener,
  DeliveryCommits,
  IncludedPayment,
  Inclusion,
  Launch,
  NewPayment,
  SettlingCommits,
} from '../Ledger'
import type { Payment } from '../Payment'
import * as Refund from '../Refund'
import { paymentOf } from '../rows'
import type { PaymentRow } from '../schema'
import type { createAuthorizationStatements } from './authorizations'
import type { createEntitlements } from './entitlements'
import type { createGrants } from './grants'
import type { Db } from './open'
import type { createOrders } from './orders'
import type { createSettlementStatements } from './payments'
import type { createRefunds } from './refunds'
import type { Outbox } from './webhooks'
import { type Group, isBarred, isDuplicate, RefusedError } from './write'

/** The dependencies of the commits of settlement. */
export type Parts = {
  db: Db
  group: Group
  statements: ReturnType<typeof createSettlementStatements> & {
    authorizations: ReturnType<typeof createAuthorizationStatements>
  }
  changes: ChangeListener
  riders: Riders
  outbox: Outbox
  /** Payments whose delivery is running in this process. */
  delivering: Set<string>
}

/**
 * Rows of products inside a commit of settlement. Each function is called inside its transaction,
 * and throws RefusedError to roll it back.
 */
export type Riders = {
  orders: ReturnType<typeof createOrders>['riders']
  grants: ReturnType<typeof createGrants>['riders']
  entitlements: ReturnType<typeof createEntitlements>['riders']
  refunds: ReturnType<typeof createRefunds>['riders']
  /** Reserves a voucher where that is possible. */
  reserve: (reservation: Reservation) => boolean
}

export function createSettling(parts: Parts): SettlingCommits {
  const { group, statements, changes, riders, outbox } = parts
  const { payments, transactions, jobs, gas } = statements
  /** Changes the state of one payment, and reports a change. */
  const change = async (id: string, make: () => boolean) => {
    if (await group.run(make)) changes.payment(id)
  }
  return {
    async launch(...inputs) {
      const progress = { id: '' }
      try {
        const all = () => inputs.flatMap((input) => store(parts, input, progress))
        return { kind: 'stored', payments: await group.run(all) }
      } catch (error) {
        if (error instanceof RefusedError) {
          return { kind: 'refused', ids: [progress.id], reason: error.reason }
        }
        if (isBarred(error)) {
          return { kind: 'refused', ids: [progress.id], reason: 'money-authorized' }
        }
        const known = isDuplicate(error) ? findKnown(parts, inputs) : new Map<string, Payment>()
        if (known.size === 0) throw error
        return { kind: 'known', payments: known }
      }
    },
    async launchJob({ transaction, job, rider }) {
      try {
        await group.run(() => {
          transactions.insert(transaction, [])
          jobs.insert(job)
          if (rider?.kind === 'order') riders.orders.ride(rider, transaction.hash)
          if (rider?.kind === 'grant') riders.grants.ride(rider, transaction.hash)
          if (rider?.kind === 'repay') riders.refunds.ride(rider)
          if (rider?.kind === 'reserve' && !riders.reserve(rider))
            throw new RefusedError('channel-changed')
        })
        return undefined
      } catch (error) {
        if (rider?.kind === 'grant') riders.grants.undo()
        if (error instanceof RefusedError) return error.reason
        throw error
      }
    },
    async storeExternal(input) {
      try {
        await group.run(() => void insert(parts, input))
        changes.payment(input.row.id)
        return 'stored'
      } catch (error) {
        if (error instanceof RefusedError) return { refused: error.reason }
        if (isBarred(error)) return { refused: 'money-authorized' }
        if (isDuplicate(error)) return 'known'
        throw error
      }
    },
    async replace({ transaction, hashes, payments: ids, job }) {
      await group.run(() => {
        transactions.insert(transaction, ids)
        if (job !== undefined) jobs.renew(job, transaction.hash)
        for (const id of ids) payments.renew(id, transaction.hash, hashes)
      })
      if (job !== undefined) changes.job(job)
    },
    async confirm(id, assignment, at) {
      await change(id, () => {
        const confirmed = payments.confirm(id, assignment, at)
        if (confirmed) outbox.confirmed(confirmed, at)
        return confirmed !== undefined
      })
    },
    async expire(id, isUsed) {
      await change(id, () => payments.expire({ id, used: Number(isUsed) }))
    },
    async revert(id, hashes) {
      await change(id, () => payments.revert(id, hashes))
    },
    async reopen(network, hash) {
      const paid = payments.paidBy(network, hash)
      const job = await group.run(() => {
        transactions.reopen(network, hash)
        return jobs.reopen(hash)
      })
      if (job !== undefined) changes.job(job)
      for (const id of paid) changes.payment(id)
      return { payments: paid, job }
    },
    async resendJob(id) {
      return group.run(() => {
        jobs.resend(id)
        return jobs.transactionsOf(id)
      })
    },
    record(inclusion, members, options) {
      // After a power loss the chain restores this, except that a delivery was started.
      const add = members.some((each) => each.startsDelivery) ? group.add : group.addSoon
      return add(() => {
        end(parts, inclusion)
        const confirmed = members.length > 0 ? pay(parts, inclusion, members) : []
        if (options?.isCostly && !confirmed[0]) {
          const { included, at, spentWei } = inclusion
          gas.addWasted(included.network, included.product, at, spentWei)
        }
        return confirmed
      })
    },
    async giveUp({ hashes, payments: ids, job, at }) {
      await group.run(() => {
        for (const hash of hashes) transactions.replace(hash)
        for (const id of ids) if (payments.revert(id, hashes)) changes.payment(id)
        if (job === undefined) return
        const last = { hash: hashes.at(-1) ?? '0x', block: null, receipt: null } as const
        if (jobs.end({ id: job, state: 'replaced', ...last, at })) changes.job(job)
      })
    },
  }
}

/** `progress` reports which payment is being inserted. */
function store(
  parts: Parts,
  { transaction, fresh, again }: Launch,
  progress: { id: string },
): Payment[] {
  const { statements, changes } = parts
  const resent = again.map((payment): Payment => {
    if (!statements.payments.rebroadcast({ id: payment.id, hash: transaction.hash })) {
      throw new Error(`payment ${payment.id} is not to be sent again`)
    }
    changes.payment(payment.id)
    return { ...payment, state: 'broadcast', transaction: transaction.hash }
  })
  const inserted = fresh.map((each) => {
    progress.id = each.row.id
    return insert(parts, each)
  })
  const payments = [...resent, ...inserted]
  statements.transactions.insert(
    transaction,
    payments.map(({ id }) => id),
  )
  return payments
}

/**
 * A charge of a channel: a payment that is confirmed and being delivered at its insert. Its payer may
 * have used its nonce for other money, so as to get a stream that cannot be charged.
 */
export function insertCharged(parts: Parts, payment: NewPayment): Payment {
  let stored: Payment
  try {
    stored = insert(parts, payment)
  } catch (error) {
    if (!isDuplicate(error) && !isBarred(error)) throw error
    const { row, rows } = payment
    const nonce = Crypto.sha256(row.id)
    stored = insert(parts, { row: { ...row, nonce: `0x${nonce}` }, rows })
  }
  parts.delivering.add(stored.id)
  parts.changes.payment(stored.id)
  return stored
}

/** The payment with the rows of its product. */
function insert({ statements, riders, outbox }: Parts, { row, rows }: NewPayment): Payment {
  const stored = rows && 'settles' in rows ? settledBy(statements, row) : row
  statements.payments.insert(stored)
  if (rows && 'order' in rows)
    riders.orders.insert(rows, { id: row.id, transaction: row.transactionHash })
  if (rows && 'entitles' in rows) riders.entitlements.insert(rows.entitles, row)
  const payment = paymentOf(stored)
  // With an external settlement the first row is confirmed already.
  if (payment.confirmedAt !== undefined) outbox.confirmed(payment, payment.confirmedAt)
  return payment
}

/** The payment of an authorization. Its buyer may have the answer already. */
function settledBy({ authorizations }: Parts['statements'], row: PaymentRow): PaymentRow {
  const authorization = authorizations.send(row.id)
  if (authorization === undefined) throw new RefusedError('money-authorized')
  const { delivered } = authorization
  if (delivered === undefined) return row
  const { createdAt: deliveredAt } = row
  return { ...row, ...delivered, delivery: 'delivered', attempts: 1, answered: true, deliveredAt }
}

/** New payments whose money is stored already. */
function findKnown({ statements }: Parts, inputs: readonly Launch[]): Map<string, Payment> {
  const known = new Map<string, Payment>()
  for (const { row } of inputs.flatMap(({ fresh }) => fresh)) {
    const payment = statements.payments.find(row)
    if (payment) known.set(row.id, payment)
  }
  return known
}

/** Ends everything at the nonce, and the job of the transaction. */
function end(
  { statements: { payments, transactions, jobs, gas }, changes, riders, outbox }: Parts,
  { included, success, blockNumber, hashes, job, receipt, at, spentWei }: Inclusion,
): void {
  for (const hash of transactions.displaceOthers(included)) {
    for (const id of payments.openOf(included.network, hash)) changes.payment(id)
    const displaced = jobs.reopen(hash)
    if (displaced !== undefined) {
      // Its bytes can never be included again, which its relayer finds out and ends it.
      jobs.resend(displaced)
      changes.job(displaced)
    }
  }
  const state = success ? 'mined' : 'failed'
  transactions.include(included.hash, state, blockNumber, spentWei)
  for (const hash of hashes) {
    if (hash !== included.hash) transactions.replace(hash)
  }
  if (job !== undefined) {
    const ended = { id: job, hash: included.hash, block: Number(blockNumber), receipt, at }
    if (jobs.end({ ...ended, state: success ? 'confirmed' : 'failed' })) {
      changes.job(job)
      const repaid = success ? Refund.paymentOf(job) : undefined
      if (repaid !== undefined) riders.refunds.paid(repaid, included.hash, at)
    }
  }
  const { network, product } = included
  const beforeWei = gas.add(network, product, at, spentWei)
  outbox.spent({ network, product, at, beforeWei, afterWei: beforeWei + spentWei })
}

/**
 * The confirmed payments; undefined for those that the receipt does not pay, which are reverted.
 */
function pay(
  { statements: { payments }, changes, outbox, delivering }: Parts,
  { included, success, blockNumber, hashes, at }: Inclusion,
  members: readonly IncludedPayment[],
): (Payment | undefined)[] {
  const { hash: transaction, network } = included
  const taken = payments.takenLogs(network, transaction)
  return members.map(({ id, logs, startsDelivery }) => {
    const logIndex = success ? logs.find((each) => !taken.has(each)) : undefined
    if (logIndex !== undefined) {
      // No log pays twice, even where its payment had ended before.
      taken.add(logIndex)
      const assignment = { transaction, logIndex, blockNumber }
      const started = startsDelivery && payments.confirm(id, assignment, at, true)
      if (started) delivering.add(id)
      const confirmed = started || payments.confirm(id, assignment, at)
      if (confirmed) {
        changes.payment(id)
        outbox.confirmed(confirmed, at)
        return confirmed
      }
    }
    if (payments.revert(id, hashes)) changes.payment(id)
    return undefined
  })
}

export function createDeliveries(parts: Parts): DeliveryCommits {
  const { group, statements, outbox, delivering } = parts
  const { payments } = statements
  return {
    begin: (id) =>
      group.add(() => {
        const begun = payments.beginDelivery({ id })
        if (begun) delivering.add(id)
        return begun
      }),
    // A delivered answer has been sent already, so its record need not wait for the disk.
    deliver: (id, { upstreamStatus: status, truncated }, at) =>
      group.addSoon(() => {
        delivering.delete(id)
        return payments.deliver({ id, status, truncated: Number(truncated), at })
      }),
    // The token must be on the disk before its buyer has it.
    fail: (id, { upstreamStatus: status = null, redeemTokenHash: hash, redeemUntil: until }, at) =>
      group.add(() => {
        delivering.delete(id)
        const failed = payments.failDelivery({ id, status, hash, until })
        if (failed) outbox.undelivered(failed, at)
        return failed !== undefined
      }),
    handOver: (id, at) => group.add(() => payments.handOver({ id, at })),
    async markAnswered(id) {
      await group.add(() => payments.markAnswered({ id }))
    },
  }
}
