import type { Payment } from '../../db/Payment'
import type { TransactionRow } from '../../db/schema'
import { write } from '../../db/sqlite/write'
import type { Receipt } from '../chain/receipt'
import * as Confirm from './confirm'
import { type Context, unattended } from './context'
import * as Queue from './queue'
import { readReceipt } from './reads'
import { cancellation, feesNow, send, sign } from './relayer'
import * as Resolve from './resolve'
import type { ChainState, Relayer } from './state'

/** Gaps are filled this many nonces at a time. */
const gapMax = 16
/** Longest pause between two checks of a payment that is over and that no node explains. */
const checksEveryMs = 600_000

/** When payments that are over were last checked (unix ms), by id. */
export type Checked = Map<string, number>

/**
 * Takes up everything that the database has unfinished and that is not under way: after a start, and
 * after a fault. Safe to repeat. With `checked`, a reverted payment whose credential can still come
 * back is left alone, because asking the chain about it costs calls.
 */
export async function recover(context: Context, checked?: Checked): Promise<void> {
  const { ledger, progress, now } = context
  const seconds = BigInt(Math.floor(now() / 1000))
  const work: Promise<unknown>[] = []
  for (const rows of unfinishedSlots(context)) {
    const [first] = rows
    const chain = first && context.chains.get(first.network)
    if (!first || !chain) continue
    const relayer = relayerOf(chain, first.relayer)
    // Another key's transactions can be sent and watched, but not replaced; its nonces are not ours.
    if (!relayer) work.push(watchUnowned(context, chain, rows))
    else if (!relayer.slots.has(first.nonce)) takeUp(context, chain, relayer, rows)
  }
  const unfinished = ledger.payments.unfinishedPayments()
  if (checked) forget(checked, unfinished)
  for (const payment of unfinished) {
    if (!context.chains.has(payment.transfer.network) || progress.running.has(payment.id)) continue
    if (checked && payment.state === 'reverted') {
      const isOver = payment.transfer.validBefore < seconds
      if (!isOver || !isDue(checked, payment, now())) continue
    }
    const member = unattended(payment)
    const reason = 'invalid_exact_evm_transaction_failed'
    work.push(Resolve.track(context, member, () => Resolve.decide(context, member, reason)))
  }
  await Promise.all(work)
}

/**
 * A payment whose receipt no node shows stays open for a day. Pauses between checks grow with its
 * age, because each check asks every node.
 */
function isDue(checked: Checked, { id, transfer }: Payment, now: number): boolean {
  const overMs = now - Number(transfer.validBefore) * 1000
  const last = checked.get(id)
  if (last !== undefined && now - last < Math.min(checksEveryMs, overMs / 8)) return false
  checked.set(id, now)
  return true
}

function forget(checked: Checked, unfinished: readonly Payment[]): void {
  if (checked.size === 0) return
  const ids = new Set(unfinished.map(({ id }) => id))
  for (const id of checked.keys()) if (!ids.has(id)) checked.delete(id)
}

/** Sets the relayers above what the database knows. */
export function raiseFloors({ ledger, chains }: Pick<Context, 'ledger' | 'chains'>): void {
  for (const { network, relayer: address, nonce } of ledger.transactions.unfinishedTransactions()) {
    const chain = chains.get(network)
    const relayer = chain && relayerOf(chain, address)
    if (relayer) relayer.floor = Math.max(relayer.floor, nonce + 1)
  }
}

function relayerOf({ relayers }: ChainState, address: string): Relayer | undefined {
  return relayers.find((relayer) => relayer.address === address)
}

function takeUp(
  context: Context,
  chain: ChainState,
  relayer: Relayer,
  rows: readonly TransactionRow[],
): void {
  const [first] = rows
  if (!first) return
  const jobId = context.ledger.jobs.findByTransaction(first.hash)
  if (jobId !== undefined) {
    takeUpJob(context, chain, relayer, jobId)
    return
  }
  const members = paymentsOf(context, rows).map(unattended)
  context.log('transaction-recovered', {
    network: chain.network.id,
    nonce: first.nonce,
    payments: members.length,
  })
  const slot = { ...Confirm.slotOf(relayer, first, members), transactions: [...rows] }
  for (const [index, ending] of Confirm.launch(context, chain, slot).entries()) {
    const member = members[index]
    if (member) void Queue.follow(context, member, ending)
  }
}

/**
 * With every transaction that was ever signed for it: one that was given up for its sibling may be
 * the one that is included after a reorganisation, and then the job has run.
 */
function takeUpJob(context: Context, chain: ChainState, relayer: Relayer, id: string): void {
  const { jobs, db } = context.ledger
  const transactions = write(db, () => {
    jobs.resend(id)
    return jobs.transactionsOf(id)
  })
  const job = jobs.find(id)
  const newest = transactions.at(-1)
  if (!job || !newest) throw new Error(`job ${id} has no transaction`)
  context.log('job-recovered', { job: id, network: chain.network.id, nonce: job.nonce })
  Confirm.launch(context, chain, { ...Confirm.slotOf(relayer, newest, [], job), transactions })
}

/**
 * After a chain lost blocks: continues at its count when nothing is under way, and uses up the nonces
 * that it waits for when something is, which could never be included above them.
 */
export function closeGap(context: Context, chain: ChainState, relayer: Relayer): void {
  const { network } = chain
  if (!relayer.lag?.isSure) return
  const { count, expected } = relayer.lag
  relayer.lag = undefined
  context.log('nonce-gap', { network: network.id, relayer: relayer.address, count, expected })
  if (relayer.slots.size === 0) {
    if (relayer.next === expected) relayer.next = count
    return
  }
  const { ledger, now } = context
  for (let nonce = count; nonce < Math.min(expected, count + gapMax); nonce++) {
    if (relayer.slots.has(nonce)) continue
    const price = { nonce, ...feesNow(chain) }
    const row = sign({ now, network }, relayer, cancellation(relayer), price)
    write(ledger.db, () => ledger.transactions.insertTransaction(row, []))
    Confirm.launch(context, chain, Confirm.slotOf(relayer, row, []))
  }
}

/** Sends and watches transactions of a key that is no longer configured. */
async function watchUnowned(
  context: Context,
  chain: ChainState,
  rows: readonly TransactionRow[],
): Promise<void> {
  for (const row of rows) {
    const { hash, raw } = row
    try {
      const receipt = await readReceipt(chain, hash)
      if (!receipt) {
        await send(chain, raw, false)
        continue
      }
      write(context.ledger.db, () => endUnowned(context, rows, row, receipt))
      return
    } catch (error) {
      context.log('settlement-undecided', { network: chain.network.id, hash, error })
    }
  }
}

function endUnowned(
  context: Context,
  rows: readonly TransactionRow[],
  included: TransactionRow,
  receipt: Receipt,
): void {
  const { jobs, transactions } = context.ledger
  const id = jobs.findByTransaction(included.hash)
  const job = id === undefined ? undefined : jobs.find(id)
  if (job) {
    Confirm.endTransactions(context, { transactions: [...rows], job }, { receipt, included })
    return
  }
  const state = receipt.success ? 'mined' : 'failed'
  transactions.endTransaction(included.hash, state, receipt.blockNumber)
}

/** Unfinished transactions by network, relayer and nonce, lower nonces first. */
function unfinishedSlots({ ledger }: Context): TransactionRow[][] {
  const slots = new Map<string, TransactionRow[]>()
  for (const row of ledger.transactions.unfinishedTransactions()) {
    // After a chain lost its blocks, a job may compete for its nonce with something else.
    const job = ledger.jobs.findByTransaction(row.hash) ?? ''
    const key = `${row.network}/${row.relayer}/${row.nonce}/${job}`
    const rows = slots.get(key)
    if (rows) rows.push(row)
    else slots.set(key, [row])
  }
  return [...slots.values()]
}

function paymentsOf({ ledger }: Context, rows: readonly TransactionRow[]): Payment[] {
  const ids = new Set(rows.flatMap(({ hash }) => ledger.transactions.membersOf(hash)))
  return [...ids].flatMap((id) => ledger.payments.findById(id) ?? [])
}

/** Ends payments that the chain proves to be over, though their transaction is still under way. */
export async function expire(context: Context): Promise<void> {
  const seconds = BigInt(Math.floor(context.now() / 1000))
  for (const payment of context.ledger.payments.unfinishedPayments()) {
    const { network, validBefore } = payment.transfer
    if (validBefore >= seconds || !context.chains.has(network)) continue
    await Resolve.endIfOver(context, payment)
  }
}
