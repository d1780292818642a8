import type { Address, Hex } from 'viem'
import type { Authorization } from '../../db/Authorization'
import type { Payment } from '../../db/Payment'
import { zero } from '../protocol/Address'
import * as ChannelFacilitation from '../protocol/ChannelFacilitation'
import * as Crypto from '../protocol/Crypto'
import * as Explanation from '../protocol/Explanation'
import * as Facilitation from '../protocol/Facilitation'
import type * as Network from '../protocol/Network'
import * as PaymentTerms from '../protocol/PaymentTerms'
import { type Fault, fault, isFault } from '../protocol/Problem'
import * as Sponsoring from '../protocol/Sponsoring'
import * as Transfer from '../protocol/Transfer'
import * as Refusals from '../settlement/read/refusals'
import { unwrap } from '../settlement/read/simulate'
import type { Settlement } from '../settlement/settlement'
import type { ApprovalSponsor } from '../settlement/sponsorship'
import { lacksAllowance, refusalReasonOf } from '../settlement/sponsorship'
import type { Refusal } from './answers'
import * as Policy from './Policy'

export type VerificationOptions = {
  settlement: Settlement
  /** Sends the approves that payers sign; undefined when there is no sponsor. */
  sponsor: ApprovalSponsor | undefined
  networks: readonly Network.Network[]
  /** Whether it serves x402 version 1, too. */
  takesV1: boolean
  policy: Policy.Policy
  /** Accounts that send settlements: payers of `upto` name one of them. */
  relayers: readonly Address[]
  now: () => number
}

/** A request, with the results of the checks that need no chain. */
export type CheckedRequest = {
  operation: Facilitation.Operation
  request: Facilitation.FacilitatorRequest
  network: Network.Network
  /** With `upto`, its amount is the ceiling for `/verify` and the charge for `/settle`. */
  transfer: Transfer.Transfer
  /** Whether the payer's key signed it under the domain of the requirements. The slowest check. */
  isSigned: () => boolean
  /** Whether that domain is the token's own. */
  isOwnDomain: boolean
  /** The payer's addition that lets Permit2 transfer its token, or the fault in it. */
  sponsored: Sponsoring.Sponsored | Fault
  /** The stored payment of this money, if there is one. */
  known: Payment | undefined
  /** Without a payment: the stored authorization of this money, which bars every other use of it. */
  authorized: Authorization | undefined
  /** Hash of the caller's API key, if the request has one. */
  keyHash: Hex | undefined
}

/** A request about a payment channel. */
export type ChannelCall = ChannelFacilitation.ChannelRequest &
  Pick<CheckedRequest, 'operation' | 'network'>

/** A request before its payment was looked up. */
export type Unidentified = Omit<CheckedRequest, 'known' | 'authorized'>

/** Reads a request. Faults are answered 400: `invalid_network` and those of `parse`. */
export function openRequest(
  { sponsor, networks, takesV1, now }: VerificationOptions,
  body: Uint8Array,
  { operation, keyHash, call }: Pick<CheckedRequest, 'operation' | 'keyHash'> & { call: string },
): Unidentified | ChannelCall | Fault {
  const parsed = Facilitation.parse(body, takesV1 ? { call } : undefined)
  const read = 'channel' in parsed ? ChannelFacilitation.read(parsed.channel) : parsed
  if (isFault(read)) return read
  const { requirements } = 'request' in read ? read.request : read
  const network = networks.find(({ id }) => id === requirements.network)
  if (network === undefined) {
    const ids = networks.map(({ id }) => id).join(', ')
    return { code: 'invalid_network', detail: `This facilitator settles on ${ids} only.` }
  }
  if (!('request' in read)) return { ...read, operation, network }
  const { request, extensions } = read
  const signed = Facilitation.transferOf(request, network.chainId, operation)
  const sponsored = Sponsoring.read(extensions, signed, {
    now: now(),
    takesApprovals: sponsor !== undefined,
  })
  const transfer = Sponsoring.withPermit(signed, sponsored)
  const eip712 = domainOf(request, network)
  let signer: Address | undefined
  const { name, version } = network.asset.eip712
  return {
    operation,
    request,
    network,
    transfer,
    isSigned() {
      const digest = () => Transfer.digest(transfer, { eip712 })
      signer ??= Crypto.recover(digest(), transfer.signature) ?? zero
      return signer === transfer.payer
    },
    isOwnDomain:
      transfer.method === 'permit2' || (eip712.name === name && eip712.version === version),
    sponsored,
    keyHash,
  }
}

/** Adds the payment or the authorization of its money as it is now. */
export async function identify(
  { settlement }: Pick<VerificationOptions, 'settlement'>,
  subject: Unidentified,
): Promise<CheckedRequest> {
  const { transfer, network } = subject
  const isKnowable = transfer.asset === network.asset.address
  let known = isKnowable ? await settlement.find(transfer) : undefined
  // Only Permit2 transfers are authorized, and `exact` and `upto` share their nonces.
  const isFree = isKnowable && known === undefined && transfer.method === 'permit2'
  const stored = isFree ? await settlement.authorizations.find(transfer) : undefined
  // Another gateway has written its payment between the two reads.
  if (stored?.state === 'sent') known = await settlement.find(transfer)
  return { ...subject, known, authorized: known === undefined ? stored : undefined }
}

/** The EIP-712 domain that the requirements name. */
function domainOf({ requirements }: Facilitation.FacilitatorRequest, network: Network.Network) {
  const { name, version } = requirements
  if (name === undefined || version === undefined) return network.asset.eip712
  return { name, version }
}

/** Refusals that precede the check of the signature, in the order of the reference facilitator. */
export function refuseEarly(
  options: VerificationOptions,
  subject: CheckedRequest,
): Fault | undefined {
  const { request, known, authorized } = subject
  const fault = PaymentTerms.checkScheme(request)
  if (fault !== undefined) return fault
  // A payment that was sent under an earlier configuration costs no more gas, and its money may
  // have moved, so the policy does not apply to it.
  const isSent =
    known === undefined
      ? authorized !== undefined && isUnderWay(subject, authorized)
      : isTaken(known) && isSame(subject, known)
  const refusal = isSent ? undefined : Policy.check(options.policy, request)
  if (refusal !== undefined || request.parsed.method !== 'permit2') return refusal
  return PaymentTerms.checkTerms(request, checksOf(options, subject))
}

/** Refusals that the reference facilitator reports only after a valid signature. */
export function refuseLate(
  options: VerificationOptions,
  subject: CheckedRequest,
): Fault | undefined {
  const { request, sponsored } = subject
  const checks = checksOf(options, subject)
  if (request.parsed.method === 'eip3009') return PaymentTerms.checkTerms(request, checks)
  return !checks.isKnown && 'code' in sponsored ? sponsored : undefined
}

function checksOf(
  { now, relayers }: VerificationOptions,
  { operation, known, authorized }: CheckedRequest,
): PaymentTerms.CheckOptions {
  const at = now()
  // No gateway sends a charge that has expired while it waited. `settle` still answers it.
  const isOver =
    operation === 'verify' &&
    authorized?.state === 'metered' &&
    authorized.transfer.validBefore * 1000n < BigInt(at)
  const isKnown = isTaken(known) || (authorized !== undefined && !isOver)
  return { operation, relayers, now: at, isKnown }
}

/** The money was sent or has arrived, so the validity period no longer matters. */
function isTaken(known: Payment | undefined): known is Payment {
  return known?.state === 'broadcast' || known?.state === 'confirmed'
}

/**
 * Verifies a request with one call to a node, and none when the result is already known. Only a payer
 * with code whose transfer fails needs a second call.
 */
export async function verifyRequest(
  options: VerificationOptions,
  subject: CheckedRequest,
): Promise<Refusal | undefined> {
  const early = refuseEarly(options, subject)
  if (early !== undefined) return early
  const late = refuseLate(options, subject)
  const { known, authorized } = subject
  // A reverted payment may be sent again under the same requirements. An expired one is verified
  // again, because the chain also refuses it.
  const isReverted = known?.state === 'reverted' && isSame(subject, known)
  const isAgain = isReverted || known?.state === 'expired'
  const stored = authorized ?? (isAgain ? undefined : known)
  return stored ? verifyKnown(subject, stored, late) : verifyOnChain(options, subject, late)
}

/** Whether nothing is charged: then the ceiling is verified, and nothing is sent. */
export function isFree({ transfer }: Pick<CheckedRequest, 'transfer'>): boolean {
  return transfer.upto !== undefined && transfer.amountAtomic === 0n
}

/**
 * Verifies the signed transfer; with `upto`, with the whole ceiling. `late`: the refusal that
 * applies if the signature is valid.
 */
export async function verifyOnChain(
  { settlement, sponsor }: VerificationOptions,
  subject: CheckedRequest,
  late: Fault | undefined,
): Promise<Refusal | undefined> {
  if (late !== undefined && subject.isSigned()) return late
  const { request, network, sponsored } = subject
  const transfer = Transfer.atCeiling(subject.transfer)
  if (!settlement.isReady(network.id)) {
    return Refusals.later('The network cannot settle now; try again with the same credential.', 5)
  }
  if (!isFree(subject) && !settlement.hasBudget(network.id, 'facilitator')) {
    return Refusals.budgetSpent
  }
  if (!isFree(subject) && isPaused(settlement, transfer)) return relayerPaused
  const verdict = await settlement.verify(transfer, domainOf(request, network))
  if ('ok' in verdict) return late
  const approval = 'code' in sponsored ? undefined : sponsored.approval
  if (late === undefined && approval && sponsor && lacksAllowance(verdict)) {
    const checked = await sponsor.check(transfer, approval)
    if (checked.kind === 'good') return undefined
    if (checked.kind === 'unavailable') return checked
    return fault(refusalReasonOf(checked.code), checked.detail)
  }
  if (verdict.kind === 'unavailable') return verdict
  const isUnsigned = Refusals.isUnsigned(verdict)
  return late && !isUnsigned ? late : fault(verdict.reason, verdict.detail)
}

/** Whether only other relayers than the one that the payer named can send now. */
function isPaused({ authorizations }: Settlement, transfer: Transfer.Transfer): boolean {
  if (transfer.upto === undefined) return false
  // Without any relayer the chain lacks the proxy, which the simulation shows.
  const hasOthers = authorizations.facilitators(transfer.network, 0n).length > 0
  return hasOthers && !authorizations.isServed(transfer)
}

const relayerPaused = Refusals.later(
  'The relayer that this authorization names cannot send now: sign for another of /supported.',
  60,
)

/**
 * Verifies a payment that is already stored. It is good as long as `settle` would still answer with
 * success, so that a buyer whose settlement was pending is not asked for a second payment. Of `upto`
 * that needs the same charge as before. An authorization that is stored is used, unless a gateway is to
 * settle it.
 */
function verifyKnown(
  subject: CheckedRequest,
  known: Payment | Authorization,
  late: Fault | undefined,
): Fault | undefined {
  const isOurs = isGenuine(subject, known)
  if (!isOurs && !subject.isSigned()) return notSigned(subject)
  if (late !== undefined) return late
  const isUnspent =
    'delivery' in known
      ? isTaken(known) && known.delivery === 'none' && isSame(subject, known)
      : isUnderWay(subject, known)
  return isOurs && isUnspent ? undefined : usedFault(known.transfer)
}

/** The chain verified a contract's signature, so it must equal the signature that was verified. */
export function isGenuine(
  { isSigned, isOwnDomain, transfer }: CheckedRequest,
  known: Pick<Payment, 'transfer'>,
): boolean {
  if (isOwnDomain && isSigned()) return true
  return unwrap(transfer).signature === unwrap(known.transfer).signature
}

/**
 * Whether this facilitator took the payment under the same requirements, for the same caller and
 * with the same payload. The chain publishes what the buyer signed. So without comparing the
 * payload, a reader of the chain could take the one success, or buy with it at the caller's
 * resource server. A payment from before payloads were stored matches by the caller's API key, and
 * never without a key. To verify `upto`, the charge of the payment may be any below the ceiling.
 */
export function isSame(
  { operation, request, keyHash }: CheckedRequest,
  { purpose, transfer }: Pick<Payment, 'purpose' | 'transfer'>,
): boolean {
  const { credentialHash } = purpose
  const { requirements } = request
  const fingerprint =
    operation === 'verify'
      ? Facilitation.fingerprintAt(requirements, transfer.amountAtomic)
      : requirements.fingerprint
  const isPayload =
    credentialHash === undefined ? keyHash !== undefined : credentialHash === request.credentialHash
  return (
    isPayload &&
    purpose.product === 'facilitator' &&
    purpose.fingerprint === fingerprint &&
    purpose.route === Policy.routeOf(keyHash)
  )
}

/**
 * Whether an authorization is a settlement of this facilitator that the gateway with its relayer has not
 * sent yet, and that `isSame`.
 */
export function isUnderWay(
  subject: CheckedRequest,
  { state, purpose, transfer, charge }: Authorization,
): boolean {
  if (state !== 'metered' || charge === undefined) return false
  return isSame(subject, {
    purpose,
    transfer: { ...transfer, amountAtomic: charge.amountAtomic },
  })
}

/** The fault of a signature that is not the payer's: it names the signer that was expected. */
export function notSigned({ request, network, transfer }: CheckedRequest): Fault {
  const detail = Explanation.otherSigner(transfer, domainOf(request, network))
  return fault(Transfer.signatureCodes[transfer.method], detail)
}

/** The fault of a spent authorization. */
export function usedFault(transfer: Pick<Transfer.Transfer, 'method'>): Fault {
  return fault(Refusals.usedReason(transfer), Refusals.used)
}
