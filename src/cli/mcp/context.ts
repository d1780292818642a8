import type { Address } from 'viem'
import type * as Json from '../../protocol/Json'
import type * as Terms from '../buy/Terms'
import type * as Answer from './Answer'
import type { Catalogue } from './catalogue'
import type { Gateway } from './gateway'
import type * as Sentences from './Sentences'
import type { Spending } from './spending'

/** What the calls of one client share. */

export type Result = {
  content: readonly Answer.Content[]
  isError?: boolean
}

export type Wanted = { name: string; args: Json.JsonObject }

export type BuyerOptions = {
  gateway: Gateway
  catalogue: Catalogue
  spending: Spending
  privateKey: Uint8Array
  payer: Address
  limits: Sentences.Limits
  /** `upto` is preferred where it is offered. */
  scheme: Terms.Scheme
  /** The only network that is paid on; undefined: any. */
  network: string | undefined
  /** Node for the facts of the chain; undefined: the public one of the network. */
  rpc: string | undefined
  /** How long a pending payment is presented again, ms. */
  patienceMs: number
  /** Unix ms. */
  now: () => number
}
