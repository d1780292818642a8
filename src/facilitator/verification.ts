import type { Address, Hex } from 'viem'
import { zero } from '../protocol/Address'
import * as Crypto from '../protocol/Crypto'
import * as Facilitation from '../protocol/Facilitation'
import type * as Network from '../protocol/Network'
import type { Fault } from '../protocol/Problem'
import * as Sponsoring from '../protocol/Sponsoring'
import * as Transfer from '../protocol/Transfer'
import type { Payment } from '../settlement/Payment'
import * as Refusals from '../settlement/refusals'
import type { Settlement } from '../settlement/settlement'
import { unwrap } from '../settlement/signature'
import type { ApprovalSponsor } from '../settlement/sponsorship'
import { lacksAllowance, reasonOf } from '../settlement/sponsorship'
import * as Policy from './Policy'

export type JudgeOptions = {
  settlement: Settlement
  /** Sends the approves that payers sign; undefined when there is no sponsor. */
  sponsor: ApprovalSponsor | undefined
  networks: readonly Network.Network[]
  policy: Policy.Policy
  now: () => number
}

/** What a request asks for, and what is known of it without a chain. */
export type Case = {
  request: Facilitation.FacilitatorRequest
  network: Network.Network
  transfer: Transfer.Transfer
  /** Whether the payer's key signed it under the domain of the requirements. Costs more than all else. */
  isSigned: () => boolean
  /** That domain is the token's own. */
  isOwnDomain: boolean
  /** What the payer added so that Permit2 may take its token, or what is wrong with that. */
  sponsored: Sponsoring.Sponsored | Fault
  /** The payment of this money, if there is one. */
  known: Payment | undefined
  /** Of the caller, if it showed an API key. */
  keyHash: Hex | undefined
}

export type Judgement =
  | { kind: 'good' }
  | { kind: 'bad'; reason: string; detail: string }
  | { kind: 'unavailable'; detail: string; retryAfterSeconds: number }

/** Reads what a request asks for. Faults are answered 400: `invalid_network` and those of `parse`. */
export function open(
  { settlement, sponsor, networks, now }: JudgeOptions,
  body: Uint8Array,
  keyHash: Hex | undefined,
): Case | Fault {
  const parsed = Facilitation.parse(body)
  if ('code' in parsed) return parsed
  const { request, extensions } = parsed
  const { requirements } = request
  const network = networks.find(({ id }) => id === requirements.network)
  if (network === undefined) {
    return { code: 'invalid_network', detail: 'The network is not one that is settled here.' }
  }
  const signed = Facilitation.transferOf(request, network.chainId)
  const sponsored = Sponsoring.read(extensions, signed, {
    now: now(),
    takesApprovals: sponsor !== undefined,
  })
  const permit2612 = 'code' in sponsored ? undefined : sponsored.permit2612
  const transfer = { ...signed, ...(permit2612 && { permit2612 }) }
  const eip712 = domainOf(request, network)
  let signer: Address | undefined
  const { name, version } = network.asset.eip712
  return {
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
    known: transfer.asset === network.asset.address ? settlement.find(transfer) : undefined,
    keyHash,
  }
}

/** The EIP-712 domain that the payer was told to sign. */
function domainOf({ requirements }: Facilitation.FacilitatorRequest, network: Network.Network) {
  const { name, version } = requirements
  if (name === undefined || version === undefined) return network.asset.eip712
  return { name, version }
}

/** Refusals that come before any look at the signature, in the order of the reference facilitator. */
export function refuseEarly(options: JudgeOptions, subject: Case): Fault | undefined {
  const { request, known } = subject
  const fault = Facilitation.checkScheme(request)
  if (fault !== undefined) return fault
  // What was sent under an earlier configuration costs nothing more, and its money may have moved.
  const isSent = isTaken(known) && isSame(subject, known)
  const refusal = isSent ? undefined : Policy.check(options.policy, request)
  if (refusal !== undefined || request.parsed.method !== 'permit2') return refusal
  return Facilitation.checkTerms(request, options.now(), isTaken(known))
}

/** Refusals that the reference facilitator finds behind a good signature. */
export function refuseLate(
  { now }: JudgeOptions,
  { request, known, sponsored }: Case,
): Fault | undefined {
  if (request.parsed.method === 'eip3009') {
    return Facilitation.checkTerms(request, now(), isTaken(known))
  }
  return !isTaken(known) && 'code' in sponsored ? sponsored : undefined
}

/** The money is on its way or has arrived: its time no longer matters. */
function isTaken(known: Payment | undefined): known is Payment {
  return known?.state === 'broadcast' || known?.state === 'confirmed'
}

/**
 * The whole verdict with at most one call to a node, which is spared when the answer is known before.
 */
export async function judge(options: JudgeOptions, subject: Case): Promise<Judgement> {
  const early = refuseEarly(options, subject)
  if (early !== undefined) return bad(early)
  const late = refuseLate(options, subject)
  if (late !== undefined && subject.isSigned()) return bad(late)
  const { known } = subject
  // What failed may be sent again, under the same requirements; what is over is over on chain too.
  const isAgain = known?.state === 'reverted' && isSame(subject, known)
  if (known === undefined || known.state === 'expired' || isAgain) {
    return judgeByChain(options, subject, late)
  }
  return judgeKnown(subject, known, late)
}

/** `late`: what stands against it if its signature is good. */
export async function judgeByChain(
  { settlement, sponsor }: JudgeOptions,
  { request, network, transfer, sponsored }: Case,
  late: Fault | undefined,
): Promise<Judgement> {
  if (!settlement.isReady(network.id)) {
    const detail = 'The network cannot settle now; try again with the same credential.'
    return { kind: 'unavailable', detail, retryAfterSeconds: 5 }
  }
  if (!settlement.hasBudget(network.id, 'facilitator')) {
    const detail = 'The gas budget of today is spent.'
    return { kind: 'unavailable', detail, retryAfterSeconds: 600 }
  }
  const verdict = await settlement.verify(transfer, domainOf(request, network))
  if ('ok' in verdict) return late === undefined ? { kind: 'good' } : bad(late)
  const approval = 'code' in sponsored ? undefined : sponsored.approval
  if (late === undefined && approval && sponsor && lacksAllowance(verdict)) {
    const checked = await sponsor.check(transfer, approval)
    if (checked.kind !== 'refused') return checked
    return { kind: 'bad', reason: reasonOf(checked.code), detail: checked.detail }
  }
  switch (verdict.kind) {
    case 'refused':
    case 'dead':
    case 'reverted': {
      const { reason } = verdict
      if (late !== undefined && !Refusals.isUnsigned({ reason })) return bad(late)
      const detail = verdict.kind === 'reverted' ? 'the transaction failed' : verdict.detail
      return { kind: 'bad', reason, detail }
    }
    case 'unavailable':
      return verdict
    case 'pending':
    case 'confirmed':
      throw new Error('a verification does not settle')
  }
}

/**
 * Money that is known already: good as long as `settle` would still answer with success, so that a
 * buyer whose settlement was pending is not asked for a second payment.
 */
export function judgeKnown(subject: Case, known: Payment, late: Fault | undefined): Judgement {
  const isOurs = isGenuine(subject, known)
  if (!isOurs && !subject.isSigned()) {
    const reason = Refusals.signatureReason(subject.transfer)
    return { kind: 'bad', reason, detail: 'the signature is not of the payer' }
  }
  if (late !== undefined) return bad(late)
  const isUnspent = isTaken(known) && known.delivery === 'none'
  if (isOurs && isUnspent && isSame(subject, known)) return { kind: 'good' }
  return { kind: 'bad', ...used(known.transfer) }
}

/** A contract's signature was judged by the chain: here it must be the one that was. */
export function isGenuine({ isSigned, isOwnDomain, transfer }: Case, known: Payment): boolean {
  if (isOwnDomain && isSigned()) return true
  return unwrap(transfer).signature === unwrap(known.transfer).signature
}

/**
 * Whether this facilitator took the payment under the same requirements, for the same caller and by
 * the same payload. The chain publishes what the buyer signed: without comparing the payload, a
 * reader of the chain could take the one success, or buy with it at the caller's shop. A payment
 * from before payloads were kept is matched by the caller's API key, and without a key never.
 */
export function isSame({ request, keyHash }: Case, { purpose }: Payment): boolean {
  const { credentialHash } = purpose
  const isPayload =
    credentialHash === undefined ? keyHash !== undefined : credentialHash === request.credentialHash
  return (
    isPayload &&
    purpose.product === 'facilitator' &&
    purpose.fingerprint === request.requirements.fingerprint &&
    purpose.route === routeOf(keyHash)
  )
}

/** Payments of a caller with an API key are its own. */
export function routeOf(keyHash: Hex | undefined): string {
  return keyHash === undefined ? '' : `key:${keyHash.slice(2, 18)}`
}

/** What a spent authorization is answered with. */
export function used(transfer: Pick<Transfer.Transfer, 'method'>) {
  return { reason: Refusals.usedReason(transfer), detail: 'the nonce of the authorization is used' }
}

function bad({ code, detail }: Fault): Judgement {
  return { kind: 'bad', reason: code, detail }
}
