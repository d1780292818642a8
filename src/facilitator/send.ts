import type { Purpose } from '../../db/Payment'
import type { Outcome } from '../settlement/send/Outcome'
import { withApproval } from '../settlement/sponsorship'
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
  const isKeySigned = isOwnDomain && subject.isSigned
  const purpose = purposeOf(call)
  const request = { transfer, purpose, receivedAt: now(), requestId, isKeySigned }
  const isOthers = transfer.upto !== undefined && authorizations.isOfAnother(transfer)
  const settle = (leftMs: number) =>
    isOthers ? authorizations.settleByHolder(request, leftMs) : settlement.settle(request, leftMs)
  if (approval === undefined) return settle(waitMs)
  return withApproval<Outcome>(options, { transfer, approval, client, waitMs }, settle)
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
