import type { TransactionRow } from '../../db/schema'
import { write } from '../../db/write'
import type { Receipt } from '../chain/receipt'
import { type ChainState, type Context, chainOf, type Relayer } from './context'
import * as Decide from './decide'
import type { Payment } from './Payment'
import * as Relayers from './relayer'
import { send } from './send'
import * as Work from './work'

/** Gaps are filled this many nonces at a time. */
const gapMax = 16
/** Longest pause between two checks of a payment that is over and that no node explains. */
const looksEveryMs = 600_000

/**
 * Takes up everything that the database has unfinished and nobody drives: after a start, and after a
 * fault. Safe to repeat. `patient`: a reverted payment whose credential can still come back is left
 * alone, because asking the chain about it costs calls.
 */
export async function recover(context: Context, patient: boolean): Promise<void> {
  const seconds = BigInt(Math.floor(context.now() / 1000))
  const looks: Promise<unknown>[] = []
  for (const rows of unfinishedSlots(context)) {
    const [first] = rows
    const chain = first && context.chains.get(first.network)
    if (!first || !chain) continue
    const relayer = relayerOf(chain, first.relayer)
    // Another key's transactions can be sent and watched, but not replaced; its nonces are not ours.
    if (!relayer) looks.push(watchForeign(context, chain, rows))
    else if (!relayer.slots.has(first.nonce)) takeUp(context, chain, relayer, rows)
  }
  const unfinished = context.store.unfinishedPayments()
  forgetLooks(context, unfinished)
  for (const payment of unfinished) {
    const chain = context.chains.get(payment.transfer.network)
    if (!chain || context.running.has(payment.id)) continue
    if (patient && payment.state === 'reverted') {
      if (payment.transfer.validBefore >= seconds || !isDue(context, payment)) continue
    }
    looks.push(
      Decide.run(context, payment, () =>
        Decide.decide(context, payment.id, 'invalid_exact_evm_transaction_failed'),
      ),
    )
  }
  await Promise.all(looks)
}

/**
 * A payment whose receipt no node shows stays open for a day. Pauses between checks grow with its
 * age, because each check asks every node.
 */
function isDue({ looked, now }: Context, { id, transfer }: Payment): boolean {
  const overMs = now() - Number(transfer.validBefore) * 1000
  const last = looked.get(id)
  if (last !== undefined && now() - last < Math.min(looksEveryMs, overMs / 8)) return false
  looked.set(id, now())
  return true
}

function forgetLooks({ looked }: Context, unfinished: readonly Payment[]): void {
  if (looked.size === 0) return
  const ids = new Set(unfinished.map(({ id }) => id))
  for (const id of looked.keys()) if (!ids.has(id)) looked.delete(id)
}

/**
 * Gives up what was signed and never sent: its buyer is gone with the process that signed it, and the
 * bytes are known to nobody. Before the relayers start, so that their nonces are free again; one below a
 * sent transaction is filled by `takeUp`.
 */
export function discardUnsent(context: Context): void {
  const { store, db } = context
  const slots = unfinishedSlots(context).toReversed()
  const isTail = new Map<string, boolean>()
  for (const rows of slots) {
    const [first] = rows
    if (!first) continue
    const relayer = `${first.network}/${first.relayer}`
    const isUnsent = rows.every(({ firstSentAt }) => firstSentAt === null)
    // Nobody comes back for a job: it is sent, by whoever finds it.
    const isKept = !isUnsent || context.jobs.findByTransaction(first.hash) !== undefined
    if (isKept) isTail.set(relayer, false)
    if (isKept || isTail.get(relayer) === false) continue
    const carriers = rows.map(({ hash }) => hash)
    write(db, () => {
      for (const hash of carriers) {
        store.endTransaction(hash, 'replaced', null)
        for (const id of store.membersOf(hash)) store.revert(id, carriers)
      }
    })
  }
}

/** Sets the relayers above what the database knows. */
export function raiseFloors(context: Context): void {
  for (const { network, relayer: address, nonce } of context.store.unfinishedTransactions()) {
    const chain = context.chains.get(network)
    const relayer = chain && relayerOf(chain, address)
    if (relayer) relayer.floor = Math.max(relayer.floor, nonce + 1)
  }
}

function relayerOf(chain: ChainState, relayer: string): Relayer | undefined {
  return chain.relayers.find(({ address }) => address === relayer)
}

function takeUp(
  context: Context,
  chain: ChainState,
  relayer: Relayer,
  rows: readonly TransactionRow[],
): void {
  const jobId = rows[0] && context.jobs.findByTransaction(rows[0].hash)
  if (jobId !== undefined) {
    takeUpJob(context, chain, relayer, jobId)
    return
  }
  const sent = rows.filter(({ firstSentAt }) => firstSentAt !== null)
  if (sent.length === 0) {
    fill(context, chain, relayer, rows)
    return
  }
  const payments = paymentsOf(context, sent)
  context.log('transaction-recovered', {
    network: chain.network.id,
    nonce: sent[0]?.nonce,
    payments: payments.length,
  })
  const [first] = sent
  if (!first) return
  const slot = { ...Work.slotOf(first, payments), transactions: sent }
  Work.launch(context, chain, relayer, slot, payments)
}

/**
 * With every transaction that was ever signed for it: one that was given up for its sibling may be
 * the one that is included after a reorganisation, and then the job has run.
 */
function takeUpJob(context: Context, chain: ChainState, relayer: Relayer, id: string): void {
  const { jobs, db, now } = context
  const transactions = write(db, () => {
    jobs.resend(id, now())
    return jobs.transactionsOf(id)
  })
  const job = jobs.find(id)
  const newest = transactions.at(-1)
  if (!job || !newest) throw new Error(`job ${id} has no transaction`)
  context.log('job-recovered', { job: id, network: chain.network.id, nonce: job.nonce })
  const slot = { ...Work.slotOf(newest, [], job), transactions }
  Work.launch(context, chain, relayer, slot, [])
}

/** Uses up a nonce whose transaction never left, because later ones wait for it. */
function fill(
  context: Context,
  chain: ChainState,
  relayer: Relayer,
  rows: readonly TransactionRow[],
): void {
  const [first] = rows
  // The fees are known after the first health check.
  if (!first || chain.health.checks === 0) return
  const { store } = context
  const payments = paymentsOf(context, rows)
  const row = Relayers.sign(context, chain, relayer, Relayers.cancellation(relayer), first.nonce)
  const carriers = rows.map(({ hash }) => hash)
  write(context.db, () => {
    for (const hash of carriers) store.endTransaction(hash, 'replaced', null)
    for (const { id } of payments) store.revert(id, carriers)
    store.insertTransaction(row, [])
  })
  Work.launch(context, chain, relayer, Work.slotOf(row, []), [])
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
  for (let nonce = count; nonce < Math.min(expected, count + gapMax); nonce++) {
    if (relayer.slots.has(nonce)) continue
    const row = Relayers.sign(context, chain, relayer, Relayers.cancellation(relayer), nonce)
    write(context.db, () => context.store.insertTransaction(row, []))
    Work.launch(context, chain, relayer, Work.slotOf(row, []), [])
  }
}

async function watchForeign(
  context: Context,
  chain: ChainState,
  rows: readonly TransactionRow[],
): Promise<void> {
  for (const row of rows) {
    const { hash, raw } = row
    try {
      const receipt = await Relayers.readReceipt(chain, hash)
      if (!receipt) {
        await send(chain, raw, false)
        continue
      }
      write(context.db, () => endForeign(context, chain, rows, row, receipt))
      return
    } catch (error) {
      context.log('settlement-undecided', { network: chain.network.id, hash, error })
    }
  }
}

function endForeign(
  context: Context,
  chain: ChainState,
  rows: readonly TransactionRow[],
  row: TransactionRow,
  receipt: Receipt,
): void {
  const id = context.jobs.findByTransaction(row.hash)
  const job = id === undefined ? undefined : context.jobs.find(id)
  if (job) {
    Work.endTransactions(context, chain, { transactions: [...rows], job }, row, receipt)
    return
  }
  const state = receipt.success ? 'mined' : 'failed'
  context.store.endTransaction(row.hash, state, receipt.blockNumber)
}

/** Unfinished transactions by network, relayer and nonce, lower nonces first. */
function unfinishedSlots({ store, jobs }: Context): TransactionRow[][] {
  const slots = new Map<string, TransactionRow[]>()
  for (const row of store.unfinishedTransactions()) {
    // After a chain lost its blocks, a job may compete for its nonce with something else.
    const job = jobs.findByTransaction(row.hash) ?? ''
    const key = `${row.network}/${row.relayer}/${row.nonce}/${job}`
    const rows = slots.get(key)
    if (rows) rows.push(row)
    else slots.set(key, [row])
  }
  return [...slots.values()]
}

function paymentsOf({ store }: Context, rows: readonly TransactionRow[]): Payment[] {
  const ids = new Set(rows.flatMap(({ hash }) => store.membersOf(hash)))
  return [...ids].flatMap((id) => {
    const payment = store.findById(id)
    return payment ? [payment] : []
  })
}

/** Ends payments that the chain proves to be over, though their transaction is still under way. */
export async function expire(context: Context): Promise<void> {
  const seconds = BigInt(Math.floor(context.now() / 1000))
  for (const payment of context.store.unfinishedPayments()) {
    const { network, validBefore } = payment.transfer
    if (validBefore >= seconds || !context.chains.has(network)) continue
    await Decide.endIfOver(context, chainOf(context, network), payment)
  }
}
