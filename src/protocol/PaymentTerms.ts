import type { Address } from 'viem'
import * as Explanation from './Explanation'
import type { FacilitatorRequest, Operation } from './Facilitation'
import type { Fault } from './Problem'
import { checkWindow } from './Transfer'
import { spenderOf } from './X402'

/**
 * Whether a payment that a facilitator received has the terms that its resource server requires:
 * the checks without a chain, in the order of the reference facilitator.
 */

/** The checks that precede the signature, for every scheme and method. */
export function checkScheme(request: FacilitatorRequest): Fault | undefined {
  return request.requirements.scheme === 'upto' ? checkUpto(request) : checkExact(request)
}

function checkExact(request: FacilitatorRequest): Fault | undefined {
  const { parsed, accepted, requirements } = request
  const isPermit = parsed.method === 'permit2'
  if (accepted.scheme !== 'exact') {
    const code = isPermit ? 'unsupported_payload_type' : 'invalid_exact_evm_scheme'
    return { code, detail: 'accepted.scheme is not "exact".' }
  }
  if (!isPermit && (requirements.name === undefined || requirements.version === undefined)) {
    const code = 'invalid_exact_evm_missing_eip712_domain'
    return { code, detail: 'extra.name and extra.version of the token are missing.' }
  }
  return checkNetwork(request, 'invalid_exact_evm_network_mismatch')
}

/** x402 specs/schemes/upto/scheme_upto_evm.md */
function checkUpto(request: FacilitatorRequest): Fault | undefined {
  if (request.parsed.signed.facilitator === undefined) {
    const detail = 'The payload has no permit2Authorization.witness.facilitator.'
    return { code: 'unsupported_payload_type', detail }
  }
  if (request.accepted.scheme !== 'upto') {
    return { code: 'invalid_upto_evm_scheme', detail: 'accepted.scheme is not "upto".' }
  }
  return checkNetwork(request, 'invalid_upto_evm_network_mismatch')
}

/** Whether the payload is for the network that its resource server requires. */
export function checkNetwork(
  { accepted, requirements: { network } }: Pick<FacilitatorRequest, 'accepted' | 'requirements'>,
  code: string,
): Fault | undefined {
  if (accepted.network === network) return undefined
  return { code, detail: `accepted.network is not the network of the requirements, ${network}.` }
}

export type CheckOptions = {
  operation: Operation
  /** Unix ms. */
  now: number
  /** Whether the payment is stored already. Then neither its time nor its relayer matters. */
  isKnown: boolean
  /** Accounts of ours that may settle the scheme `upto`. */
  relayers: readonly Address[]
}

/**
 * Whether the signed terms are the required ones. The reference checks an EIP-3009 signature before
 * this, and a Permit2 signature after this.
 */
export function checkTerms(request: FacilitatorRequest, options: CheckOptions): Fault | undefined {
  return request.parsed.method === 'permit2'
    ? checkPermit(request, options)
    : checkAuthorization(request, options)
}

function checkAuthorization(
  { parsed: { signed }, requirements }: FacilitatorRequest,
  { now, isKnown }: CheckOptions,
): Fault | undefined {
  if (signed.payee !== requirements.payTo) {
    const detail = Explanation.otherPayee(signed.payee, requirements.payTo)
    return { code: 'invalid_exact_evm_recipient_mismatch', detail }
  }
  const late = isKnown ? undefined : checkWindow({ ...signed, method: 'eip3009' }, now)
  if (late !== undefined) return late
  if (signed.amountAtomic !== requirements.amountAtomic) {
    const detail = Explanation.otherAmount(signed.amountAtomic, requirements.amountAtomic)
    return { code: 'invalid_exact_evm_payload_authorization_value_mismatch', detail }
  }
  return undefined
}

function checkPermit(request: FacilitatorRequest, options: CheckOptions): Fault | undefined {
  const { signed } = request.parsed
  const { scheme, payTo, amountAtomic, asset } = request.requirements
  const { operation, isKnown } = options
  const isUpto = scheme === 'upto'
  const spender = spenderOf(isUpto)
  if (signed.spender !== spender) {
    return { code: 'invalid_permit2_spender', detail: `The spender must be ${spender}.` }
  }
  if (signed.payee !== payTo) {
    const detail = Explanation.otherPayee(signed.payee, payTo)
    return { code: 'invalid_permit2_recipient_mismatch', detail }
  }
  if (isUpto && !isKnown && !options.relayers.some((each) => each === signed.facilitator)) {
    const signers = options.relayers.join(', ')
    const detail = `witness.facilitator is not one of the signers of this facilitator: ${signers}.`
    return { code: 'upto_facilitator_mismatch', detail }
  }
  const late = isKnown ? undefined : checkWindow({ ...signed, method: 'permit2' }, options.now)
  if (late !== undefined) return late
  // For `/settle` with `upto` the amount is the charge, which is at most the signed ceiling.
  if (!(isUpto && operation === 'settle') && signed.amountAtomic !== amountAtomic) {
    const detail = Explanation.otherAmount(signed.amountAtomic, amountAtomic)
    return { code: 'permit2_amount_mismatch', detail }
  }
  if (signed.asset !== asset) {
    const detail = Explanation.otherToken(signed.asset ?? 'missing', asset)
    return { code: 'permit2_token_mismatch', detail }
  }
  return undefined
}

/** The fault of a charge above the signed ceiling. The reference reports it after all others. */
export function exceeds({ parsed, requirements }: FacilitatorRequest): Fault | undefined {
  const { scheme, amountAtomic } = requirements
  if (scheme !== 'upto' || amountAtomic <= parsed.signed.amountAtomic) return undefined
  const detail =
    `paymentRequirements.amount is ${amountAtomic}, above permitted.amount, which is ` +
    `${parsed.signed.amountAtomic}.`
  return { code: 'invalid_upto_evm_payload_settlement_exceeds_amount', detail }
}
