import type { Address } from 'viem'
import { chainNow } from '../../chain/clock'
import { fees } from '../../chain/head'
import { findEoas, isIdentified } from '../../chain/multicall'
import * as Receipt from '../../chain/receipt'
import { checkWindow } from '../../protocol/Transfer'
import * as Refusals from '../read/refusals'
import * as Simulate from '../read/simulate'
import { type Simulation, simulate } from '../read/simulate'
import * as Gas from '../state/gas-budget'
import { beginRead, type Payer, payerOf } from '../state/payers'
import {
  type AcceptedCharge,
  type ChainState,
  type Context,
  isForged,
  type QueuedPayment,
  type Relayer,
  type Written,
} from '../state/state'
import { dispatchJobs } from './jobs'
import { canGive, chargesMaxOf, facilitatorMax, isReady, openMax, pausedBy } from './relayer'
import { signDraft, writeAndSend } from './transaction'

/*
 * Which payments go together to which relayer, and which of them its simulation accepts. Relayers settle our
 * own sales, and payments for other servers (the facilitator). The others have a share of each relayer, and
 * wait behind the charges of our own answers.
 */

/** Longest time (ms) that payments collect behind an open transaction. */
const collectMs = 15

/**
 * Only sorts the queue: a payer may delegate at any time (EIP-7702), so a batch reads the code
 * again.
 */
const eoaKeptMs = 30_000

const eoasMax = 20_000

type Entry = Simulate.SignedTransfer &
  Pick<QueuedPayment, 'request' | 'signer' | 'deliverOnConfirm' | 'payment' | 'done'>

/**
 * Adds a payment to the queue of its network. `payment`: it was stored before, and is sent again. The
 * result removes it from the queue. That is false when its turn has started: then `done` follows at the
 * end of that turn.
 */
export function enqueue(context: Context, chain: ChainState, entry: Entry): () => boolean {
  const { transfer, code, payment } = entry
  const { queue } = chain
  const isAlone = payment !== undefined || transfer.upto !== undefined
  const queued: QueuedPayment = {
    ...entry,
    code: code === 'unknown' && isEoa(context, chain, transfer.payer) ? 'eoa' : code,
    simulatedCode: 'unknown',
    isAlone,
    isUrgent: isAlone || code === 'contract',
    isDecided: false,
    isGivenUp: false,
    logKey: Receipt.transferKey(transfer),
    call: Simulate.callOf(transfer),
    reservation: undefined,
    fees: undefined,
  }
  if (transfer.upto === undefined) queue.payments.push(queued)
  else enqueueNamed(queue, queued)
  // Payments of one turn of the event loop are sent together.
  queue.arrival ??= setImmediate(() => {
    queue.arrival = undefined
    pump(context, chain)
  })
  return () => {
    queued.isGivenUp = true
    const waiting = transfer.upto === undefined ? queue.payments : queue.named
    const index = waiting.indexOf(queued)
    if (index >= 0) waiting.splice(index, 1)
    return index >= 0
  }
}

/**
 * Adds a payment that names its relayer: charges of our own answers first, and those whose time ends
 * first before others.
 */
export function enqueueNamed({ named }: ChainState['queue'], queued: QueuedPayment): void {
  const at = named.findIndex((each) => precedes(queued, each))
  named.splice(at < 0 ? named.length : at, 0, queued)
}

function precedes(left: QueuedPayment, right: QueuedPayment): boolean {
  const isOther = isForOthers(left)
  if (isOther !== isForOthers(right)) return !isOther
  return left.transfer.validBefore < right.transfer.validBefore
}

/** Whether a payment is settled for another server. */
function isForOthers({ request }: QueuedPayment): boolean {
  return request.purpose.product === 'facilitator'
}

/** Assigns waiting payments to free relayers. When no relayer can send, all are refused. */
export function pump(context: Context, chain: ChainState): void {
  const { queue } = chain
  if (queue.jobs.length > 0) dispatchJobs(context, chain)
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
    void sendTogether(context, chain, relayer, batch).then((returned) => {
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

/** Sends payments that name their relayer, as many at once as the relayer may have open. */
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
    const open = relayer.open + relayer.preparing
    const hasRoom = open < openMax || open < chargesMaxOf(chain, relayer)
    const isFull = !hasRoom || !hasShare(relayer, queued)
    if (isFull || (relayer.isLeaving && canGive(relayers)) || room(queued) <= 0) {
      waiting.push(queued)
      continue
    }
    relayer.preparing++
    void sendTogether(context, chain, relayer, [queued]).then((returned) => {
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
    if (relayer.isPreparing || relayer.open - relayer.charges >= openMax) continue
    if (relayer.isLeaving && canGive(relayers)) continue
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
  const { maxFeeWei } = fees(chain.head, chain.network.feeCapWei)
  if (balanceWei === undefined || maxFeeWei === 0n) return most
  const affordable = balanceWei / maxFeeWei / 2n
  return affordable < most ? affordable : most
}

function mayShare(context: Context, chain: ChainState, queued: QueuedPayment): boolean {
  const { payer } = queued.transfer
  if (queued.isAlone || queued.code === 'contract' || chain.known.unshared.has(payer)) return false
  if (queued.code !== 'eoa' && !isEoa(context, chain, payer)) return false
  if (!Gas.mayShare(context, chain, queued.request.purpose.product)) return false
  queued.code = 'eoa'
  return true
}

/** Whether a relayer has room for the payment beside what it settles for other servers. */
function hasShare({ facilitating }: Relayer, queued: QueuedPayment): boolean {
  return !isForOthers(queued) || facilitating < facilitatorMax
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

/**
 * Simulates payments together and sends those that pass in one transaction: directly when it is
 * one, else inside Multicall3. Calls `done` for every payment except those that it returns: these
 * could not be sent now, and nothing was written for them. The relayer is marked as preparing
 * meanwhile. Never rejects.
 */
async function sendTogether(
  context: Context,
  chain: ChainState,
  relayer: Relayer,
  queued: readonly QueuedPayment[],
): Promise<readonly QueuedPayment[]> {
  const knownBlock = chain.head.number
  const batch = dropForged(context, queued)
  if (batch.length === 0) return []
  const leave = countShare(relayer, batch)
  const endRead = beginRead(context.progress)
  try {
    const simulating = simulate(chain, relayer.address, batch, chainNow(context, chain))
    // A draft is signed while the node simulates, which takes longer. It saves nothing for payments that
    // name the relayer: these are prepared at the same time.
    const [lone] = queued.length === 1 ? batch : []
    const isDrafted = lone !== undefined && lone.transfer.upto === undefined
    const draft = isDrafted ? signDraft(context, chain, relayer, lone) : undefined
    // Read the code again: a payer can delegate to code at any time (EIP-7702).
    const payers = new Set(batch.map(({ transfer }) => transfer.payer))
    const reading = batch.length > 1 ? findEoas(chain.client, [...payers]) : undefined
    const [simulations, eoas] = await Promise.all([simulating, reading])
    if (pausedBy(relayer) !== undefined || context.progress.signal.aborted) return batch
    const accepted = await accept(context, chain, batch, { simulations, eoas })
    endRead()
    const [members, contracts] = separate(chain, accepted, eoas)
    const transaction = { relayer, members, isApart: false, knownBlock, draft }
    const [charge] = members.filter(mayShareCommit)
    const { sent, unsent } = await (charge
      ? writeWithOthers(context, chain, relayer, { member: charge, knownBlock })
      : writeAndSend(context, chain, transaction))
    for (const each of sent) noteSigner(context, each, sent.length === 1)
    return [...contracts, ...unsent]
  } catch (error) {
    context.log('settlement-fault', {
      network: chain.network.id,
      requestIds: batch.flatMap(({ request }) => request.requestId ?? []),
      error,
    })
    for (const { done } of batch) done(Refusals.unavailable(error))
    return []
  } finally {
    endRead()
    leave()
    for (const each of batch) {
      if (each.reservation) context.payers.release(each.transfer, each.reservation)
      each.reservation = undefined
    }
  }
}

/**
 * Whether a payment is a charge that may be written together with others. Of payers with code each one is
 * compared with the budget after the one before it counts. What is sent again is refused in some states.
 */
function mayShareCommit({ transfer, simulatedCode, payment }: QueuedPayment): boolean {
  return transfer.upto !== undefined && !isIdentified(simulatedCode) && payment === undefined
}

/** Charges in one commit: signing more would delay other requests. */
const commitMax = 16

/**
 * Sends a charge in a transaction of its own, which shares its commit with those that are accepted at about
 * the same time. They collect only behind an open transaction. The result is that of `writeAndSend`.
 */
function writeWithOthers(
  context: Context,
  chain: ChainState,
  relayer: Relayer,
  charge: Omit<AcceptedCharge, 'resolve'>,
): Promise<Written> {
  const { promise, resolve } = Promise.withResolvers<Written>()
  const { accepted } = relayer
  accepted.push({ ...charge, resolve })
  const write = () => writeAccepted(context, chain, relayer)
  if (accepted.length === commitMax) write()
  else if (accepted.length === 1) {
    if (relayer.open === 0) setImmediate(write)
    else setTimeout(write, collectMs)
  }
  return promise
}

function writeAccepted(context: Context, chain: ChainState, relayer: Relayer): void {
  const charges = relayer.accepted.splice(0)
  if (charges.length === 0) return
  const write = (some: readonly AcceptedCharge[]) => {
    const members = some.map(({ member }) => member)
    // The earliest block, from which an external settlement is searched for.
    const [knownBlock = 0n] = some.map((each) => each.knownBlock).toSorted((a, b) => Number(a - b))
    const batch = { relayer, members, isApart: true, knownBlock, draft: undefined }
    return writeAndSend(context, chain, batch)
  }
  const writing = write(charges)
  for (const each of charges) {
    const isOf = (member: QueuedPayment) => member === each.member
    const own = ({ sent, unsent }: Written) => ({
      sent: sent.filter(isOf),
      unsent: unsent.filter(isOf),
    })
    // A charge that cannot be written must not keep the others back.
    const alone = (error: unknown) => {
      if (charges.length === 1 || each.member.isDecided) throw error
      return write([each])
    }
    each.resolve(writing.then(own, alone))
  }
}

/** Counts a batch that is being simulated, until the result is called. */
function countShare(relayer: Relayer, [first]: readonly QueuedPayment[]): () => void {
  if (!first || !isForOthers(first)) return () => {}
  relayer.facilitating++
  return () => void relayer.facilitating--
}

/** Returns the payments whose signer is known, or need not be known before the node call. */
function dropForged(
  { payers: { signers } }: Context,
  queued: readonly QueuedPayment[],
): readonly QueuedPayment[] {
  const isOne = queued.length === 1
  return queued.filter((each) => {
    const { transfer, isAlone, signer } = each
    if (signer.kind === 'checked') return true
    // A payment may also be sent alone because its payer has code, which does not identify the
    // signer.
    if (!isAlone && signers.mayDefer(transfer, isOne)) return true
    if (isForged(signer)) {
      each.done({ kind: 'unsigned' })
      return false
    }
    each.signer = { kind: 'checked' }
    return true
  })
}

/**
 * Returns the payments that pass, each with its reservation, and reports the reason to the others.
 * `eoas`: payers without code, where several were simulated together.
 */
async function accept(
  context: Context,
  chain: ChainState,
  batch: readonly QueuedPayment[],
  {
    simulations,
    eoas,
  }: { simulations: readonly Simulation[]; eoas: ReadonlySet<Address> | undefined },
): Promise<QueuedPayment[]> {
  const accepted: QueuedPayment[] = []
  for (const [index, queued] of batch.entries()) {
    const { transfer, signer } = queued
    // The time window may have ended while the payment waited.
    const late = checkWindow(transfer, context.now())
    const simulation = late
      ? Refusals.refuse(late.code, late.detail)
      : (simulations[index] ?? Refusals.unavailable(undefined))
    if (simulation.kind !== 'passes') {
      // The result of a forged signature must not affect payments that the payer did sign.
      const isUnsigned = simulation.kind !== 'unavailable' && isForged(signer)
      queued.done(isUnsigned ? { kind: 'unsigned' } : simulation)
      continue
    }
    // A payer with code passed although its key did not sign. Do not settle it as a key's payment.
    if (eoas && !eoas.has(transfer.payer) && isForged(signer)) {
      queued.done({ kind: 'unsigned' })
      continue
    }
    note(queued, simulation, eoas)
    const payer = await payerOf(context.ledger.payments, transfer, queued.simulatedCode)
    // Do not await between the checks and the reservation, so that one balance is not reserved
    // twice.
    let balance = simulation.balanceAtomic
    // The simulation has already subtracted what earlier members of the payer spend.
    for (const { transfer: other } of accepted)
      if (other.payer === transfer.payer) balance += other.amountAtomic
    const refusal = refuse(context, chain, queued, { payer, balance })
    if (refusal) {
      queued.done(refusal)
      continue
    }
    queued.fundsAtomic = isCharge(queued) ? undefined : balance
    queued.reservation = context.payers.reserve(transfer, payer)
    accepted.push(queued)
  }
  return accepted
}

/** Stores the results of the simulation for the transaction. */
function note(
  queued: QueuedPayment,
  { code, fees }: Extract<Simulation, { kind: 'passes' }>,
  eoas: ReadonlySet<Address> | undefined,
): void {
  const isEoa = code === 'unknown' && eoas?.has(queued.transfer.payer)
  queued.simulatedCode = isEoa ? 'eoa' : code
  queued.fees = fees
  if (queued.simulatedCode === 'eoa') queued.code = 'eoa'
  else if (queued.simulatedCode !== 'unknown') queued.code = 'contract'
}

function refuse(
  context: Context,
  chain: ChainState,
  queued: QueuedPayment,
  { payer, balance }: { payer: Payer; balance: bigint },
): Refusals.PaymentRefusal | undefined {
  const { request, transfer } = queued
  const { reserved, authorized, failures } = context.payers
  const ceiling = isCharge(queued) ? 0n : authorized.of(transfer)
  if (reserved.of(transfer) + ceiling + transfer.amountAtomic > balance) return Refusals.underWay
  const waitSeconds = failures.waitSeconds(payer)
  if (waitSeconds > 0) return Refusals.lockedOut(waitSeconds)
  return isIdentified(payer.code) ? Gas.refuseCode(context, chain, request.purpose) : undefined
}

/**
 * A charge of ours was reserved before: what is used goes before what is only authorized. What a
 * facilitator settles was not, and would let a payer drain its wallet at our gas.
 */
function isCharge({ request, transfer }: QueuedPayment): boolean {
  return transfer.upto !== undefined && request.purpose.product === 'gateway'
}

/** Removes payers with code from the shared transaction. They are sent alone at their next turn. */
function separate(
  { known }: ChainState,
  accepted: readonly QueuedPayment[],
  eoas: ReadonlySet<Address> | undefined,
): [members: readonly QueuedPayment[], contracts: readonly QueuedPayment[]] {
  if (!eoas) return [accepted, []]
  const members: QueuedPayment[] = []
  const contracts: QueuedPayment[] = []
  for (const each of accepted) {
    if (eoas.has(each.transfer.payer)) {
      members.push(each)
      continue
    }
    known.eoas.delete(each.transfer.payer)
    each.isAlone = true
    each.isUrgent = true
    contracts.push(each)
  }
  return [members, contracts]
}

/**
 * Adds the signer to the cache. Recovering it delays nothing here, because the bytes are already
 * sent. `isOne`: it shared no transaction, so no read separated payers with code.
 */
function noteSigner(
  { payers: { signers } }: Context,
  { transfer, code, signer }: QueuedPayment,
  isOne: boolean,
): void {
  const isKey = signer.kind === 'checked' ? code !== 'contract' : !isOne || signer.isKey()
  if (isKey) signers.add(transfer)
  else signers.remove(transfer)
}
