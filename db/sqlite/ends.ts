import type { IncludedPayment, Inclusion, SettlingCommits } from '../Ledger'
import type { Payment } from '../Payment'
import type { Parts } from './parts'
import { write } from './write'

type Ends = Pick<SettlingCommits, 'record' | 'giveUp'>

/** What ends an account nonce. */
export function createEnds(parts: Parts): Ends {
  const { db, group, statements } = parts
  return {
    record(inclusion, members, options) {
      // After a power loss the chain restores this, except that a delivery was started.
      const add = members.some((each) => each.startsDelivery) ? group.add : group.addSoon
      return add(() => {
        end(parts, inclusion)
        const confirmed = members.length > 0 ? pay(parts, inclusion, members) : []
        if (options?.isCostly && !confirmed[0]) {
          const { included, at, spentWei } = inclusion
          statements.gas.addWasted(included.network, included.product, at, spentWei)
        }
        return confirmed
      })
    },
    async giveUp(input) {
      write(db, () => giveUp(parts, input))
    },
  }
}

/** Ends everything at the nonce, and the job of the transaction. */
function end(
  { statements: { payments, transactions, jobs, gas }, changes, outbox }: Parts,
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
  transactions.includeTransaction(included.hash, state, blockNumber, spentWei)
  for (const hash of hashes) {
    if (hash !== included.hash) transactions.replaceTransaction(hash)
  }
  if (job !== undefined) {
    const ended = success ? 'confirmed' : 'failed'
    const how = { state: ended, transactionHash: included.hash, blockNumber, receipt } as const
    if (jobs.end(job, how, at)) changes.job(job)
  }
  const { network, product } = included
  const beforeWei = gas.addGas(network, product, at, spentWei)
  outbox.spent({ network, product, at, beforeWei, afterWei: beforeWei + spentWei })
}

/**
 * The confirmed payments; undefined for those that the receipt does not pay, which are reverted.
 */
function pay(
  { statements: { payments }, changes, outbox }: Parts,
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
      const started = startsDelivery && payments.confirmAndBegin(id, assignment, at)
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

function giveUp(
  { statements: { payments, transactions, jobs }, changes }: Parts,
  { hashes, payments: ids, job, at }: Parameters<SettlingCommits['giveUp']>[0],
): void {
  for (const hash of hashes) transactions.replaceTransaction(hash)
  for (const id of ids) if (payments.revert(id, hashes)) changes.payment(id)
  if (job === undefined) return
  const transactionHash = hashes.at(-1) ?? '0x'
  const how = { state: 'replaced', transactionHash, blockNumber: null, receipt: null } as const
  if (jobs.end(job, how, at)) changes.job(job)
}
