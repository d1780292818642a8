import type { Authorization } from '../../db/Authorization'
import type { Rows, RowsRefusal } from '../../db/Ledger'
import type { Payment, Purpose } from '../../db/Payment'
import type * as Problem from '../protocol/Problem'
import type { Transfer } from '../protocol/Transfer'
import type { Outcome } from '../settlement/send/Outcome'
import type { PaymentRequest } from '../settlement/state/state'
import type { RequestClaim } from './claims'
import type { Asked, Named, Presentation } from './credential'
import type { ChallengeDetails } from './offer/quote'

/** A request for something that is sold, in terms common to all products. */
export type Sale = Asked & {
  headers: Headers
  requestId: string
  /** Address of the client (http/client.ts). */
  readonly client: string
  /** The stored purpose of its payment. */
  purpose: Pick<Purpose, 'product' | 'merchant' | 'route' | 'resource'>
}

/** One purchase, from the credential to the answer. */
export type Checkout<S extends Sale = Sale> = {
  sale: S
  /** What the request presents: the money, the key of a purchase, or a token. */
  by: 'credential' | 'key' | 'token'
  presentation: Pick<Presentation, 'protocol' | 'transfer' | 'bound' | 'credentialHash'>
  /** What is bought, as `Product.fingerprintOf` computes it. */
  fingerprint: string
  /** The buyer's `Idempotency-Key` or payment-identifier. */
  key: string | undefined
  /** The claim on the money, with what is released with it; `fulfil` releases it. */
  claim: RequestClaim
}

type Confirmed = Extract<Outcome, { kind: 'confirmed' }>

/** The part of a product in the checkout: its policy and its answer. */
export type Product<S extends Sale = Sale> = {
  /** The 402. Throws ProblemError when nothing can be sold. */
  challenge(sale: S, details: ChallengeDetails): Response
  /** Distinguishes purchases: hex of what is bought with this money. */
  fingerprintOf(sale: S, transfer: Pick<Transfer, 'payer' | 'upto'>): string
  /** Longest time (ms) that the buyer waits for the settlement from now on. */
  waitMs(sale: S): number
  /**
   * Throws ProblemError when the item is not for sale now. Called before the signature check, which
   * costs time.
   */
  assertServable?(sale: S): void
  /** Whether that check costs more than a signature check. */
  isCostly?(sale: S): boolean
  /**
   * The money that a credential names. Only for a product that records every purchase, so that any
   * number of requests may wait for it and read it. Without it a purchase has one answer: while one
   * request has claimed its money, the others are refused.
   */
  peek?(sale: S): Named | undefined
  /** The stored answer of a purchase, if the request shows its key. Throws ProblemError. */
  replay?(checkout: Checkout<S>, payment: Payment): Promise<Response | undefined>
  /** Whether the request may continue a known payment. Throws ProblemError. */
  readmit(checkout: Checkout<S>, payment: Payment): Promise<void>
  /**
   * Whether it may be sold now, with the rows that are written with the payment, atomically. Throws
   * ProblemError; no money has moved and nothing is written.
   */
  admit(checkout: Checkout<S>): Promise<Rows | undefined>
  /** The problem when those rows were refused and no money moved; undefined: an internal fault. */
  refusalOf?(reason: RowsRefusal): Problem.ProblemError | undefined
  /** Callbacks of the product while its payment settles. */
  settling?(
    checkout: Checkout<S>,
    purpose: Purpose,
  ): Pick<PaymentRequest, 'onSent' | 'deliverOnConfirm'>
  /** Longest time (ms) that an answer which is charged by its use takes, with its settlement. */
  answerMs?(sale: S): number
  /**
   * Prepares that answer while a node verifies the authorization, which it may refuse. So it has no
   * effect outside of this process. May be called again. Must not throw.
   */
  prepareByUse?(checkout: Checkout<S>): void
  /** The answer of an authorization, whose charge is settled after it was made. Throws ProblemError. */
  fulfilByUse?(checkout: Checkout<S>, authorization: Authorization): Promise<Response>
  /** The answer for a confirmed payment. Throws ProblemError. */
  fulfil(checkout: Checkout<S>, outcome: Confirmed): Promise<Response>
  /** Adds the state of the purchase to the problem of a settlement. */
  explain?(checkout: Checkout<S>, problem: Problem.ProblemError): Promise<Problem.ProblemError>
}
