import type * as Problem from '../protocol/Problem'
import type { DeliveryRequest } from './answer/delivery'
import type { Sale } from './checkout'

/** A request for a merchant's resource with a credential. */
export type GatewaySale = Sale &
  DeliveryRequest & {
    /** Canonical path, as forwarded, like the query. */
    path: string
    body: Uint8Array
    /** The forwarded headers that select an answer, as a text. */
    selecting(): string
    /** Longest time (ms) until the upstream answers. */
    timeoutMs: number
    /** Parameters that cannot be served: named in the 402, refused before money moves. */
    invalidParams: readonly { name: string; reason: string; status?: 404 }[]
    /**
     * Why nothing can be delivered now; called before a payment. A promise only while a lookup is
     * running.
     */
    unavailable(): Problem.ProblemError | undefined | Promise<Problem.ProblemError | undefined>
    /**
     * Reserves a place for the sale, until the result is called. Throws ProblemError when no place is
     * free: nothing may be charged that could not be forwarded.
     */
    reserve(): () => void
    /**
     * Makes the request that `fulfil` will send, and sends nothing. May be called again; never
     * throws.
     */
    prepare(): void
  }
