import type { Address } from 'viem'
import type { FacilitatorRequest, Operation } from './Facilitation'
import type { Fault } from './Problem'
import { checkWindow } from './Transfer'
import { otherAmount, otherPayee, otherToken, spenderOf } from './X402'

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
export function checkTerms(
  { parsed: { method, signed }, requirements }: FacilitatorRequest,
  { operation, now, isKnown, relayers }: CheckOptions,
): Fault | undefined {
  const { scheme, payTo, amountAtomic, asset } = requirements
  const isPermit = method === 'permit2'
  const isUpto = isPermit && scheme === 'upto'
  const spender = spenderOf(isUpto)
  if (isPermit && signed.spender !== spender) {
    return { code: 'invalid_permit2_spender', detail: `The spender must be ${spender}.` }
  }
  if (signed.payee !== payTo) return otherPayee(method, signed.payee, payTo)
  if (isUpto && !isKnown && !relayers.some((each) => each === signed.facilitator)) {
    const signers = relayers.join(', ')
    const detail = `witness.facilitator is not one of the signers of this facilitator: ${signers}.`
    return { code: 'upto_facilitator_mismatch', detail }
  }
  const late = isKnown ? undefined : checkWindow({ ...signed, method }, now)
  if (late !== undefined) return late
  // For `/settle` with `upto` the amount is the charge, which is at most the signed ceiling.
  if (!(isUpto && operation === 'settle') && signed.amountAtomic !== amountAtomic)
    return otherAmount(method, signed.amountAtomic, amountAtomic)
  return isPermit && signed.asset !== asset ? otherToken(signed.asset, asset) : undefined
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
