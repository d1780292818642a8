import type { Hex } from 'viem'
import type * as Network from '../../src/protocol/Network'
import type { Money } from '../../src/protocol/Transfer'
import type { Assignment, DeliveryCommits } from '../Ledger'
import { type Payment, type State, transitions } from '../Payment'
import { toPayment } from '../rows'
import { payments } from '../schema'
import type { Values } from '../select'
import type { Db } from './open'
import { insertInto, statement } from './statement'

/** Statements on payments. Each change is a compare-and-swap on the state. Call them inside `write`. */
export function createPayments(db: Db) {
  return { ...readPayments(db), ...changePayments(db), ...changeDelivery(db) }
}

function readPayments(db: Db) {
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
  return {
    find({ network, asset, payer, nonce }: Money): Payment | undefined {
      const row = byMoney().get({ network, asset, payer, nonce: nonce.toLowerCase() })
      return row === null ? undefined : toPayment(row)
    },
    /** Indexes of the logs of a transaction that pay for payments. */
    takenLogs: (network: Network.Id, hash: Hex): Set<number> =>
      new Set(
        paidBy()
          .all({ network, hash })
          .map(({ logIndex }) => logIndex),
      ),
    /** Payments that a transaction confirmed. */
    paidBy: (network: Network.Id, hash: Hex): string[] =>
      paidBy()
        .all({ network, hash })
        .map(({ id }) => id),
    /** Payments that a transaction contained last and that the chain does not confirm. */
    openOf: (network: Network.Id, hash: Hex): string[] =>
      openOf()
        .all({ network, hash })
        .map(({ id }) => id),
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

function changePayments(db: Db) {
  const insert = insertInto(db, payments)
  const confirmed = `state = 'confirmed', transaction_hash = $hash, log_index = $index,
    block_number = $block, confirmed_at = $at, nonce_used = 0`
  const confirm = changing(db, confirmed, isBefore('confirmed'))
  const confirmAndBegin = changing(
    db,
    `${confirmed}, ${delivering}`,
    `${isBefore('confirmed')} AND delivery = 'none'`,
  )
  const assigned = (
    id: string,
    { transaction, logIndex, blockNumber }: Assignment,
    at: number,
  ) => ({
    id,
    hash: transaction.toLowerCase(),
    index: logIndex,
    block: Number(blockNumber),
    at,
  })
  // Only payments whose current transaction is one of these: a newer one may contain the payment by
  // now.
  const isMember = 'transaction_hash IN (SELECT value FROM json_each($hashes))'
  const revert = trying(db, "state = 'reverted'", `${isBefore('reverted')} AND ${isMember}`)
  const expire = trying(db, "state = 'expired', nonce_used = $used", isBefore('expired'))
  const renew = trying(db, 'transaction_hash = $hash', `state = 'broadcast' AND ${isMember}`)
  const rebroadcast = trying(
    db,
    "state = 'broadcast', transaction_hash = $hash",
    "state = 'reverted'",
  )
  return {
    insertPayment: insert,
    /** Undefined when the payment had ended before. Throws when the log pays for another payment. */
    confirm: (id: string, assignment: Assignment, at: number) =>
      confirm(assigned(id, assignment, at)),
    /** Like `confirm`, and starts the first delivery. */
    confirmAndBegin: (id: string, assignment: Assignment, at: number) =>
      confirmAndBegin(assigned(id, assignment, at)),
    revert: (id: string, hashes: readonly Hex[]) => revert({ id, hashes: JSON.stringify(hashes) }),
    /** `isUsed`: the chain has its nonce as used, by something else. */
    expire: (id: string, isUsed: boolean) => expire({ id, used: Number(isUsed) }),
    /** Moves the payment to another transaction at the nonce of these. */
    renew: (id: string, hash: Hex, hashes: readonly Hex[]) =>
      renew({ id, hash, hashes: JSON.stringify(hashes) }),
    /** Moves the payment to a new transaction. */
    rebroadcast: (id: string, hash: Hex) => rebroadcast({ id, hash }),
  }
}

/** The states from which the table of transitions permits this one. */
function isBefore(target: State): string {
  const states = Object.keys(transitions) as State[]
  const sources = states.filter((state) => transitions[state].includes(target))
  return `state IN (${sources.map((state) => `'${state}'`).join(', ')})`
}

type Undelivered = Parameters<DeliveryCommits['fail']>[1]

function changeDelivery(db: Db) {
  const answered = trying(db, 'answered = 1', 'true')
  const begin = changing(
    db,
    delivering,
    "state = 'confirmed' AND delivery IN ('none', 'delivering')",
  )
  const deliver = trying(
    db,
    `delivery = 'delivered', upstream_status = $status, truncated = $truncated,
     delivered_at = coalesce(delivered_at, $at)`,
    // A stream is recorded at its first byte and corrected when it is cut.
    "delivery IN ('delivering', 'delivered')",
  )
  const handOver = trying(
    db,
    "delivery = 'delivered', attempts = attempts + 1, delivered_at = $at",
    "state = 'confirmed' AND delivery = 'none'",
  )
  const fail = changing(
    db,
    `delivery = 'none', upstream_status = $status, redeem_token_hash = $hash,
     redeem_until = $until`,
    "delivery = 'delivering'",
  )
  return {
    markAnswered: (id: string) => answered({ id }),
    /** The payment after the change; undefined when it is not to be delivered. */
    beginDelivery: (id: string) => begin({ id }),
    deliver: (id: string, status: number, truncated: boolean, at: number) =>
      deliver({ id, status, truncated: Number(truncated), at }),
    handOver: (id: string, at: number) => handOver({ id, at }),
    /** The payment after the change; undefined when no delivery was started. */
    failDelivery: (id: string, { upstreamStatus, redeemTokenHash, redeemUntil }: Undelivered) =>
      fail({
        id,
        status: upstreamStatus ?? null,
        hash: redeemTokenHash,
        until: redeemUntil,
      }),
  }
}
