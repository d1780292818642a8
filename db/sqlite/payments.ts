import type { Hex } from 'viem'
import type * as Network from '../../src/protocol/Network'
import { dayMs, dayOf } from '../../src/protocol/Time'
import type { Money } from '../../src/protocol/Transfer'
import type { Assignment } from '../Ledger'
import { type Payment, type State, transitions } from '../Payment'
import * as Refund from '../Refund'
import { toPayment } from '../rows'
import {
  type GasProduct,
  gasSpent,
  type JobRow,
  jobs,
  jobTransactions,
  payments,
  type TransactionRow,
  transactionMembers,
  transactions,
} from '../schema'
import { decoderOf, type Values } from '../select'
import type { Db } from './open'
import { insertInto, statement } from './statement'
import { onRollback } from './write'

/** Prepared statements of settlement. Call those that change something inside `write`. */
export function createSettlementStatements(db: Db) {
  return {
    payments: createPayments(db),
    transactions: createTransactions(db),
    jobs: createJobs(db),
    gas: createGas(db),
  }
}

/** Statements on payments. Each change is a compare-and-swap on the state. */
export function createPayments(db: Db) {
  const byMoney = statement(
    db,
    `SELECT * FROM payments
     WHERE network = $network AND asset = $asset AND payer = $payer AND nonce = $nonce`,
  )
  const paidBy = statement<{ id: string; logIndex: number }>(
    db,
    `SELECT id, log_index AS logIndex FROM payments
     WHERE network = $network AND transaction_hash = $hash AND log_index IS NOT NULL`,
  )
  // The first condition is that of the partial index, which has few rows.
  const openOf = statement<{ id: string }>(
    db,
    `SELECT id FROM payments
     WHERE state IN ('broadcast', 'reverted') AND state = 'broadcast'
       AND network = $network AND transaction_hash = $hash`,
  )
  const confirmed = `state = 'confirmed', transaction_hash = $hash, log_index = $index,
    block_number = $block, confirmed_at = $at, nonce_used = 0`
  const confirm = changing(db, confirmed, isBefore('confirmed'))
  const confirmAndBegin = changing(
    db,
    `${confirmed}, ${delivering}`,
    `${isBefore('confirmed')} AND delivery = 'none'`,
  )
  // Only payments whose current transaction is one of these: a newer one may contain the payment by
  // now.
  const isMember = 'transaction_hash IN (SELECT value FROM json_each($hashes))'
  const revert = trying(db, "state = 'reverted'", `${isBefore('reverted')} AND ${isMember}`)
  const renew = trying(db, 'transaction_hash = $hash', `state = 'broadcast' AND ${isMember}`)
  return {
    ...createDeliveryStatements(db),
    insert: insertInto(db, payments),
    find({ network, asset, payer, nonce }: Money): Payment | undefined {
      const row = byMoney().get({ network, asset, payer, nonce: nonce.toLowerCase() })
      return row === null ? undefined : toPayment(row)
    },
    /** Indexes of the logs of a transaction that pay for payments. */
    takenLogs(network: Network.Id, hash: Hex): Set<number> {
      const paid = paidBy().all({ network, hash })
      return new Set(paid.map(({ logIndex }) => logIndex))
    },
    /** Payments that a transaction confirmed. */
    paidBy: (network: Network.Id, hash: Hex): string[] =>
      Array.from(paidBy().all({ network, hash }), ({ id }) => id),
    /** Payments that a transaction contained last and that the chain does not confirm. */
    openOf: (network: Network.Id, hash: Hex): string[] =>
      Array.from(openOf().all({ network, hash }), ({ id }) => id),
    /**
     * Undefined when the payment had ended before. `begins`: starts the first delivery, and is undefined
     * when that was started before. Throws when the log pays for another payment.
     */
    confirm(id: string, assignment: Assignment, at: number, begins = false): Payment | undefined {
      const { transaction, logIndex: index, blockNumber } = assignment
      const values = { id, hash: transaction.toLowerCase(), index, block: Number(blockNumber), at }
      return begins ? confirmAndBegin(values) : confirm(values)
    },
    revert: (id: string, hashes: readonly Hex[]) => revert({ id, hashes: JSON.stringify(hashes) }),
    /** `used`: the chain has its nonce as used, by something else. */
    expire: trying(db, "state = 'expired', nonce_used = $used", isBefore('expired')),
    /** Moves the payment to another transaction at the nonce of these. */
    renew: (id: string, hash: Hex, hashes: readonly Hex[]) =>
      renew({ id, hash, hashes: JSON.stringify(hashes) }),
    /** Moves the payment to a new transaction. */
    rebroadcast: trying(db, "state = 'broadcast', transaction_hash = $hash", "state = 'reverted'"),
  }
}

/** A change of one payment that is made only under the condition. Returns the payment after it. */
function changing(db: Db, set: string, condition: string) {
  const change = statement(
    db,
    `UPDATE payments SET ${set} WHERE id = $id AND ${condition} RETURNING *`,
  )
  return (values: Values): Payment | undefined => {
    const row = change().get(values)
    return row === null ? undefined : toPayment(row)
  }
}

/** The same for a change whose payment nobody needs: to read all columns takes longer than some changes. */
function trying(db: Db, set: string, condition: string) {
  const change = statement(
    db,
    `UPDATE payments SET ${set} WHERE id = $id AND ${condition} RETURNING id`,
  )
  return (values: Values) => change().get(values) !== null
}

const delivering = "delivery = 'delivering', attempts = attempts + 1"

/** The states from which the table of transitions permits this one. */
function isBefore(target: State): string {
  const states = Object.keys(transitions) as State[]
  const sources = states.filter((state) => transitions[state].includes(target))
  return `state IN (${sources.map((state) => `'${state}'`).join(', ')})`
}

function createDeliveryStatements(db: Db) {
  return {
    markAnswered: trying(db, 'answered = 1', 'true'),
    beginDelivery: changing(
      db,
      delivering,
      `state = 'confirmed' AND delivery IN ('none', 'delivering')
       AND NOT EXISTS (SELECT 1 FROM refunds WHERE refunds.payment_id = payments.id)`,
    ),
    deliver: trying(
      db,
      `delivery = 'delivered', upstream_status = $status, truncated = $truncated,
       delivered_at = coalesce(delivered_at, $at)`,
      // A stream is recorded at its first byte and corrected when it is cut.
      "delivery IN ('delivering', 'delivered')",
    ),
    handOver: trying(
      db,
      "delivery = 'delivered', attempts = attempts + 1, delivered_at = $at",
      "state = 'confirmed' AND delivery = 'none'",
    ),
    failDelivery: changing(
      db,
      `delivery = 'none', upstream_status = $status, redeem_token_hash = $hash,
       redeem_until = $until`,
      "delivery = 'delivering'",
    ),
  }
}

/** Statements on transactions. */
function createTransactions(db: Db) {
  // Signing is deterministic: an abandoned transaction returns with the same hash.
  const insert = insertInto(
    db,
    transactions,
    `ON CONFLICT (hash) DO UPDATE SET state = excluded.state, first_sent_at = excluded.first_sent_at
     WHERE transactions.state = 'replaced'`,
  )
  const insertMember = insertInto(db, transactionMembers, 'ON CONFLICT DO NOTHING')
  const end = statement(
    db,
    `UPDATE transactions SET state = $state, block_number = $block, cost_wei = $cost
     WHERE hash = $hash AND state = 'sent'`,
  )
  const isIncluded = "state IN ('mined', 'failed')"
  const reopen = statement(
    db,
    `UPDATE transactions SET state = 'sent', block_number = NULL, cost_wei = NULL
     WHERE hash = $hash AND ${isIncluded}`,
  )
  const unconfirm = statement(
    db,
    `UPDATE payments
     SET state = 'broadcast', log_index = NULL, block_number = NULL, confirmed_at = NULL
     WHERE network = $network AND transaction_hash = $hash AND log_index IS NOT NULL
       AND state = 'confirmed'`,
  )
  const displace = statement<{ hash: Hex }>(
    db,
    `UPDATE transactions SET state = 'replaced', block_number = NULL, cost_wei = NULL
     WHERE network = $network AND relayer = $relayer AND nonce = $nonce AND ${isIncluded}
       AND hash <> $hash
     RETURNING hash`,
  )
  return {
    insert(row: TransactionRow, paymentIds: readonly string[]): void {
      insert({ ...row, costWei: null })
      for (const [position, paymentId] of paymentIds.entries())
        insertMember({ transactionHash: row.hash, position, paymentId })
    },
    /** `costWei`: what the transaction cost. */
    include: (hash: Hex, state: 'mined' | 'failed', block: bigint, costWei: bigint) =>
      end().run({ hash, state, block: Number(block), cost: String(costWei) }),
    replace: (hash: Hex) => end().run({ hash, state: 'replaced', block: null, cost: null }),
    /** A reorganisation removed the transaction: it and its payments are open again. */
    reopen(network: Network.Id, hash: Hex): void {
      reopen().run({ hash })
      unconfirm().run({ network, hash })
    },
    /**
     * The chain has this transaction at its nonce, so others at the nonce are displaced: what they
     * paid is open again. Returns their hashes.
     */
    displaceOthers({ network, relayer, nonce, hash }: TransactionRow): Hex[] {
      const displaced = displace().all({ network, relayer, nonce, hash })
      for (const each of displaced) unconfirm().run({ network, hash: each.hash })
      return displaced.map((row) => row.hash)
    },
  }
}

const decode = decoderOf(transactions)

/** Statements on jobs. Each change is a compare-and-swap on the state. */
function createJobs(db: Db) {
  const insert = insertInto(db, jobs)
  const link = insertInto(db, jobTransactions)
  const renew = statement(
    db,
    "UPDATE jobs SET transaction_hash = $hash WHERE id = $id AND state = 'broadcast'",
  )
  const end = statement(
    db,
    `UPDATE jobs
     SET state = $state, transaction_hash = $hash, block_number = $block, receipt = $receipt,
       ended_at = $at
     WHERE id = $id AND state = 'broadcast' RETURNING id`,
  )
  const reopen = statement<{ id: string }>(
    db,
    `UPDATE jobs SET state = 'broadcast', block_number = NULL, receipt = NULL, ended_at = NULL
     WHERE transaction_hash = $hash AND state IN ('confirmed', 'failed') RETURNING id`,
  )
  const unpay = statement(
    db,
    'UPDATE refunds SET paid_hash = NULL WHERE payment_id = $id AND paid_hash = $hash',
  )
  const isOfJob = 'hash IN (SELECT transaction_hash FROM job_transactions WHERE job_id = $id)'
  const resend = statement(
    db,
    `UPDATE transactions SET state = 'sent', block_number = NULL
     WHERE ${isOfJob} AND state = 'replaced'`,
  )
  const carrying = statement(
    db,
    `SELECT * FROM transactions WHERE ${isOfJob} ORDER BY created_at, rowid`,
  )
  return {
    insert(row: JobRow): void {
      insert(row)
      link({ jobId: row.id, transactionHash: row.transactionHash })
    },
    /** Another transaction at its nonce carries the job. */
    renew(id: string, hash: Hex): void {
      link({ jobId: id, transactionHash: hash })
      renew().run({ id, hash })
    },
    /** `block` and `receipt`: those of the transaction that ended it. */
    end: (how: {
      id: string
      state: JobRow['state']
      hash: Hex
      block: number | null
      receipt: string | null
      at: number
    }): boolean => end().get(how) !== null,
    /**
     * Reopens the job of a transaction that a reorganisation removed. Returns the id of the job.
     */
    reopen(hash: Hex): string | undefined {
      const job = reopen().get({ hash })?.id
      const repaid = job === undefined ? undefined : Refund.paymentOf(job)
      if (repaid !== undefined) unpay().run({ id: repaid, hash })
      return job
    },
    /**
     * Marks replaced transactions of an open job as sent, because any may be included. This
     * covers those that were abandoned for a sibling that a reorganisation removed.
     */
    resend: (id: string): void => void resend().run({ id }),
    /** Every transaction of a job, oldest first. */
    transactionsOf: (id: string): TransactionRow[] => carrying().all({ id }).map(decode),
  }
}

type Spent = {
  wei: bigint
  /** The part that failed payments of payers with code cost. */
  wastedWei: bigint
}

const nothing: Spent = { wei: 0n, wastedWei: 0n }

/** The newest sums, because every 402 reads the budget. */
const kept = new WeakMap<Db, Known>()

type Known = Map<Network.Id, Partial<Record<GasProduct, { day: number; spent: Spent }>>>

/** Cost of transactions, by product and UTC day. Make changes inside `write`. */
export function createGas(db: Db) {
  const known: Known = kept.get(db) ?? new Map()
  if (!kept.has(db)) onRollback(db, () => known.clear())
  kept.set(db, known)
  const select = statement<{ wei: string; wasted: string }>(
    db,
    `SELECT wei, wasted_wei AS wasted FROM gas_spent
     WHERE network = $network AND product = $product AND day = $day`,
  )
  const put = insertInto(
    db,
    gasSpent,
    `ON CONFLICT (network, product, day)
     DO UPDATE SET wei = excluded.wei, wasted_wei = excluded.wasted_wei`,
  )

  function read(network: Network.Id, product: GasProduct, day: string): Spent {
    const row = select().get({ network, product, day })
    return row ? { wei: BigInt(row.wei), wastedWei: BigInt(row.wasted) } : nothing
  }

  function spentOn(network: Network.Id, product: GasProduct, at: number): Spent {
    const before = known.get(network)?.[product]
    if (before?.day === Math.floor(at / dayMs)) return before.spent
    const spent = read(network, product, dayOf(at))
    keep(network, product, at, spent)
    return spent
  }

  function keep(network: Network.Id, product: GasProduct, at: number, spent: Spent): void {
    const ofNetwork = known.get(network) ?? {}
    ofNetwork[product] = { day: Math.floor(at / dayMs), spent }
    known.set(network, ofNetwork)
  }

  function add(network: Network.Id, product: GasProduct, at: number, more: Spent): Spent {
    const day = dayOf(at)
    const before = spentOn(network, product, at)
    const spent = { wei: before.wei + more.wei, wastedWei: before.wastedWei + more.wastedWei }
    put({ network, product, day, ...spent })
    // Keeps the sum for the next payment, which waits for enough reads already.
    keep(network, product, at, spent)
    return before
  }

  return {
    spentOn: (network: Network.Id, product: GasProduct, at: number): bigint =>
      spentOn(network, product, at).wei,
    /** The part that failed payments of payers with code cost. */
    wastedOn: (network: Network.Id, product: GasProduct, at: number): bigint =>
      spentOn(network, product, at).wastedWei,
    /** Returns the sum of the day before. */
    add: (network: Network.Id, product: GasProduct, at: number, wei: bigint): bigint =>
      add(network, product, at, { wei, wastedWei: 0n }).wei,
    addWasted: (network: Network.Id, product: GasProduct, at: number, wei: bigint): void =>
      void add(network, product, at, { wei: 0n, wastedWei: wei }),
  }
}
