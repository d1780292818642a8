import type { Hex } from 'viem'
import type { Protocol } from '../../db/Payment'
import type { Asset } from '../protocol/Asset'
import * as Challenge from '../protocol/Challenge'
import * as Credential from '../protocol/Credential'
import * as Crypto from '../protocol/Crypto'
import * as Explanation from '../protocol/Explanation'
import type { Network } from '../protocol/Network'
import type { Offer } from '../protocol/Offer'
import * as Problem from '../protocol/Problem'
import * as Sponsoring from '../protocol/Sponsoring'
import * as Transfer from '../protocol/Transfer'
import * as X402Payload from '../protocol/X402Payload'
import type { Reason } from '../settlement/send/Outcome'
import type { ApprovalSponsor } from '../settlement/sponsorship'
import type { Presented } from './extract'
import { type Item, isOutside, offersFor, type RetiredOffer } from './offer/Item'

/**
 * A credential that pays an offer of the item exactly, as far as that can be checked without the
 * chain.
 */
export type Presentation = {
  protocol: Protocol
  transfer: Transfer.Transfer
  /** Other transfers that it may mean; only the chain can decide. */
  alternatives: readonly Pick<Presentation, 'transfer' | 'refusal'>[]
  /**
   * Whether the payer's key signed it; otherwise its contract may still accept the signature.
   * Recovered at the first call, because a settlement may decide it without that.
   */
  isKeySigned: () => boolean
  signatureReason: Reason
  /** What to tell the payer about a signature that is not of its key. */
  expectedSigner: () => string
  /**
   * Why a new payment may not use it: its time is over or has not come, or its amount is not the
   * price. Computed at each call, because the price may need a look into the body.
   */
  refusal: () => Problem.Fault | undefined
  /** Whether the credential is bound to this service. */
  bound: boolean
  /** The x402 payment-identifier. */
  identifier?: string | undefined
  /** Id of the MPP challenge that it answers; part of the receipt. */
  challengeId?: string | undefined
  /** Hash of an x402 credential as it was sent; see `mayContinue`. */
  credentialHash?: string | undefined
  /** The payer's signed approve of Permit2, for the sponsor. */
  approval?: Hex | undefined
}

/** What is asked for with a credential. */
export type Asked = {
  item: Item
  /** The item at the price of this request, where the price depends on it. May be called again. */
  priced?: (() => Item) | undefined
  /** The result of `extract` on the headers. */
  presented: Presented
  /** Absolute, with its query, as requested. */
  url: string
  /** RFC 9530 digest of the body. */
  digest: string | undefined
}

export type CredentialOptions = {
  challengeSecrets: readonly Uint8Array[]
  realm: string
  /** Sends the approves that payers sign; undefined without a sponsor. */
  sponsor: ApprovalSponsor | undefined
  now: () => number
}

/**
 * Decodes a credential and compares it with the item. No I/O. Throws ProblemError: 402 for what a
 * new payment would correct, 400 for a malformed `PAYMENT-SIGNATURE` or credentials that exclude
 * each other.
 */
export function present(asked: Asked, options: CredentialOptions): Presentation {
  const { presented } = asked
  switch (presented.kind) {
    case 'mpp':
      return mpp(presented.value, asked, options)
    case 'x402':
      return x402(presented, asked, options)
    case 'fault':
      throw Problem.ofFault(presented.fault, 'multiple-credentials')
    case 'none':
    case 'redeem':
      throw new Error(`not a credential: ${presented.kind}`)
  }
}

/**
 * The money that a credential names, before it is compared with an offer: used to look up its
 * payment.
 */
export type Named = Omit<Presentation, 'alternatives' | 'refusal' | 'challengeId' | 'approval'>

/** The transfer of a credential if it pays on this network. Undefined when unreadable. */
export function peek(presented: Presented, network: Network): Named | undefined {
  if (presented.kind === 'mpp') {
    const parsed = Credential.parse(presented.value)
    if (Problem.isFault(parsed)) return undefined
    return { ...named(parsed.transfer, network.asset), protocol: 'mpp', bound: false }
  }
  if (presented.kind !== 'x402') return undefined
  const parsed = payloadOf(presented)
  if (Problem.isFault(parsed)) return undefined
  const { method, signed, identifier } = parsed
  const { spender: _, facilitator: __, asset = network.asset.address, ...rest } = signed
  const transfer = { method, network: network.id, chainId: network.chainId, ...rest, asset }
  const own = { identifier, credentialHash: credentialHash(presented) }
  return { ...named(transfer, network.asset), protocol: 'x402', bound: false, ...own }
}

/** Whether the payer's own key signed a transfer in its asset's domain. */
function isSignedIn(transfer: Transfer.Transfer, asset: Asset): boolean {
  return Crypto.recover(Transfer.digest(transfer, asset), transfer.signature) === transfer.payer
}

/**
 * Whether a challenge was issued for an item. Only the digest binds the body, so the challenge of
 * the other method is valid only without a body.
 */
function isFor(route: string, { id, twin }: Item, digest: string | undefined): boolean {
  const isOf = (of: string) => route === Challenge.routeTag(of) || route === of
  return isOf(id) || (digest === undefined && twin !== undefined && isOf(twin))
}

function mpp(
  value: string,
  { item, priced = () => item, digest }: Asked,
  { challengeSecrets: secrets, realm, now }: CredentialOptions,
): Presentation {
  const parsed = Credential.parse(value)
  if (Problem.isFault(parsed)) throw Problem.ofFault(parsed, 'malformed-credential')
  const challenge = Challenge.verify(parsed.challenge, { secrets, realm })
  if (Problem.isFault(challenge)) throw Problem.ofFault(challenge, 'invalid-challenge')
  if (!isFor(challenge.route, item, digest))
    throw Problem.of(
      'invalid-challenge',
      'The challenge was issued for another route: pay a challenge of this one.',
    )
  if (challenge.digest !== undefined && challenge.digest !== digest)
    throw Problem.of(
      'invalid-challenge',
      'The body is not the one the challenge was issued for: send that body, or request a new challenge.',
    )
  const { request } = challenge
  const isMeant = ({ network, payTo }: Offer) =>
    network.chainId === request.chainId &&
    network.asset.address === request.currency &&
    payTo === request.recipient
  // The challenge fixes the price, even if it has changed since; the payee must still be ours.
  const offer =
    item.offers.find(isMeant) ??
    offersFor(item, request.amountAtomic).find(
      (each) => isMeant(each) && each.amountAtomic === request.amountAtomic,
    )
  if (offer === undefined)
    throw Problem.of(
      'invalid-challenge',
      'The offer of this challenge is no longer made: pay a fresh one.',
    )
  return {
    ...signed(parsed.transfer, offer),
    protocol: 'mpp',
    alternatives: [],
    refusal: () =>
      Challenge.checkExpiry(challenge, now()) ??
      checkAmount(priced(), request.amountAtomic, 'invalid-challenge') ??
      checkOffer(offer, now(), 'invalid-challenge') ??
      Transfer.checkWindow(parsed.transfer, now(), Transfer.windowMaxSeconds),
    bound: true,
    challengeId: challenge.id,
  }
}

function x402(
  credential: Extract<Presented, { kind: 'x402' }>,
  { item, priced = () => item, url }: Asked,
  { sponsor, now }: CredentialOptions,
): Presentation {
  const parsed = payloadOf(credential)
  if (Problem.isFault(parsed)) throw Problem.ofFault(parsed, 'malformed-payment-signature')
  const matches = matchesOf(parsed, item)
  if ('code' in matches) throw Problem.ofFault(matches, 'verification-failed')
  const presented = matches.map(({ transfer, offer }) => ({
    ...signed(transfer, offer),
    refusal: () =>
      checkOffer(offer, now(), 'invalid_payment_requirements') ??
      checkAmount(priced(), transfer.amountAtomic, 'invalid_payment_requirements') ??
      Transfer.checkWindow(transfer, now(), Transfer.windowMaxSeconds),
  }))
  const isOnly = presented.length === 1
  const chosen = (!isOnly && presented.find(({ isKeySigned }) => isKeySigned())) || presented[0]
  if (chosen === undefined) throw new Error('an x402 match without an offer')
  const options = { now: now(), takesApprovals: sponsor !== undefined }
  const sponsored = Sponsoring.read(parsed.extensions, chosen.transfer, options)
  const late = isLate(sponsored) ? sponsored : undefined
  if (Problem.isFault(sponsored) && !late) throw Problem.ofFault(sponsored, 'verification-failed')
  const { permit2612, approval } = Problem.isFault(sponsored) ? Sponsoring.nothing : sponsored
  return {
    ...chosen,
    transfer: { ...chosen.transfer, ...(permit2612 && { permit2612 }) },
    refusal: () => chosen.refusal() ?? late,
    approval,
    protocol: 'x402',
    alternatives: isOnly || chosen.isKeySigned() ? [] : presented.filter((each) => each !== chosen),
    bound: X402Payload.isRouteBound(parsed, { url, method: item.method }),
    identifier: parsed.identifier,
    credentialHash: credentialHash(credential),
  }
}

/** Whether a fault is only about time, which does not apply to a known payment. */
function isLate(sponsored: object): sponsored is Problem.Fault {
  return Problem.isFault(sponsored) && sponsored.code === 'eip2612_deadline_expired'
}

/** Whether a new payment may use an offer. */
function checkOffer(
  offer: Offer | RetiredOffer,
  now: number,
  code: string,
): Problem.Fault | undefined {
  if (!('until' in offer) || offer.until > now) return undefined
  return { code, detail: 'This offer is no longer made: pay a fresh one.' }
}

/**
 * Whether an amount pays for a request whose price depends on it. Not applied to a known payment:
 * it was checked when it was new, and prices may have changed since.
 */
function checkAmount(item: Item, amountAtomic: bigint, code: string): Problem.Fault | undefined {
  if (!isOutside(item, amountAtomic)) return undefined
  const [least] = item.offers
  const price = least === undefined ? 'unknown' : String(least.amountAtomic)
  return { code, detail: `The amount ${amountAtomic} is not the price of this request, ${price}.` }
}

function signed(transfer: Transfer.Transfer, offer: Offer): Signing {
  const own = named(transfer, offer.network.asset)
  // Token contracts want v as 27 or 28, whatever the buyer's library writes.
  if (Crypto.isCanonical(transfer.signature) || !own.isKeySigned()) return own
  const signature = Crypto.withCanonicalV(transfer.signature)
  return { ...own, transfer: { ...transfer, signature } }
}

type Signing = Pick<Presentation, 'transfer' | 'isKeySigned' | 'signatureReason' | 'expectedSigner'>

/** A transfer with the check of its signature, made at the first call. */
function named(transfer: Transfer.Transfer, asset: Asset): Signing {
  let signed: boolean | undefined
  return {
    transfer,
    isKeySigned() {
      signed ??= isSignedIn(transfer, asset)
      return signed
    },
    expectedSigner: () => Explanation.otherSigner(transfer, asset.eip712),
    signatureReason:
      transfer.method === 'permit2' ? 'invalid_permit2_signature' : 'invalid_exact_evm_signature',
  }
}

/**
 * sha256 (hex) of an x402 credential as it was sent. The chain publishes the signed values, but not
 * these bytes
 */
function credentialHash(presented: X402): string {
  return new Bun.CryptoHasher('sha256').update(presented.value).digest('hex')
}

type X402 = Extract<Presented, { kind: 'x402' }>
type Payload = X402Payload.Parsed | Problem.Fault
type Matches = readonly X402Payload.Match[] | Problem.Fault

const payloads = new WeakMap<X402, Payload>()
const matched = new WeakMap<X402Payload.Parsed, { item: Item; matches: Matches }>()

/** The x402 payload of a request, parsed once: before its body is read, and when it is sold. */
export function payloadOf(presented: X402): Payload {
  let payload = payloads.get(presented)
  if (payload === undefined) {
    payload = X402Payload.parsePayload(presented.value)
    payloads.set(presented, payload)
  }
  return payload
}

/** The offers of an item that a payload may pay. Compared once, like the payload is parsed once. */
export function matchesOf(payload: X402Payload.Parsed, item: Item): Matches {
  const known = matched.get(payload)
  if (known?.item === item) return known.matches
  const offers = offersFor(item, payload.signed.amountAtomic)
  const matches = X402Payload.matchOffer(payload, offers, item.isByUse === true)
  matched.set(payload, { item, matches })
  return matches
}
