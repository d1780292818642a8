import { findEoas } from '../../chain/code'
import * as Token from '../../chain/token'
import * as Refusals from '../read/refusals'
import * as Signature from '../read/signature'
import { type Context, chainOf } from '../state/context'
import * as Gas from '../state/gas-budget'
import { payerBefore } from '../state/payers'
import { enqueueNamed, hasShare } from '../state/share'
import type {
  Admission,
  ChainState,
  QueuedPayment,
  Relayer,
  Requested,
  Verdict,
} from '../state/state'
import * as Batch from './batch'
import { dispatch as dispatchJobs } from './jobs'
import type { Ending, Outcome, Underway } from './Outcome'
import { feesNow, isReady, makesRoom, openMax, pausedBy } from './relayer'
import * as Resolve from './resolve'

/** Longest time (ms) that payments collect behind an open transaction. */
const collectMs = 15
/**
 * Only sorts the queue: a payer may delegate at any time (EIP-7702), so a batch reads the code
 * again.
 */
const eoaKeptMs = 30_000
const eoasMax = 20_000

export type Submitted = {
  /** The result of the submission. Never rejects. */
  admission: Promise<Admission>
  /**
   * Removes the payment from the queue. False when its turn has started: then the admission follows
   * at the end of that turn.
   */
  cancel(): boolean
}

type Entry = Signature.Signed & Pick<QueuedPayment, 'signer' | 'deliverOnConfirm' | 'payment'>

/** Adds a payment to the queue of its network. `payment`: it was stored before, and is sent again. */
export function submit(
  context: Context,
  chain: ChainState,
  request: Requested,
  { transfer, code, signer, deliverOnConfirm, payment }: Entry,
): Submitted {
  const { promise, resolve } = Promise.withResolvers<Admission>()
  const { queue } = chain
  const isAlone = payment !== undefined || transfer.upto !== undefined
  const queued: QueuedPayment = {
    request,
    transfer,
    signer,
    code: code === 'unknown' && isEoa(context, chain, transfer.payer) ? 'eoa' : code,
    simulatedCode: 'unknown',
    payment,
    deliverOnConfirm,
    isAlone,
    isUrgent: isAlone || code === 'contract',
    isGivenUp: false,
    logKey: Token.transferKey(transfer),
    call: Signature.callOf(transfer),
    reservation: undefined,
    fees: undefined,
    done: (verdict) => resolve(admissionOf(context, verdict)),
  }
  if (transfer.upto === undefined) queue.payments.push(queued)
  else enqueueNamed(queue, queued)
  // Payments of one turn of the event loop are sent together.
  queue.arrival ??= setImmediate(() => {
    queue.arrival = undefined
    pump(context, chain)
  })
  return {
    admission: promise,
    cancel() {
      queued.isGivenUp = true
      const waiting = transfer.upto === undefined ? queue.payments : queue.named
      const index = waiting.indexOf(queued)
      if (index >= 0) waiting.splice(index, 1)
      return index >= 0
    },
  }
}

function admissionOf(context: Context, verdict: Verdict): Admission {
  if (verdict.kind !== 'sent') return verdict
  const { member, ending } = verdict
  return { kind: 'sent', payment: member.payment, outcome: follow(context, member, ending) }
}

/** Registers a payment that was sent, and sends it again when its ending requires that. */
export function follow(
  context: Context,
  member: Underway,
  ending: Promise<Ending>,
): Promise<Outcome> {
  return Resolve.track(context, member, async () => {
    const end = await ending
    return end.kind === 'resend' ? resend(context, end.member) : end
  })
}

/**
 * Sends a reverted payment again, alone, when the simulation passes. Only a consumed nonce leads to
 * one more attempt: a payment that fails alone is not sent again by itself.
 */
export async function resend(context: Context, member: Underway): Promise<Outcome> {
  const { payment, requestId, deliverOnConfirm } = member
  const { transfer, id, purpose } = payment
  const { now, payers, ledger } = context
  const chain = chainOf(context, transfer.network)
  const signed = await Signature.checkSignature(chain, transfer, now())
  if (signed.kind !== 'signed') {
    return signed.kind === 'refused' ? Resolve.decide(context, member, signed.reason) : signed
  }
  const payer = await payerBefore(ledger.payments, transfer, signed.code)
  const waitSeconds = payers.failures.waitSeconds(payer)
  if (waitSeconds > 0) return Refusals.lockedOut(waitSeconds)
  const request = { id, requestId, transfer, purpose, receivedAt: now() }
  const entry = { ...signed, signer: { kind: 'checked' }, deliverOnConfirm, payment } as const
  const { admission: admitted } = submit(context, chain, request, entry)
  const admission = await admitted
  switch (admission.kind) {
    case 'sent':
      return admission.outcome
    case 'known':
      return Resolve.current(context, admission.payment)
    case 'used':
      return Resolve.decide(context, member, Refusals.usedReason(transfer))
    case 'refused':
      return Resolve.decide(context, member, admission.reason)
    case 'unavailable':
      return admission
    case 'unsigned':
      throw new Error('the signature of a payment was proven before')
    case 'rows-refused':
      throw new Error('a payment that is sent again has no rows')
  }
}

/** Assigns waiting payments to free relayers. When no relayer can send, all are refused. */
export function pump(context: Context, chain: ChainState): void {
  const { queue } = chain
  dispatchJobs(context, chain)
  pumpNamed(context, chain)
  while (queue.payments.length > 0) {
    if (context.progress.signal.aborted || !isReady(chain)) {
      for (const { done } of queue.payments.splice(0)) done(Refusals.unavailable(undefined))
      return
    }
    const relayer = freeRelayer(chain)
    if (!relayer) break
    const batch = take(context, chain, relayer)
    if (batch.length === 0) break
    queue.isDue = false
    relayer.isPreparing = true
    void Batch.dispatch(context, chain, relayer, batch).then((returned) => {
      relayer.isPreparing = false
      for (const each of returned) if (each.isGivenUp) each.done(Refusals.busy)
      queue.payments.unshift(...returned.filter(({ isGivenUp }) => !isGivenUp))
      pump(context, chain)
    })
  }
  if (queue.payments.length === 0) return
  probe(context, chain)
  if (queue.isDue || queue.collecting !== undefined) return
  queue.collecting = setTimeout(() => {
    queue.collecting = undefined
    queue.isDue = true
    pump(context, chain)
  }, collectMs)
}

/** Sends payments that name their relayer, each alone, as many at once as the relayer may have open. */
function pumpNamed(context: Context, chain: ChainState): void {
  const { queue, relayers } = chain
  // Usually empty: each payment of another scheme calls this several times.
  if (queue.named.length === 0) return
  const isOver = context.progress.signal.aborted || !isReady(chain)
  const room = roomFor(context)
  const waiting: QueuedPayment[] = []
  for (const queued of queue.named.splice(0)) {
    const relayer = relayers.find(({ address }) => address === queued.transfer.upto?.facilitator)
    if (isOver || !relayer || pausedBy(relayer) !== undefined) {
      queued.done(relayer ? Refusals.unavailable(undefined) : Refusals.relayerGone)
      continue
    }
    const isFull = relayer.open + relayer.preparing >= openMax || !hasShare(relayer, queued)
    if (isFull || makesRoom(relayer, relayers) || room(queued) <= 0) {
      waiting.push(queued)
      continue
    }
    relayer.preparing++
    void Batch.dispatch(context, chain, relayer, [queued]).then((returned) => {
      relayer.preparing--
      for (const each of returned) {
        if (each.isGivenUp) each.done(Refusals.busy)
        else enqueueNamed(queue, each)
      }
      if (queue.named.length > 0) pump(context, chain)
    })
  }
  queue.named.push(...waiting)
}

/**
 * The relayer with the fewest open transactions that may take a payment now. A lone payment is sent
 * at once when a relayer has none open. Otherwise payments collect until the time is over, a batch
 * is full, or waiting gains nothing.
 */
function freeRelayer({ relayers, queue, network }: ChainState): Relayer | undefined {
  let best: Relayer | undefined
  for (const relayer of relayers) {
    if (relayer.isReserved || pausedBy(relayer) !== undefined) continue
    const isFull = relayer.isPreparing || relayer.open >= openMax
    if (isFull || makesRoom(relayer, relayers)) continue
    if (!best || relayer.open < best.open) best = relayer
  }
  if (!best || best.open === 0) return best
  const { isDue, payments } = queue
  const mayLeave = isDue || payments.length >= network.batchMax || payments[0]?.isUrgent === true
  return mayLeave ? best : undefined
}

/**
 * The oldest payment and those that may share its transaction, in the order of arrival: payers
 * without code, the same product, distinguishable logs, within the limits.
 */
function take(context: Context, chain: ChainState, relayer: Relayer): QueuedPayment[] {
  const { queue, network } = chain
  const gasMax = gasMaxOf(chain, relayer)
  const room = roomFor(context)
  // Payments of a payer at its limit wait; those of others go first.
  const start = queue.payments.findIndex((queued) => room(queued) > 0 && hasShare(relayer, queued))
  const first = queue.payments[start]
  if (!first) return []
  if (!mayShare(context, chain, first)) return queue.payments.splice(start, 1)
  const keys = new Set<string>()
  const taken: QueuedPayment[] = []
  const left: QueuedPayment[] = []
  let gas = 0n
  const mine = new Map<string, number>()
  for (const queued of queue.payments) {
    const { payer } = queued.transfer
    const count = mine.get(payer) ?? 0
    if (room(queued) <= count) {
      left.push(queued)
      continue
    }
    const more = gas + Gas.limitOfMember(chain, queued.transfer)
    const isRoom =
      taken.length < Math.max(1, network.batchMax) &&
      (taken.length === 0 || Gas.limitOfBatch(more) <= gasMax)
    const isAlike = queued.request.purpose.product === first.request.purpose.product
    const fits = isRoom && isAlike && mayShare(context, chain, queued)
    if (fits && !keys.has(queued.logKey)) {
      keys.add(queued.logKey)
      taken.push(queued)
      mine.set(payer, count + 1)
      gas = more
      continue
    }
    // Two payments that cannot share a transaction gain nothing by waiting.
    if (fits) queued.isUrgent = true
    left.push(queued)
  }
  queue.payments = left
  return taken
}

/** How many more payments of a payer may be open. */
function roomFor({ payers }: Context): (queued: QueuedPayment) => number {
  const rooms = new Map<string, number>()
  return ({ transfer: { payer } }) => {
    const known = rooms.get(payer) ?? payers.failures.roomOf(payer)
    rooms.set(payer, known)
    return known
  }
}

/** Nodes require the balance for the whole limit, so one batch uses at most half of it. */
function gasMaxOf(chain: ChainState, { balanceWei }: Relayer): bigint {
  const most = BigInt(chain.network.batchGasMax)
  const { maxFeeWei } = feesNow(chain)
  if (balanceWei === undefined || maxFeeWei === 0n) return most
  const affordable = balanceWei / maxFeeWei / 2n
  return affordable < most ? affordable : most
}

function mayShare(context: Context, chain: ChainState, queued: QueuedPayment): boolean {
  const { payer } = queued.transfer
  if (queued.isAlone || queued.code === 'contract') return false
  if (chain.known.unshared.has(payer)) return false
  if (!Gas.mayShare(context, chain, queued.request.purpose.product)) return false
  if (queued.code === 'unknown' && isEoa(context, chain, payer)) queued.code = 'eoa'
  return queued.code === 'eoa'
}

function isEoa({ now }: Context, { known }: ChainState, payer: string): boolean {
  return (known.eoas.get(payer) ?? 0) > now()
}

/** Reads in one call which waiting payers have code, while they wait. */
function probe(context: Context, chain: ChainState): void {
  const { queue, known, client } = chain
  if (queue.isProbing) return
  const unread = queue.payments.filter(({ code, isAlone }) => code === 'unknown' && !isAlone)
  if (unread.length === 0) return
  queue.isProbing = true
  if (known.eoas.size >= eoasMax) known.eoas.clear()
  const payers = [...new Set(unread.map(({ transfer }) => transfer.payer))]
  void findEoas(client, payers).then((eoas) => {
    queue.isProbing = false
    const until = context.now() + eoaKeptMs
    for (const queued of unread) {
      const { payer } = queued.transfer
      if (eoas.has(payer)) known.eoas.set(payer, until)
      // Treat unknown as code: sent alone, it cannot affect other payments.
      queued.code = eoas.has(payer) ? 'eoa' : 'unknown'
      if (queued.code === 'unknown') queued.isAlone = true
      queued.isUrgent ||= queued.isAlone
    }
    pump(context, chain)
  })
}
