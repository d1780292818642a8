import type { Purpose } from '../../db/Payment'
import type { Outcome } from '../settlement/send/Outcome'
import { settleByHolderSponsored, settleSponsored } from '../settlement/sponsorship'
import type { SettleCall } from './conclude'
import * as Policy from './Policy'
import type { VerificationOptions } from './verification'

/** Sends the money once, or continues what was stored of it. */
export async function send(
  options: VerificationOptions,
  call: SettleCall,
  waitMs: number,
): Promise<Outcome> {
  const { settlement, now } = options
  const { authorizations } = settlement
  const { subject, requestId, client } = call
  const { transfer, known, authorized, sponsored, isOwnDomain } = subject
  if (known !== undefined) return settlement.resume(known, transfer, { waitMs, requestId })
  if (authorized !== undefined)
    return authorizations.settleCharge(authorized, { waitMs, requestId })
  const approval = 'code' in sponsored ? undefined : sponsored.approval
  const limits = { waitMs, receivedAt: now(), requestId, approval, client }
  if (transfer.upto !== undefined && authorizations.isOfAnother(transfer)) {
    return settleByHolderSponsored(options, transfer, purposeOf(call), limits)
  }
  const isKeySigned = isOwnDomain && subject.isSigned
  return settleSponsored(options, transfer, purposeOf(call), { ...limits, isKeySigned })
}

/** What a settlement pays for. */
export function purposeOf({ subject, idempotencyKey }: SettleCall): Purpose {
  const { request, keyHash } = subject
  return {
    product: 'facilitator',
    protocol: 'x402',
    merchant: '',
    route: Policy.routeOf(keyHash),
    fingerprint: request.requirements.fingerprint,
    // The resource server's name for the purchase. It is informative only.
    resource: request.resource,
    idempotencyKey,
    challengeId: undefined,
    credentialHash: request.credentialHash,
    bound: false,
  }
}
