import type { Address } from 'viem'
import type { Charge } from '../../../db/Authorization'
import type { Payment, Protocol } from '../../../db/Payment'
import type { RefundLedger } from '../../../db/Refund'
import type { WriteEvent } from '../../log'
import * as Amount from '../../protocol/Amount'
import type * as Network from '../../protocol/Network'
import type { Settled } from '../../settlement/channels/state'
import { NotDeliverableError, type Outcome } from '../../settlement/send/Outcome'
import type { Settlement } from '../../settlement/settlement'
import * as Denial from '../Denial'
import type { Receipts, Usage } from './receipts'
import {
  createKept,
  createRemainders,
  type Envelope,
  readWhole,
  type StoreRemainder,
  type WholeOptions,
} from './remainder'
import { type Answer, type Answers, ownerOf } from './store'
import { createPulse, observed, type Reach } from './stream'
import { createTransferRates, type TransferRateMin } from './transfer-rate'
import {
  brokenOff,
  continuationTokens,
  createRedeeming,
  gone,
  isExhausted,
  left,
  type Undelivered,
} from './undelivered'

/**
 * Makes the paid answer, once per call. Returns faults of the source as data and never throws for
 * them.
 */
type Fulfilment = (payment: Attempt) => Promise<Fulfilled>

/** The payment, the authorization, or the use that an answer is made for. */
export type Attempt = Pick<Payment, 'id' | 'attempts'> & {
  transfer: Pick<Payment['transfer'], 'payer' | 'upto'>
  /** Nothing was paid for it. */
  isFree?: boolean
  /** Ends the attempt until its answer begins; it does not end a stream that is passed on. */
  signal?: AbortSignal
}

export type Fulfilled = Made | Undelivered

export type Made = {
  delivered: true
  status: number
  headers: Headers
  /** Bytes when the whole answer is available, else a stream. */
  body: Uint8Array | ReadableStream<Uint8Array>
  /** Called when the stream ends, before its end is sent. */
  onEnd?: (isCut: boolean) => void
  /** What it costs where the route has a meter; call it when the body was read or given up. */
  chargeOf?: ((isWhole: boolean) => Cost) | undefined
}

/** `by`: the rule that decided, such as `failed`. `reason`: why there is no usage, for the operator. */
export type Cost = Charge & { by: string; reason?: string | undefined }

type Confirmed = Omit<Extract<Outcome, { kind: 'confirmed' }>, 'kind'>

/** The part of a paid request that a delivery needs. */
export type DeliveryRequest = {
  /** As requested: HEAD stays HEAD. */
  method: string
  /** The query, '' or with its `?`, for receipts. */
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
  /** Whether its buyer may fetch a paid answer again: then the answer has the token for that. */
  isAgain?: boolean | undefined
  /** Keeps the bytes of an answer that its buyer has not got, without a receipt. Never rejects. */
  keepLost?: ((answer: Answer) => Promise<unknown>) | undefined
  fulfil: Fulfilment
}

export type DeliveryOptions = {
  settlement: Settlement
  answers: Answers
  receipts: Receipts
  challengeSecrets: readonly Uint8Array[]
  /** Minimum transfer rate of buyers that read a stream. */
  transferRateMin?: Partial<TransferRateMin> | undefined
  /** Symbol of the asset of a network, for the line of a sale. */
  symbolOf?: ((network: Network.Id) => string | undefined) | undefined
  refunds?: Pick<RefundLedger, 'find'> | undefined
  /** Whether the money of a payment is sent back by itself when its answer is never fetched. */
  isRefunded?: ((payment: Payment) => boolean) | undefined
  /** A payment was confirmed, and its upstream failed. */
  onUndelivered?:
    | ((of: { merchant: string; route: string; upstreamStatus: number | undefined }) => void)
    | undefined
  now: () => number
  /** Milliseconds that never decrease. */
  monotonic: () => number
  log: WriteEvent
}

export type Deliveries = ReturnType<typeof createPaidDeliveries>

type Context = DeliveryOptions & ReturnType<typeof createState>

/** One running delivery. What it is of decides what is recorded, and which headers are added. */
export type Delivery = {
  request: DeliveryRequest
  attempt: Attempt
  /** Headers that the answer gets when it is sent. */
  headers: () => Headings
  /**
   * Writes how much of an answer its buyer got, and resolves with it; `decide` is called at the write,
   * after this turn of the event loop. Never rejects.
   */
  record: (status: number, decide: () => Reach) => Promise<Reach>
  /** Ends a delivery whose buyer got nothing. Throws ProblemError when it is with another gateway. */
  end: () => Promise<void>
  /** Ends a delivery whose maker failed. Throws its problem. */
  refuse: (undelivered: Undelivered) => Promise<never>
  /** Stores a whole answer, and resolves with whether it did. Undefined: nothing is to be stored. */
  keep?: ((made: Made) => (body: Uint8Array) => Promise<boolean>) | undefined
  /** A whole answer, for the buyer that gets nothing of it. */
  lost?: Answer
  /** Called when the delivery state is final. */
  release: () => void
}

/** A running delivery of a payment. */
type Paid = {
  request: DeliveryRequest
  /** The payment with the running attempt, and the end of the redemption time. */
  payment: Payment
  protocol: Protocol
  /** By a channel. */
  settled: Settled | undefined
}

function createState(options: DeliveryOptions) {
  const { challengeSecrets, transferRateMin, isRefunded, now } = options
  const [secret] = challengeSecrets
  if (secret === undefined) throw new Error('no challenge secret')
  return {
    redeeming: createRedeeming(secret, now, isRefunded),
    remainders: createRemainders(),
    rates: createTransferRates(transferRateMin),
    /** Payments whose failed delivery was answered, and not yet written to the disk. */
    answering: new Set<string>(),
    /** Ends of deliveries that are being written. */
    recording: new Set<Promise<void>>(),
    pulse: createPulse(options),
  }
}

export function createPaidDeliveries(options: DeliveryOptions) {
  const context: Context = { ...options, ...createState(options) }
  const { settlement, remainders, answering, recording, rates, pulse } = context
  return {
    /**
     * Forwards a confirmed, undelivered payment and answers. Calls `release` when the delivery state
     * is final, which for a stream is at its end. Throws ProblemError, with the redeem token when the
     * maker failed; `release` is then the caller's.
     */
    async deliver(
      request: DeliveryRequest,
      outcome: Confirmed,
      protocol: Protocol,
      release: () => void,
    ): Promise<Response> {
      const payment = await begin(context, request, outcome)
      const settled = await settledBy(context, outcome)
      const paid = { request, payment, protocol, settled }
      return deliver(context, { ...ofPayment(context, paid), release })
    },
    /** Makes an answer and hands it over, like that of a payment. Throws ProblemError. */
    handOver: (delivery: Delivery): Promise<Response> => deliver(context, delivery),
    /** The stored answer of an idempotency key, marked as a replay. */
    async replay(answer: Answer, payment: Payment, request: Receipted) {
      const headers = replayed(answer)
      const settled = await settledBy(context, { payment })
      setAll(headers, headingsOf(context, payment, { ...request, settled }))
      return new Response(answer.body, { status: answer.status, headers })
    },
    /** The headers of an answer to a payment: its receipt, and the token that fetches it again. */
    headingsOf: (payment: Payment, request: Receipted) => headingsOf(context, payment, request),
    /** Whether a failed delivery of the payment was answered with the token that redeems it. */
    async wasAnswered({ id, answered }: Payment): Promise<boolean> {
      if (answered || answering.has(id)) return true
      // It may have been written since the payment was read.
      return (await settlement.findById(id))?.answered === true
    },
    /** The response of a whole answer. */
    respond,
    /** Watches how fast buyers read a stream. */
    watch: rates.watch,
    /** See `createPulse`. */
    afterPause: pulse.afterPause,
    /** Cancels the answers that are still read for keys; resolves when that is recorded. */
    async stop(): Promise<void> {
      pulse.stop()
      await remainders.stop()
      // The ends of this turn of the event loop.
      await new Promise((resolve) => setImmediate(resolve))
      await Promise.all(recording)
    },
  }
}

/** Starts the next attempt, unless it was started with the confirmation. Throws ProblemError. */
async function begin(
  context: Context,
  { signal }: DeliveryRequest,
  { payment, deliveryStarted }: Confirmed,
): Promise<Payment> {
  const { settlement, now, redeeming } = context
  if (signal.aborted) {
    if (deliveryStarted) await endUndelivered(context, payment, undefined)
    throw left()
  }
  const over = whyOver(payment, now())
  if (over !== undefined) {
    const isBack = payment.delivery !== 'delivered' && context.isRefunded?.(payment) === true
    const detail = isBack ? `${over} The money is sent back by itself.` : over
    throw gone(payment, detail, await context.refunds?.find(payment.id))
  }
  const started = deliveryStarted
    ? payment
    : await settlement
        .beginDelivery(payment.id, payment.attempts)
        .catch((error) => explain(context, payment, error))
  // The stored time must equal the time in the answer.
  return { ...started, redeemUntil: redeeming.untilOf(started) }
}

/** Why a payment gets no further attempt; undefined: it may have one. */
export function whyOver(payment: Payment, now: number): string | undefined {
  const { delivery, state, redeemUntil } = payment
  if (delivery === 'delivered' || state !== 'confirmed') return 'This payment has been delivered.'
  if (isExhausted(payment)) return 'All attempts have been used.'
  const isLate = redeemUntil !== undefined && now > redeemUntil
  return isLate ? 'The time to redeem this payment is over.' : undefined
}

function ofPayment(context: Context, paid: Paid): Omit<Delivery, 'release'> {
  const { request, payment, protocol, settled } = paid
  const { search, usage, isAgain } = request
  return {
    request,
    attempt: payment,
    headers: () => headingsOf(context, payment, { protocol, search, usage, isAgain, settled }),
    record: recordOf(context, paid),
    end: () => endUndelivered(context, payment, undefined),
    refuse: (undelivered) => refuse(context, paid, undelivered),
    keep: payment.purpose.idempotencyKey === undefined ? undefined : keeper(context, paid),
  }
}

type Receipted = Pick<DeliveryRequest, 'search' | 'usage' | 'isAgain'> & {
  protocol: Protocol
  settled?: Settled | undefined
}

/** What the headers show of the channel of a payment: as this request left it, else as it is now. */
function settledBy(
  { settlement }: Context,
  { settled, payment }: Confirmed,
): Settled | undefined | Promise<Settled | undefined> {
  if (settled || payment.transfer.method !== 'channel') return settled
  return settlement.channels.settledBy(payment)
}

function headingsOf(
  { receipts, challengeSecrets }: Context,
  payment: Payment,
  { isAgain, ...receipted }: Receipted,
): Headings {
  const [token = ''] = isAgain ? continuationTokens(challengeSecrets, payment.id) : []
  const headings = receipts.headersOf(payment, receipted)
  return isAgain ? { ...headings, 'payment-redeem': token } : headings
}

/** The headers of a stored answer, which mark it as a replay. */
export function replayed({ headers }: Pick<Answer, 'headers'>): Headers {
  const own = new Headers(headers)
  own.set('idempotency-replayed', 'true')
  return own
}

/**
 * A request with an answer of its own. Only the members of a delivery are read: others of a sale
 * parse its body.
 */
export function answeredBy(
  { method, search, requestId, signal, envelope }: DeliveryRequest,
  own: Pick<DeliveryRequest, 'usage' | 'keepLost' | 'fulfil' | 'isAgain'>,
): DeliveryRequest {
  return { method, search, requestId, signal, envelope, ...own }
}

async function deliver(context: Context, delivery: Delivery): Promise<Response> {
  const { request, attempt } = delivery
  let made: Fulfilled
  try {
    made = await request.fulfil(attempt)
    await context.pulse.afterPause()
  } catch (error) {
    await delivery.end()
    throw error
  }
  if (!made.delivered) return delivery.refuse(made)
  const { status, headers, body } = made
  if (request.keepLost !== undefined && body instanceof Uint8Array)
    return hand(
      context,
      { ...delivery, lost: { status, headers: new Headers(headers), body } },
      made,
    )
  return hand(context, delivery, made)
}

/** Hands an answer over. */
async function hand(context: Context, delivery: Delivery, made: Made): Promise<Response> {
  const { request, attempt } = delivery
  const { status, headers, body, onEnd } = made
  const keep = delivery.keep?.(made)
  const storeRemainder: StoreRemainder = (reader, kept) =>
    context.remainders.store(attempt.transfer.payer, reader, kept)
  if (request.envelope !== undefined) {
    const options = { envelope: request.envelope, kept: createKept(keep), storeRemainder }
    return enclose(context, delivery, made, options)
  }
  if (body instanceof Uint8Array) {
    // The answer is stored for the key, so an abort does not count another delivery.
    const isStored = (await keep?.(body)) === true
    const wasPaused = context.pulse.beforeNextTurn()
    const isLost = () => !isStored && (request.signal.aborted || wasPaused())
    const reach = () => (isLost() ? 'nothing' : 'complete')
    // The answer is written in this turn of the event loop and recorded afterwards. A crash or a pause
    // in between can repeat an answer, and never lose a paid one.
    return answer(delivery, { status, headers, body }, () =>
      record(context, delivery, status, reach),
    )
  }
  setAll(headers, delivery.headers())
  const passed = observed(body, request.signal, {
    record: (decide) => record(context, delivery, status, decide),
    finish: delivery.release,
    onEnd,
    kept: createKept(keep),
    storeRemainder,
    watch: context.rates.watch,
    afterPause: context.pulse.afterPause,
  })
  return new Response(passed, { status, headers })
}

/** Reads a whole answer and sends it inside a message. Throws ProblemError. */
async function enclose(
  context: Context,
  delivery: Delivery,
  { status, headers, body }: Made,
  options: Omit<WholeOptions, 'signal'>,
): Promise<Response> {
  const { signal } = delivery.request
  const { taken } = options.envelope
  const whole = await readWhole(body, { ...options, signal })
  if (whole.kind === 'left') {
    await record(context, delivery, status, () => (whole.isStored ? 'complete' : 'nothing'))
    throw left()
  }
  if (whole.kind === 'cut') return delivery.refuse(brokenOff(status))
  const { bytes, isStored, truncated } = whole
  const reach = (isTaken: boolean): Reach => {
    if (isStored) return 'complete'
    if (!isTaken || signal.aborted) return 'nothing'
    return truncated ? 'truncated' : 'complete'
  }
  return answer(delivery, { status, headers, body: bytes }, async () => {
    const isTaken = await taken
    const wasPaused = context.pulse.beforeNextTurn()
    await record(context, delivery, status, () => reach(isTaken && !wasPaused()))
  })
}

/** Sends a whole answer with its headers. `ended` is called when the answer is complete. */
function answer(delivery: Delivery, whole: Answer, ended: () => Promise<void>): Response {
  setAll(whole.headers, delivery.headers())
  void ended().then(delivery.release)
  return respond(delivery.request, whole)
}

/** The response of a whole answer; HEAD and some statuses have no body. */
function respond(
  { method }: Pick<DeliveryRequest, 'method'>,
  { status, headers, body }: Answer,
): Response {
  const isBodiless = method === 'HEAD' || status === 204 || status === 304
  return new Response(isBodiless ? null : body, { status, headers })
}

/** Records how much of an answer its buyer got; `decide` is called at the write. Never rejects. */
function record(
  { recording }: Context,
  delivery: Delivery,
  status: number,
  decide: () => Reach,
): Promise<void> {
  const { request, lost } = delivery
  const recorded = delivery
    .record(status, decide)
    .then(async (reach) => {
      if (reach === 'nothing' && lost !== undefined) await request.keepLost?.(lost)
    })
    .finally(() => recording.delete(recorded))
  recording.add(recorded)
  return recorded
}

function recordOf(context: Context, { request, payment }: Paid): Delivery['record'] {
  const { settlement, redeeming, log } = context
  return async (status, decide) => {
    const fields = { requestId: request.requestId, payment: payment.id, status }
    let outcome = decide()
    try {
      await settlement.endDelivery(payment.id, () => {
        outcome = decide()
        if (outcome === 'nothing') return redeeming.undelivered(payment, status)
        return { delivered: true, upstreamStatus: status, truncated: outcome === 'truncated' }
      })
      log('payment-delivery', { ...fields, outcome }, () => saleOf(payment, outcome, context))
    } catch (error) {
      // No caller waits for this result. The buyer has the answer, and could at worst get it
      // again.
      log('payment-delivery-unrecorded', { ...fields, error })
    }
    return outcome
  }
}

/**
 * `sold api /hello 0.01 USDC from 0x7099...79C8 in 0.2 s`. Undefined where the buyer got nothing. The
 * time begins with the payment.
 */
export function saleOf(
  { transfer, purpose, createdAt }: Pick<Payment, 'transfer' | 'purpose' | 'createdAt'>,
  outcome: Reach,
  { symbolOf, now }: Pick<DeliveryOptions, 'symbolOf' | 'now'>,
): string | undefined {
  if (outcome === 'nothing') return undefined
  const { amountAtomic, network, payer } = transfer
  const amount = `${Amount.toDecimal(amountAtomic, 6).replace(/\.?0+$/, '')} ${symbolOf?.(network) ?? 'USD'}`
  const seconds = (Math.max(0, now() - createdAt) / 1000).toFixed(1)
  const cut = outcome === 'truncated' ? '; the answer was cut' : ''
  return `sold ${purpose.merchant} ${purpose.route || '/'} ${amount} from ${short(payer)} in ${seconds} s${cut}`
}

/** An address for a line of the log that a person reads. */
export function short(address: Address): string {
  return `${address.slice(0, 6)}\u2026${address.slice(-4)}`
}

/** Throws the problem of a delivery that failed, with the token that redeems its payment. */
async function refuse(
  context: Context,
  { request, payment, protocol }: Paid,
  undelivered: Undelivered,
): Promise<never> {
  const { redeeming, answering, pulse, onUndelivered, log } = context
  const { upstreamStatus } = undelivered
  const problem = redeeming.problem(payment, undelivered, protocol)
  // The token must be on the disk before its buyer has it.
  await endUndelivered(context, payment, upstreamStatus)
  await pulse.afterPause()
  // Mark it after the answer is made: until then its buyer has only the credential, no token. A buyer
  // that has left by now gets no token, and may be back before this turn of the event loop ends.
  if (!request.signal.aborted) {
    answering.add(payment.id)
    const answered = request.envelope?.taken ?? Promise.resolve(true)
    void answered.then((isTaken) => {
      const wasPaused = pulse.beforeNextTurn()
      setImmediate(() => {
        if (!isTaken || request.signal.aborted || wasPaused()) answering.delete(payment.id)
        else markAnswered(context, payment, request.requestId)
      })
    })
  }
  const fields = { requestId: request.requestId, payment: payment.id, upstreamStatus }
  log('payment-undelivered', fields)
  onUndelivered?.({ ...payment.purpose, upstreamStatus })
  throw problem
}

/** Stores the answer under the buyer's key, without a receipt, because a replay adds its own. */
function keeper(context: Context, { request, payment }: Paid): Delivery['keep'] {
  return ({ status, headers }) => {
    const own = new Headers(headers)
    return (body) => {
      const answer = { status, headers: own, body }
      // Its room was reserved before the payment.
      return keepAnswer(context, request, payment, { answer, isReserved: true })
    }
  }
}

/**
 * Stores an answer, where there is room. A fault costs the replay, not the answer. False: it is not
 * stored. Never rejects.
 */
export async function keepAnswer(
  { answers, now, log }: Pick<DeliveryOptions, 'answers' | 'now' | 'log'>,
  { requestId }: Pick<DeliveryRequest, 'requestId'>,
  payment: Pick<Payment, 'id' | 'transfer'>,
  { answer, isReserved }: { answer: Answer; isReserved: boolean },
): Promise<boolean> {
  try {
    const free = isReserved ? () => {} : await answers.reserve(ownerOf(payment.transfer), now())
    if (free === undefined) return false
    return await answers.store(payment, answer, now()).finally(free)
  } catch (error) {
    log('answer-not-kept', { requestId, payment: payment.id, error })
    return false
  }
}

function markAnswered(
  { settlement, log, answering }: Context,
  { id }: Payment,
  requestId: string,
): void {
  settlement
    .markAnswered(id)
    .catch((error: unknown) => log('answer-unrecorded', { requestId, payment: id, error }))
    .finally(() => answering.delete(id))
}

type Headings = Readonly<Record<string, string>>

function setAll(headers: Headers, added: Headings): void {
  for (const [name, value] of Object.entries(added)) headers.set(name, value)
}

/**
 * Ends a delivery whose buyer got nothing. Throws ProblemError when another gateway has taken it
 * over.
 */
async function endUndelivered(
  context: Context,
  payment: Payment,
  upstreamStatus: number | undefined,
): Promise<void> {
  const ended = context.redeeming.undelivered(payment, upstreamStatus)
  await context.settlement
    .endDelivery(payment.id, ended)
    .catch((error) => explain(context, payment, error))
}

/**
 * Throws the problem of a delivery that could not begin or end. A claim covers one process only.
 * Other gateways may have taken this delivery over, when they took this process for dead.
 */
async function explain(
  { settlement, refunds }: Context,
  payment: Payment,
  error: unknown,
): Promise<never> {
  if (!(error instanceof NotDeliverableError)) throw error
  const refund = await refunds?.find(payment.id)
  if (refund !== undefined) throw gone(payment, '', refund)
  const current = await settlement.findById(payment.id)
  if (current?.delivery === 'delivered') throw gone(current, 'This payment has been delivered.')
  // Another gateway delivers it, or did so until this read. The limit counts its attempt, too.
  // After a failover that lost commits the payment may have to be confirmed again.
  if (current !== undefined) throw Denial.inProgress()
  throw error
}
