import type { Charge } from '../../../db/Authorization'
import type { Payment } from '../../../db/Payment'
import type { Undelivered } from './undelivered'

/**
 * Makes the paid answer, once per call. Returns faults of the source as data and never throws for
 * them.
 */
export type Fulfilment = (payment: Attempt) => Promise<Fulfilled>

/** The payment, or the authorization, that an answer is made for. */
export type Attempt = Pick<Payment, 'id' | 'transfer' | 'attempts'> & {
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
