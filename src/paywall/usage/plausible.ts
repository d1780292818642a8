import * as Challenge from '../../protocol/Challenge'
import * as Credential from '../../protocol/Credential'
import * as Problem from '../../protocol/Problem'
import type { Settlement } from '../../settlement/settlement'
import { sha256 } from '../answer/undelivered'
import { matchesOf, payloadOf } from '../credential'
import type { Presented } from '../extract'
import type { Item } from '../offer/Item'

type Options = {
  settlement: Pick<Settlement, 'findByRedeemToken'>
  challengeSecrets: readonly Uint8Array[]
  realm: string
}

/** Whether a request's credential justifies memory for its body; no check of the money. */
export type IsPlausible = (presented: Presented, item: Item) => Promise<boolean>

/**
 * Accepts a challenge of ours, an x402 payload that takes an offer of the item, and an issued
 * redeem token. Makes no signature check and no node call. Otherwise any header would put a body
 * among the paid ones.
 */
export function createPlausibility({ settlement, challengeSecrets, realm }: Options): IsPlausible {
  return async (presented, item) => {
    switch (presented.kind) {
      case 'mpp': {
        const parsed = Credential.parse(presented.value)
        if (Problem.isFault(parsed)) return false
        const options = { secrets: challengeSecrets, realm }
        return !Problem.isFault(Challenge.verify(parsed.challenge, options))
      }
      case 'x402': {
        const parsed = payloadOf(presented)
        if (Problem.isFault(parsed)) return false
        return !('code' in matchesOf(parsed, item))
      }
      case 'redeem':
        return (await settlement.findByRedeemToken(sha256(presented.token))) !== undefined
      case 'none':
      case 'fault':
        return false
    }
  }
}
