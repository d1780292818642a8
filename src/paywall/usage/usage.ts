import type { Authorization } from '../../../db/Authorization'
import type { Payment } from '../../../db/Payment'
import { isEventStream } from '../../protocol/Header'
import * as Problem from '../../protocol/Problem'
import * as Receipt from '../../protocol/Receipt'
import type { ChargedAuthorization } from '../../settlement/channels/state'
import { chargeMs } from '../../settlement/upto/ceilings'
import {
  answeredBy,
  type Cost,
  type Deliveries,
  type DeliveryOptions,
  type DeliveryRequest,
  type Fulfilled,
  keepAnswer,
  type Made,
  saleOf,
} from '../answer/delivery'
import { type Buffered, type Buffering, createBuffer } from '../answer/memory-limit'
import { freeByChannel, type Usage } from '../answer/receipts'
import { createKept, type Kept, type RemainderReader } from '../answer/remainder'
import type { Answer } from '../answer/store'
import {
  type Course,
  type Passage,
  passOn,
  type Reach,
  type StreamObserver,
} from '../answer/stream'
import { brokenOff, gone, receiptTokens, remadeMax } from '../answer/undelivered'
import * as Denial from '../Denial'

/*
 * Answers that are paid by what they use (x402 scheme `upto`). The answer is made first. A whole answer
 * is held until its charge is settled. A stream passes while it comes, and is settled at its end. An answer
 * at a fixed price, which a channel pays, is charged when it begins.
 */

export type UsageOptions = DeliveryOptions & {
  /** Bytes of answers that wait for the settlement of their charge. */
  heldMaxBytes: number
  /** Longest wait (ms) of a buyer for the settlement. */
  settleWaitMs: () => number
}

export type UsageDeliveries = ReturnType<typeof createUsageDeliveries>

type Context = UsageOptions & {
  deliveries: Deliveries
  buffer: Buffering
  /** Answers whose charge has no payment yet, by its id. They count as held. */
  waiting: Map<string, Answer>
}

type Delivery = {
  request: DeliveryRequest
  authorization: Authorization
  release: () => void
  /**
   * Lets the next request of a channel begin once this one is charged. Where its buyer has left, that is after
   * the release: a buyer that comes again by the same voucher gets what it paid for.
   */
  endTurn?: (() => void) | undefined
}

export function createUsageDeliveries(options: UsageOptions, deliveries: Deliveries) {
  const buffer = createBuffer(options.heldMaxBytes)
  const context: Context = { ...options, deliveries, buffer, waiting: new Map() }
  return {
    /**
     * The request for the answer of a charge that is settled and whose buyer has got nothing: it sends
     * the bytes that were charged. Without them it makes the answer again. One that costs more is on the
     * payer's credit: a buyer could leave a short answer and take a long one for its charge.
     */
    async repeating(request: DeliveryRequest, payment: Payment): Promise<DeliveryRequest> {
      const usage = await usageOf(context, payment)
      const kept = await options.answers.find(payment.id, options.now())
      if (kept !== undefined)
        return answeredBy(request, { usage, fulfil: async () => ({ delivered: true, ...kept }) })
      const waiting = context.waiting.get(payment.id)
      return answeredBy(request, {
        usage,
        keepLost: (answer) => keepAnswer(context, request, payment, { answer, isReserved: false }),
        fulfil: async ({ attempts }) =>
          waiting
            ? { delivered: true, ...waiting, headers: new Headers(waiting.headers) }
            : makeAgain(context, request, { ...payment, attempts }),
      })
    },
    /**
     * Makes the answer of an authorization, charges it and answers. Calls `release` when all is settled,
     * which for a stream is after its end. Throws ProblemError; `release` is then the caller's. `isFixed`:
     * it is charged its whole price.
     */
    async deliver(
      request: DeliveryRequest,
      authorization: Authorization,
      { isFixed = false, ...ends }: Pick<Delivery, 'release' | 'endTurn'> & { isFixed?: boolean },
    ): Promise<Response> {
      const delivery = { request, authorization, ...ends }
      const making = make(context, delivery)
      // Computed while the upstream works.
      if (isFixed && authorization.transfer.voucher?.kind === 'voucher')
        options.receipts.expecting(request.search)({ ...authorization, transaction: '' })
      const [token = ''] = receiptTokens(options.challengeSecrets, authorization.id)
      const made = await making
      if (authorization.transfer.method === 'channel' && made.chargeOf === undefined)
        return chargeFirst(context, delivery, made)
      const buffered = await bufferAnswer(context, delivery, made)
      if (buffered.kind === 'stream')
        return stream(context, { ...delivery, token }, made, buffered.body)
      return settleWhole(context, delivery, made, buffered)
    },
  }
}

/** What the answer of a payment by use has cost, for its receipt. */
async function usageOf(
  { settlement: { authorizations } }: Context,
  { id, transfer }: Payment,
): Promise<Usage | undefined> {
  const units = (await authorizations.findById(id))?.charge?.units
  const ceilingAtomic = transfer.upto?.ceilingAtomic
  return units && ceilingAtomic !== undefined ? { ceilingAtomic, units } : undefined
}

/** Asks the upstream. Throws ProblemError when there is no answer; then nothing is charged. */
async function make(context: Context, delivery: Delivery): Promise<Made> {
  const { request, authorization } = delivery
  const { id, transfer } = authorization
  // An answer must not take longer than the authorization that pays for it is valid.
  const signal = AbortSignal.timeout(Math.max(0, leftMs(context, authorization)))
  // A voucher may come again when its request has failed, so failures say nothing of the upstream.
  const isFree = transfer.method === 'channel'
  let made: Fulfilled
  try {
    made = await request.fulfil({ id, transfer, attempts: 1, isFree, signal })
  } catch (error) {
    await abandon(context, delivery, true)
    throw error
  }
  if (made.delivered) return made
  const { code, detail, upstreamStatus, cost } = made
  if (cost !== undefined && !signal.aborted) {
    await chargeFailed(context, delivery, cost)
    const price = `It costs ${cost.amountAtomic} atomic units.`
    throw failed([code, detail], upstreamStatus, price)
  }
  const ended = await abandon(context, delivery, code !== 'upstream-unreachable')
  const problem = failed(signal.aborted ? failures.late : [code, detail], upstreamStatus)
  // The deposit of the request has moved, so its client must count it.
  const deposited = ended.settled?.deposit && { 'payment-response': freeOf(ended) }
  throw deposited ? Problem.withHeaders(problem, deposited) : problem
}

/** Charges for an answer that did not come. Its settlement continues. */
async function chargeFailed(
  { settlement, settleWaitMs, log }: Context,
  { request, authorization }: Delivery,
  cost: Cost,
): Promise<void> {
  const { authorizations } = settlement
  const { requestId, client } = request
  // As if it had been delivered, so that the payment redeems no answer.
  const delivered = { upstreamStatus: 504, truncated: true }
  const charged = await authorizations.charge(authorization, cost, { delivered, client })
  log('charge', { requestId, payment: charged.id, amountAtomic: cost.amountAtomic })
  authorizations
    .settleCharge(charged, { waitMs: settleWaitMs(), requestId })
    .catch((error: unknown) => log('settlement-fault', { payment: charged.id, error }))
}

function failed(
  [code, detail]: readonly [Problem.Code, string],
  upstreamStatus: number | undefined,
  price = 'Nothing is charged.',
): Problem.ProblemError {
  const status = upstreamStatus === undefined ? {} : { upstreamStatus }
  const members = { reason: 'delivery_failed', ...status }
  return Problem.of(code, `${detail} ${price}`, { members })
}

/** `isLost`: the request may have reached the upstream. */
async function abandon(
  { settlement, log }: Context,
  { authorization, request: { client } }: Delivery,
  isLost: boolean,
): Promise<ChargedAuthorization> {
  const forwarded = { isLost, client }
  const ended = await settlement.authorizations.charge(authorization, nothing, forwarded)
  log('authorization-void', { payment: authorization.id })
  return ended
}

const nothing: Cost = { amountAtomic: 0n, units: {}, by: 'failed' }

/** Time that an answer that is made again may take, ms. */
const againMs = 5 * 60_000

/**
 * The answer of a settled charge. After two attempts, and where it costs more than the charge, it is on
 * the payer's credit: a crash must not lose a paid answer, and no buyer may get dear ones by fetching
 * cheap ones again.
 */
async function makeAgain(
  { buffer, settlement }: Context,
  request: DeliveryRequest,
  payment: Payment,
): Promise<Fulfilled> {
  const { lend } = settlement.authorizations
  const { amountAtomic: chargedAtomic } = payment.transfer
  if (payment.attempts > remadeMax && !(await lend(payment, chargedAtomic)))
    throw gone(payment, 'The answer was made again twice.')
  const made = await request.fulfil(payment)
  if (!made.delivered) return made
  const { status, headers, onEnd } = made
  const maxBytes = request.envelope?.maxBytes
  const buffered = await buffer.read(made.body, { isPassedOn: false, maxBytes, limitMs: againMs })
  if (buffered.kind !== 'whole') {
    if (buffered.kind === 'stream') buffered.body.cancel().catch(() => {})
    onEnd?.(true)
    return brokenOff(status)
  }
  const { amountAtomic, by } = chargeOf(made, payment, buffered.isComplete)
  const moreAtomic = amountAtomic - chargedAtomic
  if (by !== 'failed' && (moreAtomic <= 0n || (await lend(payment, moreAtomic)))) {
    if (isLong(buffered, request)) return { ...made, body: inPieces(buffered) }
    onEnd?.(false)
    buffered.release()
    return { delivered: true, status, headers, body: buffered.bytes }
  }
  onEnd?.(true)
  buffered.release()
  const detail = 'The answer that was made again is an error, or costs more than was charged.'
  return { delivered: false, upstreamStatus: status, code: 'upstream-failed', detail }
}

/**
 * Keeps an answer in memory until its authorization ends: a stored one belongs to a payment, and the
 * charge has none while no node can be asked.
 */
function keepWaiting(
  { waiting, now }: Context,
  { id, transfer }: Authorization,
  { answer, release }: { answer: Answer; release: () => void },
): void {
  waiting.set(id, answer)
  const end = () => {
    waiting.delete(id)
    release()
  }
  setTimeout(end, Number(transfer.validBefore) * 1000 - now()).unref()
}

async function bufferAnswer(
  context: Context,
  delivery: Delivery,
  { body, headers, status, onEnd }: Made,
): Promise<Extract<Buffered, { kind: 'whole' | 'stream' }>> {
  const { request, authorization } = delivery
  const isEvents = isEventStream(headers)
  const buffered = await context.buffer.read(body, {
    isPassedOn: isEvents && !context.settlement.authorizations.holdsStream(authorization),
    maxBytes: request.envelope?.maxBytes,
    limitMs: leftMs(context, authorization),
  })
  if (buffered.kind === 'whole' || buffered.kind === 'stream') return buffered
  onEnd?.(true)
  await abandon(context, delivery, true)
  throw failed(failures[buffered.kind], buffered.kind === 'full' ? undefined : status)
}

const failures = {
  broken: ['upstream-failed', 'The upstream broke its answer off.'],
  late: ['upstream-timeout', 'The upstream did not end its answer in time.'],
  full: ['not-ready', 'There is no room to hold the answer.'],
} as const

/** Longest answer to a voucher, which has no time of its own, ms. Less than any withdrawal takes. */
const voucherMs = 10 * 60_000

/** Time until the charge of an authorization must be settled, ms. */
function leftMs({ now }: Context, { transfer, createdAt }: Authorization): number {
  if (transfer.method === 'channel') return createdAt + voucherMs - now()
  return Number(transfer.validBefore) * 1000 - chargeMs - now()
}

/** Charges the price of an answer when it begins, and passes it on while it comes. */
async function chargeFirst(
  { deliveries, settlement, settleWaitMs }: Context,
  { request, authorization, release, endTurn }: Delivery,
  made: Made,
): Promise<Response> {
  const { requestId, client, signal, isAgain } = request
  const { amountAtomic } = authorization.transfer
  let isTaken = false
  const fulfil = async () => {
    isTaken = true
    return made
  }
  try {
    const forwarded = { client, begins: !signal.aborted }
    const cost = { amountAtomic, units: {} }
    const charged = await settlement.authorizations.charge(authorization, cost, forwarded)
    if (!signal.aborted) endTurn?.()
    const options = { waitMs: settleWaitMs(), requestId }
    const outcome = await settlement.authorizations.settleCharge(charged, options)
    if (outcome.kind !== 'confirmed') throw Denial.unpaid(outcome)
    const given = answeredBy(request, { fulfil, isAgain })
    return await deliveries.deliver(given, outcome, 'x402', release)
  } catch (error) {
    if (!isTaken) {
      if (made.body instanceof ReadableStream) made.body.cancel().catch(() => {})
      made.onEnd?.(true)
    }
    throw error
  }
}

/** Settles the charge, then answers. Throws ProblemError when it is not settled. */
async function settleWhole(
  context: Context,
  { request, authorization, release, endTurn }: Delivery,
  made: Made,
  buffered: Extract<Buffered, { kind: 'whole' }>,
): Promise<Response> {
  const { deliveries, receipts, settlement, settleWaitMs, log } = context
  const { authorizations } = settlement
  const { requestId, signal } = request
  const { status, headers } = made
  let isWaiting = true
  let isPassedOn = false
  let isOwed = false
  let hasPayment = false
  const keep = async (answer: Answer) => {
    isOwed = false
    await keepAnswer(context, request, authorization, { answer, isReserved: false })
  }
  try {
    const cost = chargeOf(made, authorization, buffered.isComplete)
    const begins = !signal.aborted
    const forwarded = { isLost: isLost(cost), client: request.client, begins }
    const charged = await authorizations.charge(authorization, cost, forwarded)
    if (!signal.aborted) endTurn?.()
    const { amountAtomic, reason } = cost
    const isPaid = charged.state !== 'void'
    // The delivery has the line of the sale.
    const line = { requestId, payment: charged.id, amountAtomic, reason }
    log('charge', line, () => (isPaid ? '' : undefined))
    if (charged.state === 'void') {
      headers.set('payment-response', freeOf(charged))
      release()
      return deliveries.respond(request, { status, headers, body: buffered.bytes })
    }
    const outcome = await authorizations.settleCharge(charged, {
      waitMs: settleWaitMs(),
      requestId,
      onSent: receipts.expecting(request.search),
      deliverOnConfirm: () => isWaiting && !signal.aborted && !settlement.needsSecond(charged),
    })
    isOwed = outcome.kind !== 'refused' && outcome.kind !== 'dead'
    hasPayment = outcome.kind !== 'unavailable'
    if (outcome.kind !== 'confirmed') throw Denial.unpaid(outcome)
    const { payment } = outcome
    if (settlement.needsSecond(payment) && !(await settlement.confirmTwice(payment))) {
      throw Denial.unpaid({ kind: 'pending', payment })
    }
    const answer = { delivered: true as const, status, headers, body: buffered.bytes }
    const usage: Usage = { ceilingAtomic: charged.transfer.amountAtomic, units: cost.units }
    const fulfil = async (): Promise<Made> => {
      if (!isLong(buffered, request)) return answer
      isPassedOn = true
      return { ...answer, body: inPieces(buffered), ...(made.onEnd && { onEnd: made.onEnd }) }
    }
    const given = answeredBy(request, { usage, fulfil, keepLost: keep })
    return await deliveries.deliver(given, outcome, 'x402', release)
  } catch (error) {
    // Its charge is or will be settled, and the next request gets these bytes.
    const answer = { status, headers: new Headers(headers), body: buffered.bytes }
    if (isOwed && hasPayment) await keep(answer)
    else if (isOwed) {
      isPassedOn = true
      made.onEnd?.(false)
      keepWaiting(context, authorization, { answer, release: buffered.release })
    }
    throw error
  } finally {
    // The settlement continues: an answer that it confirms later is delivered to the next request.
    isWaiting = false
    if (!isPassedOn) {
      made.onEnd?.(false)
      buffered.release()
    }
  }
}

/** A longer answer stays in memory for as long as its buyer reads it, so that counts as held. */
const atOnceMaxBytes = 1024 * 1024
const pieceBytes = 256 * 1024

function isLong({ bytes }: { bytes: Uint8Array }, { envelope }: DeliveryRequest): boolean {
  return bytes.byteLength > atOnceMaxBytes && envelope === undefined
}

/** The bytes as fast as the buyer reads; `release` is called at the end. */
function inPieces({ bytes, release }: Extract<Buffered, { kind: 'whole' }>) {
  let at = 0
  return new ReadableStream<Uint8Array>(
    {
      pull(controller) {
        const piece = bytes.subarray(at, at + pieceBytes)
        at += piece.byteLength
        if (piece.byteLength > 0) return controller.enqueue(piece)
        release()
        controller.close()
      },
      cancel: release,
    },
    { highWaterMark: 0 },
  )
}

/** The charge of an answer; without a meter, as after a reload, its whole ceiling. */
function chargeOf(
  made: Made,
  { transfer }: Pick<Authorization, 'transfer'>,
  isComplete: boolean,
): Cost {
  const whole = { amountAtomic: transfer.amountAtomic, units: {}, by: 'missing' }
  return made.chargeOf?.(isComplete) ?? whole
}

/** Whether nothing is charged although the meter does not say that the answer is free. */
function isLost({ amountAtomic, by }: Cost): boolean {
  return amountAtomic === 0n && (by === 'failed' || by === 'missing')
}

/** `PAYMENT-RESPONSE` of an answer that costs nothing. */
function freeOf({ transfer, settled }: ChargedAuthorization): string {
  if (settled) return freeByChannel(settled)
  const { network, payer } = transfer
  return Receipt.x402({ success: true, transaction: '', network, payer, amount: '0' })
}

/** Passes a stream on, and settles its charge at its end. `token` shows its receipt. */
function stream(
  context: Context,
  { request, authorization, release, token }: Delivery & { token: string },
  made: Made,
  body: ReadableStream<Uint8Array>,
): Response {
  const { deliveries, settlement, answers, now, log } = context
  const { id, transfer, purpose } = authorization
  const { status, headers } = made
  const { requestId } = request
  headers.set('payment-id', id)
  headers.set('payment-token', token)
  const own = new Headers(headers)
  const isKeyed = purpose.idempotencyKey !== undefined
  const kept = createKept((bytes) => {
    const answer = { status, headers: own, body: bytes }
    // Its room was reserved before the authorization. A fault ends its settlement here.
    if (isKeyed) return answers.store(authorization, answer, now())
    return keepAnswer(context, request, authorization, { answer, isReserved: false })
  })
  const passed = streamByUse(body, request.signal, {
    limitMs: leftMs(context, authorization),
    onEnd: made.onEnd,
    watch: deliveries.watch,
    afterPause: deliveries.afterPause,
    isFresh: settlement.isFresh,
    kept,
    // Without a key the bytes are for a buyer that has got none of them.
    onStart: () => {
      if (!isKeyed) kept.drop()
    },
    async charge({ end, reach }) {
      const cost = end === 'broken' ? nothing : chargeOf(made, authorization, end === 'whole')
      const got = { upstreamStatus: status, truncated: reach === 'truncated' }
      const delivered = reach === 'nothing' ? undefined : got
      const forwarded = { delivered, isLost: isLost(cost), client: request.client }
      const charged = await settlement.authorizations.charge(authorization, cost, forwarded)
      const { amountAtomic, reason } = cost
      const line = { requestId, payment: id, amountAtomic, outcome: reach, reason }
      const sold = { ...authorization, transfer: { ...transfer, amountAtomic } }
      log('charge', line, () => (amountAtomic === 0n ? undefined : saleOf(sold, reach, context)))
      return charged
    },
    settle: (charged, isWhole) => settle(context, charged, { requestId, status, kept, isWhole }),
    finish: release,
    log: (error) => log('settlement-fault', { requestId, payment: id, error }),
  })
  return new Response(passed, { status, headers })
}

type StreamEnd = { requestId: string; status: number; kept: Kept; isWhole: boolean }

/**
 * Settles a stream. Stores one of which the buyer has got nothing, and a whole one for its key: with a
 * key that replays it, its credential must not buy another one.
 */
async function settle(
  { settlement, settleWaitMs }: UsageOptions,
  charged: Authorization,
  { requestId, status, kept, isWhole }: StreamEnd,
): Promise<void> {
  if (charged.state === 'void') return
  const options = { waitMs: settleWaitMs(), requestId }
  const { kind } = await settlement.authorizations.settleCharge(charged, options)
  const isLost = charged.delivered === undefined
  const isOfUse = kind === 'confirmed' ? isWhole || isLost : kind === 'pending' && isLost
  if (!isOfUse || !(await kept.store()) || !isLost) return
  if (kind !== 'confirmed' || !isWhole || charged.purpose.idempotencyKey === undefined) return
  await settlement.beginDelivery(charged.id)
  const delivered = { delivered: true, upstreamStatus: status, truncated: false } as const
  await settlement.endDelivery(charged.id, delivered)
}

/** Code of the error of a source that was given up because its buyer did not read. */
export const stalledCode = 'buyer-stalled'

/** How often a stream that must not be passed on is looked at again, ms. */
const staleMs = 100

/** How a stream ended: read to its end, given up by us, or broken by the upstream for its buyer. */
export type End = 'whole' | 'cut' | 'broken'

export type UsageObserver = StreamObserver & {
  /** The stream is cut after this time, ms. */
  limitMs: number
  /** Whether the charge of this process would be written. While it would not, nothing is passed on. */
  isFresh: () => boolean
  /** The buyer gets the first bytes. */
  onStart: () => void
  /** Writes the charge; resolves when it is on the disk. Called once. */
  charge: (ended: { end: End; reach: Reach }) => Promise<Authorization>
  /** Settles the charge. `isWhole`: the source was read to its end. */
  settle: (charged: Authorization, isWhole: boolean) => Promise<void>
  /** All is settled, or left to the sweeps of settlement. */
  finish: () => void
  log: (error: unknown) => void
}

/**
 * Passes a stream on, and charges it at its end, before the buyer sees the end. When the buyer leaves,
 * or hardly reads, the source is read to its end all the same, because it reports its usage there.
 */
export function streamByUse(
  source: ReadableStream<Uint8Array>,
  signal: AbortSignal,
  observer: UsageObserver,
): ReadableStream<Uint8Array> {
  const follow = (passage: Passage): Course => {
    const { reader, rate } = passage
    let charging: Promise<boolean> | undefined
    const conclude = (end: End): Promise<boolean> => {
      if (charging !== undefined) return charging
      clearTimeout(timer)
      const isAll = end === 'whole' && !passage.hasLeft
      const reach = isAll ? 'complete' : passage.hasStarted ? 'truncated' : 'nothing'
      charging = chargeAndSettle(observer, { end, reach }).then((isCharged) => {
        passage.letGo(!isAll || !isCharged)
        return isCharged
      })
      return charging
    }
    const timer = setTimeout(() => {
      passage.fail()
      void conclude('cut')
      reader.cancel().catch(() => {})
    }, observer.limitMs)
    const isEnded = () => charging !== undefined
    return {
      start: observer.onStart,
      isEnded,
      async ready() {
        while (!observer.isFresh() && !passage.hasLeft && !isEnded()) await Bun.sleep(staleMs)
      },
      async complete() {
        await written()
        // Other processes may have taken this one for dead and ended the authorization. Then
        // nothing is charged, and the buyer must not take the answer for whole.
        return conclude('whole')
      },
      async breakOff(error) {
        // A buyer that stops reading before the end must not get the bytes before it for nothing:
        // neither when we give the stream up, nor when the upstream stops sending.
        const isOfBuyer = isStalled(error) || rate.hasStoodStill()
        if (!passage.hasLeft) await conclude(isOfBuyer ? 'cut' : 'broken')
      },
      leave: () => void drain(reader, observer.kept).then(conclude),
    }
  }
  return passOn(source, { ...observer, signal }, follow, { highWaterMark: 0 })
}

/**
 * Resolves when the server has written what was enqueued: Bun does that at the end of the turn of the
 * event loop in which it takes a chunk, which may be the next one. A charge on the disk before that
 * could outlive the answer in a crash.
 */
function written(): Promise<void> {
  return new Promise((resolve) => setImmediate(() => setImmediate(resolve)))
}

function isStalled(error: unknown): boolean {
  return (
    typeof error === 'object' && error !== null && 'code' in error && error.code === stalledCode
  )
}

/** Resolves when the charge is written; its settlement continues. False: it was not. Never rejects. */
async function chargeAndSettle(
  { charge, settle, finish, log }: UsageObserver,
  ended: { end: End; reach: Reach },
): Promise<boolean> {
  try {
    const charged = await charge(ended)
    void settle(charged, ended.end === 'whole')
      .catch(log)
      .finally(finish)
    return true
  } catch (error) {
    log(error)
    finish()
    return false
  }
}

/**
 * Reads a stream without a buyer, for the usage at its end. A source that breaks has not reported
 * it.
 */
async function drain(reader: Pick<RemainderReader, 'read'>, kept: Pick<Kept, 'add'>): Promise<End> {
  try {
    for (;;) {
      const { done, value } = await reader.read()
      if (done || value === undefined) return 'whole'
      kept.add(value)
    }
  } catch {
    return 'cut'
  }
}
