import type * as Json from '../../protocol/Json'
import type { Wallet } from '../buy/allowance'
import type { ChannelFiles } from '../buy/channel-files'
import type * as Terms from '../buy/Terms'
import * as Answer from './Answer'
import type { Catalogue } from './catalogue'
import type { GatewayClient } from './gateway'
import type * as Sentences from './Sentences'
import type { Spending } from './spending'

/** Calls of tools that are paid for, and their results. */

export type CallResult = {
  content: readonly Answer.Content[]
  isError?: boolean
  /** The payment can no longer be settled, so another one may be signed. */
  isExpired?: boolean
}

export type Wanted = { name: string; args: Json.JsonObject }

/** What the calls of one client share. */
export type BuyerOptions = Wallet & {
  gateway: GatewayClient
  catalogue: Catalogue
  spending: Spending
  limits: Sentences.Limits
  /** Preferred where it is offered; undefined: a channel where the limits allow its deposit. */
  scheme: Terms.Scheme | undefined
  files: ChannelFiles
  /** The most to deposit into a channel, in millionths of a dollar. */
  depositMicros: bigint
  /** The only network that is paid on; undefined: any. */
  network: string | undefined
  /** How long a pending payment is presented again, ms. */
  patienceMs: number
}

export function refusal(text: string): CallResult {
  return { isError: true, content: [Answer.note(text)] }
}
