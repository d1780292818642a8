import * as Crypto from '../protocol/Crypto'
import type * as Receipt from '../protocol/Receipt'
import type { Outcome, Payment, Protocol } from '../settlement/Payment'
import type { Settlement } from '../settlement/settle'
import { createPaces, type PaceMin, type Paces } from './pace'
import { signReceipt, successHeaders } from './receipts'
import {
  createKept,
  createRests,
  type Envelope,
  type Kept,
  readWhole,
  type StoreRest,
} from './rest'
import type { Answer, Answers } from './store'
import {
  attemptsMax,
  brokenOff,
  createRedeeming,
  gone,
  left,
  sha256,
  type Undelivered,
} from './undelivered'

/** Makes what was paid for, once per call. Never throws for a fault of the maker: that is data. */
export type Fulfilment = (payment: Payment) => Promise<Fulfilled>

type Confirmed = Pick<Extract<Outcome, { kind: 'confirmed' }>, 'payment' | 'isBegun'>

export type Fulfilled =
  | {
      delivered: true
      status: number
      headers: Headers
      /** Bytes when the whole answer is known, else a stream. */
      body: Uint8Array | ReadableStream<Uint8Array>
      /** Called when the stream ends, before its end is sent. */
      onEnd?: (isCut: boolean) => void
    }
  | Undelivered

/** The part of a paid request that a delivery needs. */
export type DeliveryRequest = {
  method: string
  resource: string
  requestId: string
  signal: AbortSignal
  /** Passes the answer on inside a message; undefined when the response is sent as it is. */
  envelope?: Envelope | undefined
  fulfil: Fulfilment
}

/** A receipt that was signed ahead tells its own time: not one that a buyer would wonder about. */
const aheadMs = 2_000
/** So many are ahead at most; those whose payment never came are forgotten first. */
const aheadMax = 1_000

export type DeliveryOptions = {
  settlement: Settlement
  answers: Answers
  challengeSecrets: readonly Uint8Array[]
  receiptKey: Uint8Array
  /** Of buyers that read a stream. */
  paceMin?: Partial<PaceMin> | undefined
  now: () => number
  log: (event: string, fields: Readonly<Record<string, unknown>>) => void
}

export type Deliveries = {
  /** Signs the receipt of a payment that is on its way, while there is nothing to do but wait for it. */
  expect(payment: Payment): void
  /**
   * Forwards a confirmed, undelivered payment and answers. Calls `release` when the delivery state is
   * recorded for good, which for a stream is at its end. Throws ProblemError, with the redeem token
   * when the maker failed.
   */
  deliver(
    request: DeliveryRequest,
    outcome: Confirmed,
    protocol: Protocol,
    release: () => void,
  ): Promise<Response>
  /** The stored answer of an idempotency key, marked as a replay. */
  replay(answer: Answer, payment: Payment, protocol: Protocol): Response
  findByToken(token: string): Payment | undefined
  /** Whether a failed delivery of the payment was answered, with the token that redeems it. */
  wasAnswered(payment: Payment): boolean
  inFlight(): number
  /** Gives up the rests of answers that are read for keys. */
  stop(): void
}

export function createDeliveries(options: DeliveryOptions): Deliveries {
  const { settlement, now, log } = options
  const [secret] = options.challengeSecrets
  if (secret === undefined) throw new Error('no challenge secret')
  const issuer = { key: options.receiptKey, address: Crypto.addressOf(options.receiptKey) }
  /** Answered, which is not on the disk yet. */
  const answering = new Set<string>()
  const { watch } = createPaces(options.paceMin)
  /** Receipts that are signed already, by payment. */
  const ahead = new Map<string, { receipt: Receipt.Signed; signedAt: number }>()
  const rests = createRests()
  const redeeming = createRedeeming(secret, now)
  const { undelivered } = redeeming
  let open = 0

  return {
    expect(payment) {
      const signedAt = now()
      const [oldest] = ahead.keys()
      if (oldest !== undefined && ahead.size >= aheadMax) ahead.delete(oldest)
      ahead.set(payment.id, { receipt: signReceipt(payment, issuer, signedAt), signedAt })
    },
    deliver,
    replay(answer, payment, protocol) {
      const headers = new Headers(answer.headers)
      headers.set('idempotency-replayed', 'true')
      const receipt = headersOf(payment, protocol)
      for (const [name, value] of Object.entries(receipt)) headers.set(name, value)
      return new Response(answer.body, { status: answer.status, headers })
    },
    findByToken: (token) => settlement.findByRedeemToken(sha256(token)),
    wasAnswered: ({ id, answered }) => answered || answering.has(id),
    inFlight: () => open,
    stop: rests.stop,
  }

  /** A transaction may have been replaced since its receipt was signed. */
  function headersOf(payment: Payment, protocol: Protocol): Readonly<Record<string, string>> {
    const early = ahead.get(payment.id)
    ahead.delete(payment.id)
    const isGood =
      early?.receipt.payload.transaction === payment.transaction &&
      Math.abs(now() - early.signedAt) < aheadMs
    const receipt = isGood ? early.receipt : signReceipt(payment, issuer, now())
    return successHeaders(payment, protocol, issuer, receipt)
  }

  async function deliver(
    request: DeliveryRequest,
    { payment, isBegun }: Confirmed,
    protocol: Protocol,
    release: () => void,
  ): Promise<Response> {
    if (request.signal.aborted) {
      if (isBegun) await settlement.endDelivery(payment.id, undelivered(payment, undefined))
      throw left()
    }
    if (payment.delivery === 'delivered' || payment.state !== 'confirmed')
      throw gone(payment, 'This payment has been delivered.')
    if (payment.attempts >= attemptsMax) throw gone(payment, 'All attempts have been used.')
    if (payment.redeemUntil !== undefined && now() > payment.redeemUntil)
      throw gone(payment, 'The time to redeem this payment is over.')
    const begun = isBegun ? payment : await settlement.beginDelivery(payment.id)
    // One time for what the buyer is told and what is stored.
    const started = { ...begun, redeemUntil: redeeming.untilOf(begun) }
    open++
    let fulfilled: Fulfilled
    try {
      fulfilled = await request.fulfil(started)
    } catch (error) {
      open--
      await settlement.endDelivery(started.id, undelivered(started, undefined))
      throw error
    }
    const record = async (status: number, decide: () => Reach) => {
      const fields = { requestId: request.requestId, payment: started.id, status }
      try {
        let outcome = decide()
        await settlement.endDelivery(started.id, () => {
          outcome = decide()
          if (outcome === 'nothing') return undelivered(started, status)
          return { delivered: true, upstreamStatus: status, truncated: outcome === 'truncated' }
        })
        log('payment-delivery', { ...fields, outcome })
      } catch (error) {
        // No caller is left to report to. The buyer has the answer; at worst it is delivered again.
        log('payment-delivery-unrecorded', { ...fields, error })
      }
    }
    const keep = fulfilled.delivered ? keeper(started, request.requestId, fulfilled) : undefined
    const storeRest = rests.store.bind(undefined, started.transfer.payer)
    let read = { truncated: false, isStored: false }
    if (fulfilled.delivered && request.envelope !== undefined) {
      const { envelope, signal } = request
      const { status, headers, body } = fulfilled
      const kept = createKept(keep)
      const whole = await readWhole(streamOf(body), { envelope, signal, kept, storeRest })
      if (whole.kind === 'left') {
        await record(status, () => (whole.isStored ? 'complete' : 'nothing'))
        open--
        throw left()
      }
      if (whole.kind === 'whole') read = whole
      fulfilled =
        whole.kind === 'cut'
          ? brokenOff(status)
          : { delivered: true, status, headers, body: whole.bytes }
    }
    if (!fulfilled.delivered) {
      open--
      const problem = redeeming.problem(started, fulfilled, protocol)
      // The token must be on the disk before its buyer has it.
      await settlement.endDelivery(started.id, undelivered(started, fulfilled.upstreamStatus))
      // After the answer is written: until then its buyer has no token, only the credential.
      answering.add(started.id)
      const answered = request.envelope?.taken ?? Promise.resolve(true)
      void answered.then((isTaken) =>
        setImmediate(() => {
          if (!isTaken || request.signal.aborted) answering.delete(started.id)
          else markAnswered(started, request.requestId)
        }),
      )
      log('payment-undelivered', {
        requestId: request.requestId,
        payment: started.id,
        upstreamStatus: fulfilled.upstreamStatus,
      })
      throw problem
    }
    const { status, headers, body } = fulfilled
    const receipt = headersOf(started, protocol)
    for (const [name, value] of Object.entries(receipt)) headers.set(name, value)
    const finish = () => {
      open--
      release()
    }
    if (!(body instanceof Uint8Array)) {
      const kept = createKept(keep)
      const { onEnd } = fulfilled
      const told = { record: record.bind(undefined, status), finish, onEnd }
      const observer = { ...told, kept, storeRest, watch }
      return new Response(observed(body, request.signal, observer), { status, headers })
    }

    const isStored = request.envelope === undefined ? keep?.(body) === true : read.isStored
    const reach = (isTaken: boolean): Reach => {
      // The answer is stored for the key: do not count another delivery.
      if (isStored) return 'complete'
      if (!isTaken || request.signal.aborted) return 'nothing'
      return read.truncated ? 'truncated' : 'complete'
    }
    // The answer is written in this turn of the event loop; recording it afterwards means that a
    // crash in between can only repeat an answer, never lose one that was paid for.
    const recorded =
      request.envelope === undefined
        ? record(status, () => reach(true))
        : request.envelope.taken.then((isTaken) => record(status, () => reach(isTaken)))
    void recorded.then(finish)
    const bodiless = request.method === 'HEAD' || status === 204 || status === 304
    return new Response(bodiless ? null : body, { status, headers })
  }

  /**
   * Stores the answer under the buyer's key, without receipt: a replay brings its own. A fault costs
   * the replay, not the answer.
   */
  function keeper(
    payment: Payment,
    requestId: string,
    { status, headers }: Omit<Answer, 'body'>,
  ): ((body: Uint8Array) => boolean) | undefined {
    if (payment.purpose.idempotencyKey === undefined) return undefined
    const own = new Headers(headers)
    return (body) => {
      try {
        return options.answers.store(payment, { status, headers: own, body }, now())
      } catch (error) {
        log('answer-not-kept', { requestId, payment: payment.id, error })
        return false
      }
    }
  }

  function markAnswered({ id }: Payment, requestId: string): void {
    settlement
      .markAnswered(id)
      .catch((error: unknown) => log('answer-unrecorded', { requestId, payment: id, error }))
      .finally(() => answering.delete(id))
  }
}

/** Reads an answer that is already complete like one that arrives now. */
function streamOf(body: Uint8Array | ReadableStream<Uint8Array>): ReadableStream<Uint8Array> {
  if (!(body instanceof Uint8Array)) return body
  return new ReadableStream({
    start(controller) {
      if (body.byteLength > 0) controller.enqueue(body)
      controller.close()
    },
  })
}

type Reach = 'complete' | 'truncated' | 'nothing'

type Observer = {
  /** Resolves when it is on the disk. Never rejects. */
  record: (decide: () => Reach) => Promise<void>
  finish: () => void
  kept: Kept
  storeRest: StoreRest
  /** Called once, before the end is sent. */
  onEnd: ((isCut: boolean) => void) | undefined
  watch: Paces['watch']
}

/**
 * Passes a stream on and records how far it got. A stream that goes on is recorded as complete at
 * its first chunk, so that a replay is refused from then on, and corrected when it is cut later. What
 * is to be stored is read to its end when the buyer has left.
 * `signal` fires when the buyer leaves: the server would still take a first chunk then. One that
 * stays and hardly reads would hold a connection to the upstream for ever: it is cut.
 */
function observed(
  source: ReadableStream<Uint8Array>,
  signal: AbortSignal,
  { record, finish, kept, storeRest, onEnd, watch }: Observer,
): ReadableStream<Uint8Array> {
  const reader = source.getReader()
  let cut = () => {}
  const buyer = watch(() => cut())
  let begun = false
  let isLeft = false
  let recorded = false
  let first = Promise.resolve()
  let ended = false
  /** Called once when the buyer's connection closes. */
  let letGo = (isCut: boolean) => {
    letGo = () => {}
    buyer.stop()
    onEnd?.(isCut)
  }
  const end = (outcome: Reach) => {
    if (ended) return
    ended = true
    letGo(outcome !== 'complete')
    signal.removeEventListener('abort', leave)
    const recording = outcome !== 'complete' || !recorded ? record(() => outcome) : first
    void recording.then(finish)
  }
  const leave = () => {
    if (ended || isLeft) return
    isLeft = true
    letGo(true)
    signal.removeEventListener('abort', leave)
    const reach = begun ? 'truncated' : 'nothing'
    const rest = storeRest(reader, kept)
    if (rest === undefined) {
      end(reach)
      reader.cancel().catch(() => {})
      return
    }
    void rest.then((isStored) => end(isStored ? 'complete' : reach))
  }
  signal.addEventListener('abort', leave)
  if (signal.aborted) leave()
  return new ReadableStream<Uint8Array>({
    start(controller) {
      cut = () => {
        leave()
        controller.error()
      }
    },
    async pull(controller) {
      buyer.taken()
      try {
        const { done, value } = await reader.read()
        if (ended) return controller.error()
        if (value !== undefined) kept.add(value)
        if (isLeft) return controller.error()
        if (done) {
          kept.store()
          end('complete')
          controller.close()
          return
        }
        controller.enqueue(value)
        buyer.put(value.byteLength)
        if (begun) return
        begun = true
        setImmediate(() => {
          // A short stream has ended by now.
          if (ended) return
          recorded = true
          first = record(() => 'complete')
        })
      } catch {
        if (!isLeft) end(begun ? 'truncated' : 'nothing')
        // Without the error, which the server would print; the connection breaks all the same.
        controller.error()
      }
    },
    cancel: leave,
  })
}
