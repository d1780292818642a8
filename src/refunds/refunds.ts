import type { Payment } from '../../db/Payment'
import { jobId, lookBackMs, paymentOf, type Refund, type RefundLedger } from '../../db/Refund'
import { idAt } from '../../db/sales'
import type { StuckRefunds } from '../../db/WebhookEvent'
import { RpcFault } from '../chain/client'
import type * as Logs from '../chain/logs'
import * as Receipt from '../chain/receipt'
import * as Token from '../chain/token'
import type { NetworkConfig } from '../config/Config'
import type { WriteEvent } from '../log'
import * as Abi from '../protocol/Abi'
import * as AddressText from '../protocol/Address'
import * as Crypto from '../protocol/Crypto'
import type * as Network from '../protocol/Network'
import { dayMs } from '../protocol/Time'
import * as Transfer from '../protocol/Transfer'
import {
  findUse,
  isUsed,
  readSuccess,
  transferGas,
  transferSeconds,
} from '../settlement/read/own-transfer'
import type { Settlement } from '../settlement/settlement'
import type { Meter } from '../settlement/state/metrics'
import { createLoop } from '../settlement/state/wait'
import { nonceOf, type Wait, waits } from './Refund'
import { refundable, requestRefund, retryRefund } from './request'

export type RefundsOptions = {
  refunds: RefundLedger
  settlement: Pick<
    Settlement,
    'run' | 'job' | 'onJob' | 'findById' | 'read' | 'rpc' | 'observationOf' | 'costOf'
  >
  /** REFUND_KEY; undefined: nothing is refunded. */
  key: Uint8Array | undefined
  networks: readonly NetworkConfig[]
  /** Slugs of the merchants with `refund = "undelivered"`. */
  merchants: () => readonly string[]
  perDayAtomic: () => bigint
  meter: Meter
  /** Unix ms. */
  now: () => number
  log: WriteEvent
  /** Ms between two looks for refunds to send, and between two sweeps of undelivered payments. */
  lookMs?: number | undefined
  sweepMs?: number | undefined
}

export type Refunds = ReturnType<typeof createRefunds>

/** A refund that is not sent, or does not arrive. */
type Held = { refund: Refund; network: Network.Id | undefined; wait: Wait; until: number }

type Context = RefundsOptions & {
  key: Uint8Array
  account: Refund['account']
  spans: Logs.Spans
  held: Map<string, Held>
  /** Payments whose job has changed, and how often their logs were looked for in vain. */
  changed: Map<string, number>
  /** Refunds that are sent and not included, as of the last look at each. */
  sent: Map<string, { network: Network.Id; amountAtomic: bigint }>
  /** The round of looks through all that are not made: its last one, and all of it so far. */
  round: { after: string | undefined; ids: Set<string> }
  signal: AbortSignal
}

/** What one look has read, which all refunds of a network share. */
type Look = {
  heads: Map<Network.Id, bigint>
  /** The least amount that the account cannot pay. */
  poorAt: Map<Network.Id, bigint>
  /** Networks of which no node answers. */
  away: Set<Network.Id>
}

/** Refunds of one look. Any number may be open, and the reads of all would stop the other requests. */
const lookedMax = 200

/** Looks at the logs of a refund that a node does not show. */
const provingMax = 600

/** How long a refund is left alone after a look at it, ms; by default until the next look. */
const againMs: Partial<Record<Wait, number>> = {
  balance: 5_000,
  node: 5_000,
  unseen: 5_000,
  refused: 30_000,
  elsewhere: 30_000,
  account: Infinity,
  asset: Infinity,
}

/**
 * Sends what was requested, as jobs of any relayer, from the account of REFUND_KEY. Each job has a
 * signature of that account by EIP-3009, so that the account needs no native coin.
 */
export function createRefunds(options: RefundsOptions) {
  const { refunds, settlement, key, networks, meter, now, log } = options
  const { lookMs = 1_000, sweepMs = 60_000 } = options
  const account = key && Crypto.addressOf(key)
  const held = new Map<string, Held>()
  const changed: Context['changed'] = new Map()
  const end = new AbortController()
  const round: Context['round'] = { after: undefined, ids: new Set() }
  const sent: Context['sent'] = new Map()
  const own = { spans: new Map(), held, changed, sent, round, signal: end.signal }
  const context: Context | undefined = key && account && { ...options, ...own, key, account }
  const fault = (error: unknown) => {
    if (!end.signal.aborted) log('refund-fault', { error })
  }
  const looks = createLoop(async () => context && look(context).catch(fault), lookMs)
  const sweep = context && createSweep(context)
  const sweeps = createLoop(async () => sweep?.().then(looks.wake, fault), sweepMs)
  const gauge = meter.gauge('refunds_open', 'Refunds of money that are not made.', ['state'])
  meter.onRender(async () => {
    for (const [state, count] of Object.entries(await refunds.countOpen()))
      gauge.set(count, { state })
  })
  settlement.onJob((id) => {
    const paymentId = paymentOf(id)
    if (paymentId === undefined || context === undefined) return
    changed.set(paymentId, 0)
    looks.wake()
  })
  return {
    /** Pays refunds; undefined without REFUND_KEY. */
    account,
    find: refunds.find,
    /** Whether the money of a payment can be sent back. */
    canRefund: (transfer: Pick<Transfer.Transfer, 'network' | 'asset' | 'method'>) =>
      account !== undefined && refundable(networks, transfer) !== undefined,
    /** Requests a refund for an operator. */
    async request(asked: Parameters<typeof requestRefund>[1]) {
      const perDayAtomic = options.perDayAtomic()
      const findPayment = settlement.findById
      const terms = { refunds, findPayment, account, networks, perDayAtomic, now: now() }
      const done = await requestRefund(terms, asked)
      looks.wake()
      return done
    },
    /** Lets another attempt be sent in place of one that has failed. */
    async retry(paymentId: string) {
      const done = await retryRefund(refunds, paymentId)
      looks.wake()
      return done
    },
    /** Why a refund is not sent now, as far as this process knows. */
    waitOf: (paymentId: string): Wait | undefined => held.get(paymentId)?.wait,
    /** What waits for an operator. */
    stuck: (): readonly StuckRefunds[] => stuckOf([...held.values()]),
    /** Continues what an earlier process left, and from now on looks for what is to be refunded. */
    start(): void {
      if (context === undefined) return
      void recheck(context).catch(fault).then(looks.start)
      sweeps.start()
    },
    /** Starts nothing new; resolves when nothing is in progress. */
    async stop(): Promise<void> {
      end.abort()
      await Promise.all([looks.stop(), sweeps.stop()])
    },
  }
}

function stuckOf(held: readonly Held[]): StuckRefunds[] {
  const found = new Map<Network.Id, StuckRefunds>()
  for (const { refund, network, wait } of held) {
    if (network === undefined || !waits[wait].isStuck) continue
    const { account, amountAtomic } = refund
    const none = { network, account, reason: waits[wait].text, payments: 0, amountAtomic: 0n }
    const known = found.get(network) ?? none
    found.set(network, {
      ...known,
      payments: known.payments + 1,
      amountAtomic: known.amountAtomic + amountAtomic,
    })
  }
  return [...found.values()]
}

/** A process may have stopped between the end of a transaction and the look at its logs. */
async function recheck({ refunds, changed, now }: Context): Promise<void> {
  for (const { paymentId, createdAt } of await refunds.list({ before: undefined, limit: 100 }))
    if (createdAt > now() - dayMs) changed.set(paymentId, 0)
}

/** Takes the next step of refunds that are not made, some of them at each look. */
async function look(context: Context): Promise<void> {
  const { refunds, settlement, networks, held, changed, sent } = context
  const found: Look = { heads: new Map(), poorAt: new Map(), away: new Set() }
  for (const [id, tries] of [...changed]) {
    changed.delete(id)
    sent.delete(id)
    const refund = await refunds.find(id)
    if (refund?.state !== 'refunded') continue
    const wait = await take(context, found, refund, prove)
    // A node may lag behind the one that showed the receipt.
    if (wait !== undefined && tries < provingMax) changed.set(id, tries + 1)
  }
  const open = await nextOf(context)
  // Those that are sent first: the account has their amounts still.
  for (const { paymentId, state, amountAtomic } of open) {
    sent.delete(paymentId)
    if (state !== 'sent') continue
    held.delete(paymentId)
    const payment = await settlement.findById(paymentId)
    const network = payment && refundable(networks, payment.transfer)?.id
    if (network) sent.set(paymentId, { network, amountAtomic })
  }
  for (const refund of open) {
    if (context.signal.aborted) return
    if (refund.state === 'requested') await take(context, found, refund, send)
    if (refund.state === 'failed') await take(context, found, refund, examine)
  }
}

/** The next refunds that are not made. After the last ones it begins again, and forgets all others. */
async function nextOf({ refunds, held, sent, round }: Context): Promise<readonly Refund[]> {
  const open = await refunds.open({ after: round.after, limit: lookedMax })
  for (const { paymentId } of open) round.ids.add(paymentId)
  round.after = open.at(-1)?.paymentId
  if (open.length === lookedMax) return open
  for (const known of [held, sent])
    for (const id of known.keys()) if (!round.ids.has(id)) known.delete(id)
  Object.assign(round, { after: undefined, ids: new Set() })
  return open
}

/** What a step needs: the payment, its network, and the transfer that sends its money back. */
type Subject = {
  refund: Refund
  payment: Payment & { blockNumber: bigint }
  network: NetworkConfig
  terms: Omit<Transfer.Transfer, 'signature'>
}

type Step = (context: Context, look: Look, subject: Subject) => Promise<Wait | undefined>

/** Takes a step and keeps why the refund waits. Never rejects for a fault of a node. */
async function take(
  context: Context,
  look: Look,
  refund: Refund,
  step: Step,
): Promise<Wait | undefined> {
  const { held, settlement, now, log } = context
  const { paymentId: id, attempts, state } = refund
  const known = held.get(id)
  const isSame = known?.refund.attempts === attempts && known.refund.state === state
  if (known && isSame && now() < known.until) return known.wait
  const payment = await settlement.findById(id)
  const wait = await stepOf(context, look, { refund, payment }, step).catch((error: unknown) => {
    if (known?.wait !== 'node') log('refund-fault', { payment: id, error })
    if (error instanceof RpcFault && payment) look.away.add(payment.transfer.network)
    return 'node' as const
  })
  if (wait === undefined || state === 'refunded') {
    held.delete(id)
    return wait
  }
  const isFinal = wait === 'failed'
  const until = isFinal ? Infinity : now() + (againMs[wait] ?? 0)
  held.set(id, { refund, network: payment?.transfer.network, wait, until })
  if (known?.wait === wait || !waits[wait].isStuck) return wait
  const reason = waits[wait].text
  log(isFinal ? 'refund-failed' : 'refund-waiting', { payment: id, reason })
  return wait
}

async function stepOf(
  context: Context,
  look: Look,
  { refund, payment }: { refund: Refund; payment: Payment | undefined },
  step: Step,
): Promise<Wait | undefined> {
  const { networks, account, now } = context
  const { paymentId, amountAtomic } = refund
  if (!AddressText.equal(refund.account, account)) return 'account'
  if (payment?.state !== 'confirmed' || payment.blockNumber === undefined) return 'payment'
  const { transfer, blockNumber } = payment
  const network = refundable(networks, transfer)
  if (network === undefined) return 'asset'
  if (look.away.has(network.id)) return 'node'
  const terms: Subject['terms'] = {
    ...{ method: 'eip3009', network: network.id, chainId: network.chainId },
    ...{ asset: network.asset.address, payer: account, payee: transfer.payer, amountAtomic },
    ...{ nonce: nonceOf(paymentId), validAfter: 0n },
    validBefore: BigInt(Math.floor(now() / 1000)) + transferSeconds,
  }
  return step(context, look, { refund, payment: { ...payment, blockNumber }, network, terms })
}

/** Amounts of refunds that are sent and not included. */
function sentOf({ sent }: Context, { id }: NetworkConfig): bigint {
  let sum = 0n
  for (const { network, amountAtomic } of sent.values()) if (network === id) sum += amountAtomic
  return sum
}

/** Writes and sends the next attempt, once its preconditions are proven. */
async function send(context: Context, look: Look, subject: Subject): Promise<Wait | undefined> {
  const { settlement, key } = context
  const { refund, payment, network, terms } = subject
  const { paymentId, attempts, amountAtomic, account } = refund
  const isAutomatic = refund.reason === 'undelivered'
  if (isAutomatic && payment.delivery === 'delivered') return 'delivered'
  // A buyer that always leaves must not cost more gas than it has at stake.
  if (isAutomatic && gasAtomic(context, network) > amountAtomic) return 'gas'
  if (!(await isDeep(context, look, network, payment.blockNumber))) return 'depth'
  if (amountAtomic >= (look.poorAt.get(network.id) ?? Infinity)) return 'balance'
  // A faulty node must not invent the payment whose money is sent back, and a node that has changed to
  // another fork may not have it any more.
  if ((await settlement.observationOf(payment)) !== 'shown') return 'unseen'
  const signature = Crypto.sign(Transfer.digest(terms, network.asset), key)
  const call = Transfer.call({ ...terms, signature })
  const { results } = await settlement.read(network.id, [
    Token.authorizationState(terms.asset, account, terms.nonce),
    Token.balanceOf(terms.asset, account),
    call,
  ])
  const [nonce, balance, moved] = results
  // A token may only log a used nonce, and not revert.
  if (isUsed(nonce)) return findElsewhere(context, look, subject, payment.blockNumber)
  const spare = (balance ? (Abi.uintAt(balance.slice(2)) ?? 0n) : 0n) - sentOf(context, network)
  if (spare < amountAtomic) {
    look.poorAt.set(network.id, amountAtomic)
    return 'balance'
  }
  if (moved === undefined) return 'refused'
  const end = await settlement.run(
    {
      ...{ id: jobId(paymentId, attempts + 1), kind: 'refund', product: 'gateway' },
      ...{ network: network.id, relayer: undefined, valueWei: 0n, gasLimit: transferGas },
      ...call,
    },
    // Another gateway may have sent it, or a reorganisation may have come while this waited.
    { waitMs: 0, rider: { kind: 'repay', paymentId, attempts } },
  )
  context.sent.set(paymentId, { network: network.id, amountAtomic })
  return end.kind === 'unavailable' ? 'relayer' : undefined
}

/** Cost of a lone payment in atomic units of the asset, at 1 of it = 1 USD. */
function gasAtomic({ settlement }: Context, { id, ethPriceUsd }: NetworkConfig): bigint {
  const { gas, priceWei } = settlement.costOf(id)
  return (gas * priceWei * BigInt(Math.round(ethPriceUsd * 1_000_000))) / 10n ** 18n
}

/** Finds out what became of an attempt that has failed. */
async function examine(context: Context, look: Look, subject: Subject): Promise<Wait | undefined> {
  const { settlement, refunds } = context
  const { refund, payment, network, terms } = subject
  const { paymentId, attempts, account } = refund
  const job = await settlement.job(jobId(paymentId, attempts))
  if (job === undefined) throw new Error(`the refund of ${paymentId} has no job`)
  const state = Token.authorizationState(terms.asset, account, terms.nonce)
  if (isUsed((await settlement.read(network.id, [state])).results[0]))
    return findElsewhere(context, look, subject, job.blockNumber ?? payment.blockNumber)
  // Its account nonce was used by another program, so it never ran.
  if (job.state === 'replaced') {
    await refunds.retry(paymentId)
    return undefined
  }
  const isOver =
    job.blockNumber !== undefined && (await isDeep(context, look, network, job.blockNumber))
  return isOver ? 'failed' : 'depth'
}

/** A reader of the mempool may have sent our signature first. */
async function findElsewhere(
  context: Context,
  look: Look,
  { refund, network, terms }: Subject,
  around: bigint,
): Promise<Wait | undefined> {
  const { settlement, refunds, spans, now, log } = context
  const { asset, payer: account, nonce } = terms
  const use = { network: network.id, asset, account, nonce, around }
  const found = await findUse(settlement, spans, use, (receipt) => isPaidBy(receipt, terms))
  if (found === undefined) return 'elsewhere'
  // Ours, which the node had not shown before.
  if (refund.state === 'refunded' && found.hash === refund.transaction) return undefined
  // A reorganisation could remove it, and nothing would look for it again.
  if (!(await isDeep(context, look, network, found.blockNumber))) return 'depth'
  const { paymentId } = refund
  await refunds.setElsewhere(paymentId, found.hash, now())
  log('refund-elsewhere', { payment: paymentId, transaction: found.hash })
  return undefined
}

/** Success is no proof: for a used nonce USDG only logs an event and does not revert. */
async function prove(context: Context, look: Look, subject: Subject): Promise<Wait | undefined> {
  const { settlement } = context
  const { refund, network, terms } = subject
  const { paymentId, attempts, transaction } = refund
  const job = await settlement.job(jobId(paymentId, attempts))
  if (job?.state !== 'confirmed' || job.blockNumber === undefined) return undefined
  if (transaction !== job.transaction) return undefined
  const receipt = await readSuccess(settlement, network.id, job.transaction)
  if (receipt !== undefined && isPaidBy(receipt, terms)) return undefined
  return findElsewhere(context, look, subject, job.blockNumber)
}

function isPaidBy({ logs }: Pick<Receipt.Receipt, 'logs'>, terms: Subject['terms']): boolean {
  return logs.some((log) => Receipt.isTransfer(log, terms))
}

/** Whether no reorganisation can remove a block. */
async function isDeep(
  { settlement }: Context,
  { heads }: Look,
  { id, reorgDepth }: NetworkConfig,
  block: bigint,
): Promise<boolean> {
  let head = heads.get(id)
  if (head === undefined) {
    const answer = await settlement.rpc(id, 'eth_blockNumber', [])
    if (!Receipt.isHex(answer)) throw new RpcFault('not a block number')
    head = BigInt(answer)
    heads.set(id, head)
  }
  return head >= block + BigInt(reorgDepth)
}

const pageRows = 500

/**
 * Requests the refunds of payments that were never delivered and can no longer be redeemed. After the
 * limit of a day is reached, the next sweep continues at the same place.
 */
function createSweep(context: Context): () => Promise<void> {
  const { refunds, merchants, now } = context
  let afterId = idAt(now() - lookBackMs)
  return async () => {
    while (merchants().length > 0 && !context.signal.aborted) {
      const page = { merchants: merchants(), afterId, now: now(), limit: pageRows }
      const { ids, lastId } = await refunds.undelivered(page)
      for (const id of ids) {
        if ((await requestAutomatic(context, id)) === 'day-spent') return
        // Each is a commit of its own, and other requests go on between them.
        await new Promise((resolve) => setImmediate(resolve))
      }
      if (lastId === afterId) return
      afterId = lastId
      await new Promise((resolve) => setImmediate(resolve))
    }
  }
}

async function requestAutomatic(context: Context, paymentId: string) {
  const { refunds, settlement, networks, account, now, log } = context
  const perDayAtomic = context.perDayAtomic()
  const payment = await settlement.findById(paymentId)
  if (payment === undefined || !refundable(networks, payment.transfer)) return undefined
  // It would stop the others for ever.
  if (payment.transfer.amountAtomic > perDayAtomic) return undefined
  const terms = { amountAtomic: undefined, reason: 'undelivered', note: undefined } as const
  const done = await refunds.request({ paymentId, account, ...terms, perDayAtomic, now: now() })
  if (done === 'requested') log('refund-requested', { payment: paymentId })
  return done
}
