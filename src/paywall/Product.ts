import type { Address } from 'viem'
import type { Rows, RowsRefusal } from '../../db/Ledger'
import type { Payment, Purpose } from '../../db/Payment'
import type * as Problem from '../protocol/Problem'
import type { Outcome } from '../settlement/Outcome'
import type { Settlement } from '../settlement/settlement'
import type { RequestClaim } from './claims'
import type { Named, Presentation } from './credential'
import type { Presented } from './extract'
import type { Item } from './Item'
import type { ChallengeDetails } from './quote'

/** A request for something that is sold, in the terms of every product. `R`: the product's own. */
export type Sale<R> = {
  request: R
  item: Item
  headers: Headers
  /** What `extract` found among the headers. */
  presented: Presented
  requestId: string
  /** Absolute, with its query, as it was asked for. */
  url: string
  /** RFC 9530 digest of the body. */
  digest: string | undefined
  /** How its payment is stored. */
  purpose: Pick<Purpose, 'product' | 'merchant' | 'route' | 'resource'>
}

/** One purchase on its way from the credential to what the buyer gets. */
export type Checkout<R> = {
  sale: Sale<R>
  /** What the request shows to get it: the money, a key that a purchase was made with, or a token. */
  by: 'credential' | 'key' | 'token'
  presentation: Pick<Presentation, 'protocol' | 'transfer' | 'bound' | 'credentialHash'>
  /** What is bought, as `Product.fingerprintOf` tells it. */
  fingerprint: string
  /** The buyer's `Idempotency-Key` or payment-identifier. */
  key: string | undefined
  /** The money and all else that the purchase holds; `fulfil` releases it. */
  claim: RequestClaim
}

type Confirmed = Extract<Outcome, { kind: 'confirmed' }>
type SettleOptions = Parameters<Settlement['settle']>[2]

/** What a product adds to the checkout: its policy, and what its buyers get. `A`: what it admits. */
export type Product<R, A> = {
  /** The 402. Throws ProblemError when nothing can be sold at all. */
  challenge(sale: Sale<R>, details: ChallengeDetails): Response
  /** Tells purchases apart: hex of what is bought. */
  fingerprintOf(sale: Sale<R>, payer: Address): string
  /** Longest time that the buyer waits for the settlement from now on. */
  waitMs(sale: Sale<R>): number
  /** Throws ProblemError for what is sold to no payer. Asked before the signature costs time. */
  assertServable?(sale: Sale<R>): void
  /**
   * The money that a credential names. For a product that makes a record of every purchase, which
   * any number of requests may wait for and read. Without it a purchase has one answer: while one
   * request has its money, the others are refused.
   */
  peek?(sale: Sale<R>): Named | undefined
  /** The stored answer of a purchase, if the request shows its key. Throws ProblemError. */
  replay?(checkout: Checkout<R>, payment: Payment): Promise<Response | undefined>
  /** Whether the request may go on with a payment that is known. Throws ProblemError. */
  readmit(checkout: Checkout<R>, payment: Payment): Promise<void>
  /** Whether it may be sold now. Throws ProblemError; nothing has moved and nothing is written. */
  admit(checkout: Checkout<R>): A | Promise<A>
  /** Rows that are written with the payment or not at all. */
  record?(checkout: Checkout<R>, admitted: A): Rows
  /** The answer when those rows were refused and nothing moved; undefined: a fault of ours. */
  refusalOf?(reason: RowsRefusal): Problem.ProblemError | undefined
  /** What it does while its payment settles. */
  settling?(
    checkout: Checkout<R>,
    purpose: Purpose,
  ): Pick<SettleOptions, 'onSent' | 'deliverOnConfirm'>
  /** What the buyer gets for a confirmed payment. Throws ProblemError. */
  fulfil(checkout: Checkout<R>, outcome: Confirmed): Promise<Response>
  /** Adds to the problem of a settlement what became of the purchase. */
  explain?(checkout: Checkout<R>, problem: Problem.ProblemError): Promise<Problem.ProblemError>
}
