import type { Hex } from 'viem'
import type { Scheme } from '../harness/shop'
import type { Payer, Site } from './setup'

/** A request of a payer, and all its results. Times are unix ms. */
export type Purchase = {
  /** Unique in a run. It is part of the request, so that the upstream sees it. */
  serial: string
  payer: Payer
  site: Site
  scheme: Scheme | 'upto'
  url: string
  init: RequestInit
  /** For `upto` the signed ceiling; 0 before the signature. */
  amountAtomic: bigint
  /** Of the one credential that is signed for it; undefined before. */
  nonce: Hex | undefined
  signedAt: number | undefined
  /** Every answer to the credential or the token, the oldest first. */
  said: Said[]
  /** Complete answers of the upstream that arrived. */
  received: Received[]
  /** Whether it got a token for an answer that failed. */
  redeems: boolean
  /** `refused`: an answer after which a client must not repeat. `left`: it went with a part. */
  end: 'open' | 'answered' | 'refused' | 'left'
  /** Of the scheme `upto`. */
  byUse?: ByUse
}

export type Received = {
  paymentId: string
  call: number
  at: number
  /** What the head of an answer by use said. */
  settled?: { amount: string; transaction: string } | undefined
}

export type Said = { at: number; status: number; code: string; detail: string }

/** What only a purchase by use has. */
export type ByUse = {
  isStream: boolean
  /** After this time the buyer leaves, once; undefined: it stays. */
  leaveAfterMs: number | undefined
  /** It has closed a connection before the end of its answer. */
  hasLeft: boolean
  /** Bytes of a stream that arrived, of the longest try. */
  bytes: number
}
