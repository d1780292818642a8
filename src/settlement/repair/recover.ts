import type { Payment } from '../../../db/Payment'
import type { Included, Unfinished } from '../../../db/payment-reads'
import { findOrSend } from '../send/broadcast'
import { resumeSent, track } from '../send/lifecycle'
import * as Resolve from '../send/resolve'
import { cancelNonce, resumeSlot as drive, recordUnowned } from '../send/transaction'
import { isOthers, isPaymentOfAnother, keeps } from '../state/ownership'
import type { ChainState, Context, Relayer } from '../state/state'
import * as Reorg from './reorg'

/** Gaps are filled with this many nonces at a time. */
const gapMax = 16
/**
 * Longest pause between two checks of a payment that has expired and whose end no node shows, ms.
 */
const checksEveryMs = 600_000

/** When these payments were last checked (unix ms), by id. */
export type Checked = Map<string, number>

/**
 * Resumes everything that is unfinished in the database and not running: after a start, and after a
 * fault. Safe to repeat. With `checked`, skips a reverted payment whose credential can still
 * return, because checking it costs calls.
 */
export async function recover(context: Context, checked?: Checked): Promise<void> {
  const { ledger, progress, now } = context
  const seconds = BigInt(Math.floor(now() / 1000))
  await resumeSlots(context)
  const work: Promise<unknown>[] = []
  const running = new Set(progress.running.keys())
  const unfinished = await ledger.payments.unfinished()
  if (checked) dropStale(checked, unfinished)
  for (const payment of unfinished) {
    const chain = context.chains.get(payment.transfer.network)
    if (!chain || !keeps(context, chain) || running.has(payment.id)) continue
    if (progress.running.has(payment.id) || (await isPaymentOfAnother(context, payment))) continue
    if (checked && payment.state === 'reverted') {
      const isOver = payment.transfer.validBefore < seconds
      if (!isOver || !isDue(checked, payment, now())) continue
    }
    const member = { payment }
    const reason = 'invalid_exact_evm_transaction_failed'
    work.push(track(context, member, () => Resolve.decide(context, member, reason)))
  }
  await Promise.all(work)
}

/** Resumes what was signed and is not in progress; of one relayer, or of all. */
export async function resumeSlots(context: Context, only?: Relayer): Promise<void> {
  const unowned: Promise<void>[] = []
  // What was running before the read may have ended since, so it is not resumed.
  const driven = new Map(
    [...context.chains.values()].flatMap(({ relayers }) =>
      relayers.map((each) => [each, new Set(each.slots.keys())] as const),
    ),
  )
  for (const rows of await unfinishedSlots(context)) {
    const [first] = rows
    const chain = first && context.chains.get(first.transaction.network)
    if (!first || !chain) continue
    const relayer = relayerOf(chain, first.transaction.relayer)
    if (only && relayer !== only) continue
    // Another process holds the account and drives them. During a takeover, `only` is the account
    // that is taken.
    if (relayer && !relayer.isHeld && !only) continue
    // What was sent from an account that is no longer configured is recorded by the network's keeper.
    const { network, relayer: address } = first.transaction
    if (!relayer && (!keeps(context, chain) || isOthers(context, network, address))) continue
    // Another key's transactions can be sent and polled, but not replaced; its nonces are not ours.
    if (!relayer) unowned.push(watchUnowned(context, chain, rows))
    else if (!driven.get(relayer)?.has(first.transaction.nonce)) {
      await resumeSlot(context, chain, relayer, rows)
    }
  }
  await Promise.all(unowned)
}

/**
 * A payment whose receipt no node shows stays open for a day. Pauses between checks grow with its
 * age, because each check calls every node.
 */
function isDue(checked: Checked, { id, transfer }: Payment, now: number): boolean {
  const overMs = now - Number(transfer.validBefore) * 1000
  const last = checked.get(id)
  if (last !== undefined && now - last < Math.min(checksEveryMs, overMs / 8)) return false
  checked.set(id, now)
  return true
}

function dropStale(checked: Checked, unfinished: readonly Payment[]): void {
  if (checked.size === 0) return
  const ids = new Set(unfinished.map(({ id }) => id))
  for (const id of checked.keys()) if (!ids.has(id)) checked.delete(id)
}

/** Raises the relayers above every nonce in the database. */
export async function raiseFloors({
  ledger,
  chains,
}: Pick<Context, 'ledger' | 'chains'>): Promise<void> {
  for (const { transaction } of await ledger.transactions.unfinished()) {
    const { network, relayer: address, nonce } = transaction
    const chain = chains.get(network)
    const relayer = chain && relayerOf(chain, address)
    if (relayer) relayer.floor = Math.max(relayer.floor, nonce + 1)
  }
}

function relayerOf({ relayers }: ChainState, address: string): Relayer | undefined {
  return relayers.find((relayer) => relayer.address === address)
}

async function resumeSlot(
  context: Context,
  chain: ChainState,
  relayer: Relayer,
  rows: readonly Unfinished[],
): Promise<void> {
  const [first] = rows
  if (!first) return
  if (first.job !== undefined) return resumeJob(context, chain, relayer, first.job)
  const transactions = rows.map(({ transaction }) => transaction)
  const hashes = transactions.map(({ hash }) => hash)
  const stored = await context.ledger.transactions.paymentsOf(hashes)
  const members = stored.map((payment) => ({ payment }))
  if (!resumeSent(context, chain, relayer, { transactions, members })) return
  const { nonce } = first.transaction
  const payments = members.length
  context.log('transaction-recovered', { network: chain.network.id, nonce, payments })
}

/**
 * Includes every transaction that was ever signed for the job. After a reorganisation one that was
 * abandoned for its sibling may be included, and then the job has run.
 */
async function resumeJob(
  context: Context,
  chain: ChainState,
  relayer: Relayer,
  id: string,
): Promise<void> {
  const { jobs, settling } = context.ledger
  const transactions = [...(await settling.resendJob(id))]
  const job = await jobs.find(id)
  if (!job || transactions.length === 0) throw new Error(`job ${id} has no transaction`)
  if (!drive(context, chain, relayer, { transactions, job })) return
  context.log('job-recovered', { job: id, network: chain.network.id, nonce: job.nonce })
}

/**
 * Closes a nonce gap after a chain lost blocks. What is recorded as included in the gap is sent again.
 * Then, without open transactions, continues at the chain's count. Otherwise uses up the missing
 * nonces, because nothing above them could be included.
 */
export async function closeGap(
  context: Context,
  chain: ChainState,
  relayer: Relayer,
): Promise<void> {
  const { network } = chain
  if (!relayer.lag?.isSure) return
  const { count, expected, from } = relayer.lag
  relayer.lag = undefined
  context.log('nonce-gap', { network: network.id, relayer: relayer.address, count, expected })
  const rows = await context.ledger.transactions.includedAt(network.id, relayer.address, {
    from: count,
    to: expected,
  })
  // No reorganisation removed what is deeper: the node is wrong, and may have pruned its receipt.
  const lost = rows.filter(({ blockNumber }) => BigInt(blockNumber) >= from)
  await reopenLost(context, chain, relayer, lost)
  await relayer.turn(async () => {
    if (relayer.slots.size === 0) {
      if (relayer.next === expected) relayer.next = count
      return
    }
    for (let nonce = count; nonce < Math.min(expected, count + gapMax); nonce++) {
      if (!relayer.slots.has(nonce)) await cancelNonce(context, chain, relayer, nonce)
    }
  })
}

/**
 * The chain's count says that a reorganisation removed these, although a check of their blocks did not:
 * its node may lag behind. Another transaction at their nonce would leave payments confirmed that the
 * chain does not have.
 */
async function reopenLost(
  context: Context,
  chain: ChainState,
  relayer: Relayer,
  rows: readonly Included[],
): Promise<void> {
  for (const row of rows) await Reorg.reopen(context, chain, row)
  if (rows.length > 0) await resumeSlots(context, relayer)
}

/** Sends and polls transactions of a key that is no longer configured. */
async function watchUnowned(
  context: Context,
  chain: ChainState,
  rows: readonly Unfinished[],
): Promise<void> {
  for (const { transaction, job: id } of rows) {
    const { hash } = transaction
    try {
      const receipt = await findOrSend(chain, transaction)
      if (!receipt) continue
      const job = id === undefined ? undefined : await context.ledger.jobs.find(id)
      const slot = { transactions: rows.map((each) => each.transaction), job }
      await recordUnowned(context, slot, transaction, receipt)
      return
    } catch (error) {
      context.log('settlement-undecided', { network: chain.network.id, hash, error })
    }
  }
}

/** Unfinished transactions by network, relayer and nonce, lower nonces first. */
async function unfinishedSlots({ ledger }: Context): Promise<Unfinished[][]> {
  const rows = await ledger.transactions.unfinished()
  const slots = Map.groupBy(rows, ({ transaction: { network, relayer, nonce }, job }) => {
    // After a chain lost blocks, a job may compete with something else for its nonce.
    return `${network}/${relayer}/${nonce}/${job ?? ''}`
  })
  return [...slots.values()]
}

/** Ends payments that the chain proves to be over, though their transaction is still open. */
export async function expire(context: Context): Promise<void> {
  const seconds = BigInt(Math.floor(context.now() / 1000))
  for (const payment of await context.ledger.payments.unfinished()) {
    const { network, validBefore } = payment.transfer
    const chain = context.chains.get(network)
    if (validBefore >= seconds || !chain || !keeps(context, chain)) continue
    await Resolve.endIfOver(context, payment)
  }
}
