import * as Crypto from '../protocol/Crypto'
import { type Code, of, type ProblemError } from '../protocol/Problem'
import type * as Receipt from '../protocol/Receipt'
import type { Delivered } from '../settlement/delivery'
import type { Outcome, Payment, Protocol } from '../settlement/Payment'
import type { Settlement } from '../settlement/settle'
import { createPaces, type PaceMin, type Paces } from './pace'
import { failureHeaders, signReceipt, successHeaders } from './receipts'
import { type Answer, type Answers, answerMaxBytes } from './store'

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
  | {
      delivered: false
      /** Status of the upstream, if it answered at all. */
      upstreamStatus: number | undefined
      code: Extract<Code, 'upstream-unreachable' | 'upstream-failed' | 'upstream-timeout'>
      detail: string
    }

/** The part of a sale that a delivery needs. */
export type Parcel = {
  method: string
  resource: string
  requestId: string
  signal: AbortSignal
  fulfil: Fulfilment
}

/** First forward and five redemptions. */
const attemptsMax = 6
const redeemableMs = 24 * 60 * 60 * 1000
/** A receipt that was signed ahead tells its own time: not one that a buyer would wonder about. */
const aheadMs = 2_000
/** So many are ahead at most; those whose payment never came are forgotten first. */
const aheadMax = 1_000

export type CourierOptions = {
  settlement: Settlement
  answers: Answers
  challengeSecrets: readonly Uint8Array[]
  receiptKey: Uint8Array
  /** Of buyers that read a stream; `paceMin` by default. */
  paceMin?: PaceMin | undefined
  now: () => number
  log: (event: string, fields: Readonly<Record<string, unknown>>) => void
}

export type Courier = {
  /** Signs the receipt of a payment that is on its way, while there is nothing to do but wait for it. */
  expect(payment: Payment): void
  /**
   * Forwards a confirmed, undelivered payment and answers. Calls `release` when the delivery state is
   * recorded for good, which for a stream is at its end. Throws ProblemError, with the redeem token
   * when the maker failed.
   */
  deliver(
    parcel: Parcel,
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
}

export function createCourier(options: CourierOptions): Courier {
  const { settlement, now, log } = options
  const [secret] = options.challengeSecrets
  if (secret === undefined) throw new Error('no challenge secret')
  const issuer = { key: options.receiptKey, address: Crypto.addressOf(options.receiptKey) }
  /** Answered, which is not on the disk yet. */
  const answering = new Set<string>()
  const { watch } = createPaces(options.paceMin)
  /** Receipts that are signed already, by payment. */
  const ahead = new Map<string, { receipt: Receipt.Signed; signedAt: number }>()
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
    parcel: Parcel,
    { payment, isBegun }: Confirmed,
    protocol: Protocol,
    release: () => void,
  ): Promise<Response> {
    if (parcel.signal.aborted) {
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
    const started = { ...begun, redeemUntil: begun.redeemUntil ?? now() + redeemableMs }
    open++
    let fulfilled: Fulfilled
    try {
      fulfilled = await parcel.fulfil(started)
    } catch (error) {
      open--
      await settlement.endDelivery(started.id, undelivered(started, undefined))
      throw error
    }
    if (!fulfilled.delivered) {
      open--
      const problem = failed(started, fulfilled, protocol)
      // The token must be on the disk before its buyer has it.
      await settlement.endDelivery(started.id, undelivered(started, fulfilled.upstreamStatus))
      // After the answer is written: until then its buyer has no token, only the credential.
      answering.add(started.id)
      setImmediate(() => {
        if (parcel.signal.aborted) answering.delete(started.id)
        else markAnswered(started, parcel.requestId)
      })
      log('payment-undelivered', {
        requestId: parcel.requestId,
        payment: started.id,
        upstreamStatus: fulfilled.upstreamStatus,
      })
      throw problem
    }
    const { status, headers, body } = fulfilled
    const keep = keeper(started, parcel.requestId, { status, headers })
    const receipt = headersOf(started, protocol)
    for (const [name, value] of Object.entries(receipt)) headers.set(name, value)
    const record = async (decide: () => Reach) => {
      const fields = { requestId: parcel.requestId, payment: started.id, status }
      try {
        let outcome = decide()
        await settlement.endDelivery(started.id, () => {
          outcome = decide()
          if (outcome === 'nothing') return undelivered(started, status)
          return { delivered: true, upstreamStatus: status, truncated: outcome === 'truncated' }
        })
        log('payment-delivery', { ...fields, outcome })
      } catch (error) {
        // Nobody above hears of it, and the buyer has the answer: at worst it is given once more.
        log('payment-delivery-unrecorded', { ...fields, error })
      }
    }
    const finish = () => {
      open--
      release()
    }
    if (!(body instanceof Uint8Array)) {
      const { onEnd } = fulfilled
      const observer = { record, finish, keep, onEnd, watch }
      return new Response(observed(body, parcel.signal, observer), { status, headers })
    }

    keep?.(body)
    // The answer is written in this turn of the event loop; recording it afterwards means that a
    // crash in between can only repeat an answer, never lose one that was paid for.
    void record(() => (parcel.signal.aborted ? 'nothing' : 'complete')).then(finish)
    const bodiless = parcel.method === 'HEAD' || status === 204 || status === 304
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
  ): ((body: Uint8Array) => void) | undefined {
    if (payment.purpose.idempotencyKey === undefined) return undefined
    const own = new Headers(headers)
    return (body) => {
      try {
        options.answers.store(payment, { status, headers: own, body }, now())
      } catch (error) {
        log('answer-not-kept', { requestId, payment: payment.id, error })
      }
    }
  }

  function markAnswered({ id }: Payment, requestId: string): void {
    settlement
      .markAnswered(id)
      .catch((error: unknown) => log('answer-unrecorded', { requestId, payment: id, error }))
      .finally(() => answering.delete(id))
  }

  function undelivered(payment: Payment, upstreamStatus: number | undefined): Delivered {
    return {
      delivered: false,
      upstreamStatus,
      redeemTokenHash: sha256(redeemToken(payment.id)),
      redeemUntil: redeemUntil(payment),
    }
  }

  function failed(
    payment: Payment,
    fulfilled: Extract<Fulfilled, { delivered: false }>,
    protocol: Protocol,
  ): ProblemError {
    const { transaction, transfer } = payment
    return of(fulfilled.code, fulfilled.detail, {
      ...(protocol === 'x402'
        ? {
            headers: failureHeaders(
              { code: fulfilled.code, members: { reason: 'delivery_failed', transaction } },
              transfer,
            ),
          }
        : {}),
      members: {
        transaction,
        network: transfer.network,
        ...(fulfilled.upstreamStatus === undefined
          ? {}
          : { upstreamStatus: fulfilled.upstreamStatus }),
        redeem: {
          token: redeemToken(payment.id),
          until: new Date(redeemUntil(payment)).toISOString(),
          attempts: attemptsMax - payment.attempts,
        },
      },
    })
  }

  /** The same for all attempts of a payment, so that a lost answer does not lose the token. */
  function redeemToken(paymentId: string): string {
    return new Bun.CryptoHasher('sha256', secret).update(`redeem|${paymentId}`).digest('base64url')
  }

  function redeemUntil(payment: Payment): number {
    return payment.redeemUntil ?? now() + redeemableMs
  }
}

/** Nobody reads this: the payment stays undelivered and its buyer may come back. */
function left(): ProblemError {
  return of('payment-in-progress', 'The buyer has left.')
}

function gone(payment: Payment, detail: string): ProblemError {
  return of('redeem-exhausted', detail, {
    members: { transaction: payment.transaction, network: payment.transfer.network },
  })
}

function sha256(text: string): string {
  return new Bun.CryptoHasher('sha256').update(text).digest('hex')
}

type Reach = 'complete' | 'truncated' | 'nothing'

type Observer = {
  /** Resolves when it is on the disk. Never rejects. */
  record: (decide: () => Reach) => Promise<void>
  finish: () => void
  /** Called with all of a complete answer. */
  keep: ((body: Uint8Array) => void) | undefined
  /** Called once, before the end is sent. */
  onEnd: ((isCut: boolean) => void) | undefined
  watch: Paces['watch']
}

/**
 * Passes a stream on and records how far it got. A stream that goes on is recorded as complete at
 * its first chunk, so that a replay is refused from then on, and corrected when it is cut later.
 * `signal` fires when the buyer leaves: the server would still take a first chunk then. One that
 * stays and hardly reads would hold a connection to the upstream for ever: it is cut.
 */
function observed(
  source: ReadableStream<Uint8Array>,
  signal: AbortSignal,
  { record, finish, keep, onEnd, watch }: Observer,
): ReadableStream<Uint8Array> {
  const reader = source.getReader()
  let cut = () => {}
  const buyer = watch(() => cut())
  const chunks: Uint8Array[] = []
  let keptBytes = 0
  let begun = false
  let recorded = false
  let first = Promise.resolve()
  let ended = false
  const end = (outcome: Reach) => {
    if (ended) return
    ended = true
    buyer.stop()
    onEnd?.(outcome !== 'complete')
    signal.removeEventListener('abort', leave)
    const recording = outcome !== 'complete' || !recorded ? record(() => outcome) : first
    void recording.then(finish)
  }
  const leave = () => {
    end(begun ? 'truncated' : 'nothing')
    reader.cancel().catch(() => {})
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
        if (done) {
          if (keep !== undefined && keptBytes <= answerMaxBytes) keep(Buffer.concat(chunks))
          end('complete')
          controller.close()
          return
        }
        keptBytes += value.byteLength
        if (keep !== undefined && keptBytes <= answerMaxBytes) chunks.push(value.slice())
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
        end(begun ? 'truncated' : 'nothing')
        // Without the error, which the server would print; the connection breaks all the same.
        controller.error()
      }
    },
    cancel: leave,
  })
}
