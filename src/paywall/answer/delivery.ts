import type { Payment, Protocol } from '../../../db/Payment'
import type { WriteEvent } from '../../log'
import * as Crypto from '../../protocol/Crypto'
import type { Delivered } from '../../settlement/send/delivery'
import { NotDeliverableError, type Outcome } from '../../settlement/send/Outcome'
import type { Settlement } from '../../settlement/settlement'
import * as Denial from '../Denial'
import type { Fulfilled, Fulfilment, Made } from './Fulfilment'
import { createPulse } from './pulse'
import { createReceipts, type Usage } from './receipts'
import { createRecorder, type RecordEnd, type RecorderOptions } from './recorder'
import { createKept, createRemainders, type Envelope, readWhole } from './remainder'
import type { Answer, Answers } from './store'
import { observed, type Reach } from './stream'
import { createTransferRates, type TransferRateMin } from './transfer-rate'
import {
  brokenOff,
  createRedeeming,
  gone,
  isExhausted,
  left,
  redeemTokenHash,
  type Undelivered,
} from './undelivered'

type Confirmed = Pick<Extract<Outcome, { kind: 'confirmed' }>, 'payment' | 'deliveryStarted'>

/** The part of a paid request that a delivery needs. */
export type DeliveryRequest = {
  /** As requested: HEAD stays HEAD. */
  method: string
  /** Absolute URL of what is bought, and its query, '' or with its `?`, for receipts. */
  resource: string
  search: string
  requestId: string
  /** The address of the client, under which its failures are counted. */
  readonly client?: string | undefined
  /** Aborts when the buyer disconnects. */
  signal: AbortSignal
  /** Sends the answer inside a message; undefined when the response is sent as it is. */
  envelope?: Envelope | undefined
  /** For an answer that is charged by its use: its units and ceiling, for the receipt. */
  usage?: Usage | undefined
  /** Keeps the bytes of an answer that its buyer has not got, without a receipt. Never rejects. */
  keepLost?: ((answer: Answer) => Promise<unknown>) | undefined
  fulfil: Fulfilment
}

export type DeliveryOptions = {
  settlement: Settlement
  answers: Answers
  challengeSecrets: readonly Uint8Array[]
  receiptKey: Uint8Array
  /** Minimum transfer rate of buyers that read a stream. */
  transferRateMin?: Partial<TransferRateMin> | undefined
  /** Symbol of the asset of a network, for the line of a sale. */
  symbolOf?: RecorderOptions['symbolOf']
  now: () => number
  log: WriteEvent
}

export type Deliveries = ReturnType<typeof createDeliveries>

type Context = ReturnType<typeof createContext>

/** One running delivery. */
type Delivery = {
  request: DeliveryRequest
  /** The payment with the running attempt, and the end of the redemption time. */
  payment: Payment
  protocol: Protocol
  record: RecordEnd
  /** Ends the delivery. */
  finish: () => void
}

function createContext(options: DeliveryOptions) {
  const { now } = options
  const [secret] = options.challengeSecrets
  if (secret === undefined) throw new Error('no challenge secret')
  const issuer = { key: options.receiptKey, address: Crypto.addressOf(options.receiptKey) }
  const redeeming = createRedeeming(secret, now)
  return {
    options,
    receipts: createReceipts(issuer, now),
    redeeming,
    remainders: createRemainders(),
    rates: createTransferRates(options.transferRateMin),
    /** Payments whose failed delivery was answered, and not yet written to the disk. */
    answering: new Set<string>(),
    recorder: createRecorder({ ...options, redeeming }),
    pulse: createPulse(now),
    /** Number of running deliveries. */
    open: 0,
  }
}

export function createDeliveries(options: DeliveryOptions) {
  const { settlement } = options
  const context = createContext(options)
  const { receipts, remainders, answering, rates, pulse, recorder } = context
  return {
    /** Signs the receipt of a payment in advance, while the payment is being confirmed. */
    expect: receipts.expect,
    /**
     * Forwards a confirmed, undelivered payment and answers. Calls `release` when the delivery state
     * is final, which for a stream is at its end. Throws ProblemError, with the redeem token when the
     * maker failed.
     */
    async deliver(
      request: DeliveryRequest,
      outcome: Confirmed,
      protocol: Protocol,
      release: () => void,
    ): Promise<Response> {
      const payment = await begin(context, request, outcome)
      const record = recorder.of(request, payment)
      const finish = () => {
        context.open--
        release()
      }
      return deliver(context, { request, payment, protocol, record, finish })
    },
    /** The stored answer of an idempotency key, marked as a replay. */
    replay(answer: Answer, payment: Payment, request: { protocol: Protocol; search: string }) {
      const headers = new Headers(answer.headers)
      headers.set('idempotency-replayed', 'true')
      setAll(headers, receipts.headersOf(payment, request))
      return new Response(answer.body, { status: answer.status, headers })
    },
    findByToken: (token: string) => settlement.findByRedeemToken(redeemTokenHash(token)),
    /** Whether a failed delivery of the payment was answered with the token that redeems it. */
    async wasAnswered({ id, answered }: Payment): Promise<boolean> {
      if (answered || answering.has(id)) return true
      // It may have been written since the payment was read.
      return (await settlement.findById(id))?.answered === true
    },
    /** Watches how fast buyers read streams. */
    rates,
    /** See `createPulse`. */
    afterPause: pulse.afterPause,
    inFlight: () => context.open,
    /** Cancels the answers that are still read for keys; resolves when that is recorded. */
    async stop(): Promise<void> {
      pulse.stop()
      await remainders.stop()
      await recorder.idle()
    },
  }
}

/** Starts the next attempt, unless it was started with the confirmation. Throws ProblemError. */
async function begin(
  { options: { settlement, now }, redeeming }: Context,
  { signal }: DeliveryRequest,
  { payment, deliveryStarted }: Confirmed,
): Promise<Payment> {
  if (signal.aborted) {
    if (deliveryStarted)
      await endUndelivered(settlement, payment, redeeming.undelivered(payment, undefined))
    throw left()
  }
  if (payment.delivery === 'delivered' || payment.state !== 'confirmed') {
    throw gone(payment, 'This payment has been delivered.')
  }
  if (isExhausted(payment)) throw gone(payment, 'All attempts have been used.')
  if (payment.redeemUntil !== undefined && now() > payment.redeemUntil) {
    throw gone(payment, 'The time to redeem this payment is over.')
  }
  const started = deliveryStarted
    ? payment
    : await settlement
        .beginDelivery(payment.id, payment.attempts)
        .catch((error) => explain(settlement, payment, error))
  // The stored time must equal the time in the answer.
  return { ...started, redeemUntil: redeeming.untilOf(started) }
}

async function deliver(context: Context, delivery: Delivery): Promise<Response> {
  const { request, payment } = delivery
  context.open++
  let made: Fulfilled
  try {
    made = await request.fulfil(payment)
    await context.pulse.afterPause()
  } catch (error) {
    context.open--
    const ended = context.redeeming.undelivered(payment, undefined)
    await endUndelivered(context.options.settlement, payment, ended)
    throw error
  }
  if (!made.delivered) return refuse(context, delivery, made)
  return hand(context, { ...delivery, record: keepingLost(delivery, made) }, made)
}

/** Records as before, and keeps an answer of which the buyer has got nothing. */
function keepingLost(
  { request: { keepLost }, record }: Delivery,
  { status, headers, body }: Made,
): RecordEnd {
  if (keepLost === undefined || !(body instanceof Uint8Array)) return record
  const own = new Headers(headers)
  return async (upstreamStatus, decide) => {
    let reach: Reach | undefined
    await record(upstreamStatus, () => {
      reach = decide()
      return reach
    })
    if (reach === 'nothing') await keepLost({ status, headers: own, body })
  }
}

/** Hands an answer over. */
async function hand(context: Context, delivery: Delivery, made: Made): Promise<Response> {
  const { request, payment } = delivery
  const keep = keeper(context, delivery, made)
  if (request.envelope !== undefined) {
    return enclose(context, delivery, { ...made, envelope: request.envelope, keep })
  }
  const { status, headers, body, onEnd } = made
  if (body instanceof Uint8Array) {
    // The answer is stored for the key, so an abort does not count another delivery.
    const isStored = (await keep?.(body)) === true
    const isTaken = () => isStored || !request.signal.aborted
    return answer(context, delivery, { ...made, body }, () => {
      // The answer is written in this turn of the event loop and recorded afterwards. A crash in
      // between can repeat an answer, and never lose a paid one.
      return delivery.record(made.status, () => (isTaken() ? 'complete' : 'nothing'))
    })
  }
  setAll(headers, receiptOf(context, delivery))
  const observer = {
    record: delivery.record.bind(undefined, status),
    finish: delivery.finish,
    onEnd,
    kept: createKept(keep),
    storeRemainder: context.remainders.store.bind(undefined, payment.transfer.payer),
    watch: context.rates.watch,
    afterPause: context.pulse.afterPause,
  }
  return new Response(observed(body, request.signal, observer), { status, headers })
}

type Keep = ((body: Uint8Array) => Promise<boolean>) | undefined

/** Reads a whole answer and sends it inside a message. Throws ProblemError. */
async function enclose(
  context: Context,
  delivery: Delivery,
  { status, headers, body, envelope, keep }: Made & { envelope: Envelope; keep: Keep },
): Promise<Response> {
  const { request, payment, record } = delivery
  const { signal } = request
  const kept = createKept(keep)
  const storeRemainder = context.remainders.store.bind(undefined, payment.transfer.payer)
  const whole = await readWhole(body, { envelope, signal, kept, storeRemainder })
  if (whole.kind === 'left') {
    await record(status, () => (whole.isStored ? 'complete' : 'nothing'))
    context.open--
    throw left()
  }
  if (whole.kind === 'cut') return refuse(context, delivery, brokenOff(status))
  const { bytes, isStored, truncated } = whole
  const reach = (isTaken: boolean): Reach => {
    if (isStored) return 'complete'
    if (!isTaken || signal.aborted) return 'nothing'
    return truncated ? 'truncated' : 'complete'
  }
  return answer(context, delivery, { status, headers, body: bytes }, () =>
    envelope.taken.then((isTaken) => record(status, () => reach(isTaken))),
  )
}

/** Sends a whole answer with its receipt. `record` is called when the answer is complete. */
function answer(
  context: Context,
  delivery: Delivery,
  { status, headers, body }: Answer,
  record: () => Promise<void>,
): Response {
  const { request, finish } = delivery
  setAll(headers, receiptOf(context, delivery))
  void record().then(finish)
  const isBodiless = request.method === 'HEAD' || status === 204 || status === 304
  return new Response(isBodiless ? null : body, { status, headers })
}

/** Receipt headers of an answer. */
function receiptOf({ receipts }: Context, { request, payment, protocol }: Delivery) {
  const { search, usage } = request
  return receipts.headersOf(payment, { protocol, search, usage })
}

/** Throws the problem of a delivery that failed, with the token that redeems its payment. */
async function refuse(
  context: Context,
  { request, payment, protocol }: Delivery,
  undelivered: Undelivered,
): Promise<never> {
  const { options, redeeming, answering } = context
  const { upstreamStatus } = undelivered
  context.open--
  const problem = redeeming.problem(payment, undelivered, protocol)
  // The token must be on the disk before its buyer has it.
  const ended = redeeming.undelivered(payment, upstreamStatus)
  await endUndelivered(options.settlement, payment, ended)
  // Mark it after the answer is made: until then its buyer has only the credential, no token.
  answering.add(payment.id)
  const answered = request.envelope?.taken ?? Promise.resolve(true)
  void answered.then((isTaken) =>
    setImmediate(() => {
      if (!isTaken || request.signal.aborted) answering.delete(payment.id)
      else markAnswered(context, payment, request.requestId)
    }),
  )
  const fields = { requestId: request.requestId, payment: payment.id, upstreamStatus }
  options.log('payment-undelivered', fields)
  throw problem
}

/**
 * Stores the answer under the buyer's key, without a receipt, because a replay adds its own. A
 * fault costs the replay, not the answer.
 */
function keeper(
  { options: { answers, now, log } }: Context,
  { request: { requestId }, payment }: Delivery,
  { status, headers }: Omit<Answer, 'body'>,
): Keep {
  if (payment.purpose.idempotencyKey === undefined) return undefined
  const own = new Headers(headers)
  return async (body) => {
    try {
      return await answers.store(payment, { status, headers: own, body }, now())
    } catch (error) {
      log('answer-not-kept', { requestId, payment: payment.id, error })
      return false
    }
  }
}

function markAnswered(
  { options: { settlement, log }, answering }: Context,
  { id }: Payment,
  requestId: string,
): void {
  settlement
    .markAnswered(id)
    .catch((error: unknown) => log('answer-unrecorded', { requestId, payment: id, error }))
    .finally(() => answering.delete(id))
}

function setAll(headers: Headers, added: Readonly<Record<string, string>>): void {
  for (const [name, value] of Object.entries(added)) headers.set(name, value)
}

/**
 * Ends a delivery whose buyer got nothing. Throws ProblemError when another gateway has taken it
 * over.
 */
async function endUndelivered(
  settlement: Pick<Settlement, 'findById' | 'endDelivery'>,
  payment: Payment,
  ended: Delivered,
): Promise<void> {
  try {
    await settlement.endDelivery(payment.id, ended)
  } catch (error) {
    await explain(settlement, payment, error)
  }
}

/**
 * Throws the problem of a delivery that could not begin or end. A claim covers one process only.
 * Other gateways may have taken this delivery over, when they took this process for dead.
 */
async function explain(
  settlement: Pick<Settlement, 'findById'>,
  payment: Payment,
  error: unknown,
): Promise<never> {
  if (!(error instanceof NotDeliverableError)) throw error
  const current = await settlement.findById(payment.id)
  if (current?.delivery === 'delivered') throw gone(current, 'This payment has been delivered.')
  // Another gateway delivers it, or did so until this read. The limit counts its attempt, too.
  // After a failover that lost commits the payment may have to be confirmed again.
  if (current !== undefined) throw Denial.inProgress()
  throw error
}
