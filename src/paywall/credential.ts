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
import * as SignIn from '../protocol/SignIn'
import * as Sponsoring from '../protocol/Sponsoring'
import * as Transfer from '../protocol/Transfer'
import * as X402 from '../protocol/X402'
import * as X402V1 from '../protocol/X402V1'
import type { Settlement } from '../settlement/settlement'
import type { ApprovalSponsor } from '../settlement/sponsorship'
import { findByToken } from './answer/undelivered'
import * as Denial from './Denial'
import type { Item, RetiredOffer } from './offer/Item'

/** The only credential of a request, still encoded; `none` requests a challenge. */
export type Presented =
  | { kind: 'none' }
  | { kind: 'mpp'; value: string }
  | PresentedX402
  | { kind: 'redeem'; token: string }
  | PresentedSignIn
  | { kind: 'fault'; fault: Problem.Fault }

/** The header `SIGN-IN-WITH-X`, which counts only where a request has nothing else. */
type PresentedSignIn = {
  kind: 'sign-in'
  value: string
  /** Set for the valid one of a wallet that has nothing here. Stock clients sign in before they pay. */
  isUnentitled?: boolean
}

type PresentedX402 = {
  kind: 'x402'
  value: string
  /** Whether it is in `X-PAYMENT`, the only header that takes version 1. */
  isLegacy: boolean
  /** Parsed once: before the body is read, and when it is sold. */
  payload?: X402.Parsed | Problem.Fault
  /** Set for a voucher of a known channel that is out of step: it was no stranger's. */
  isCorrected?: boolean
  /** The offers of the item that it may pay, compared once. */
  matched?: { item: Item; matches: Matches }
}

type Matches = readonly X402.Match[] | Problem.Fault

/**
 * The money that a credential names, before it is compared with an offer: used to look up its
 * payment.
 */
export type Named = {
  protocol: Protocol
  transfer: Transfer.Transfer
  /** Its signing domain. */
  asset: Asset
  /**
   * Whether the payer's key signed it; otherwise its contract may still accept the signature.
   * Recovered at the first call, because a settlement may decide it without that.
   */
  isKeySigned: () => boolean
  /** Whether the credential is bound to this service. */
  bound: boolean
  /** The x402 payment-identifier. */
  identifier?: string | undefined
  /** Hash of an x402 credential as it was sent, unless anyone can rebuild it; see `mayContinue`. */
  credentialHash?: string | undefined
}

/**
 * A credential that pays an offer of the item exactly, as far as that can be checked without the
 * chain.
 */
export type Presentation = Named & {
  /** Other transfers that it may mean; only the chain can decide. */
  alternatives: readonly Pick<Presentation, 'transfer' | 'asset' | 'refusal'>[]
  /**
   * Why a new payment may not use it: its time is over or has not come, or its amount is not the
   * price. Computed at each call, because the price may need a look into the body.
   */
  refusal: () => Problem.Fault | undefined
  /** Id of the MPP challenge that it answers; part of the receipt. */
  challengeId?: string | undefined
  /** The payer's signed approve of Permit2, for the sponsor. */
  approval?: Hex | undefined
}

/** The request has no credential. */
const none = { kind: 'none' } as const satisfies Presented
const scheme = /^payment(?: |$)/i
const redeemToken = /^(?:pay_[0-9a-f]{32}\.)?[A-Za-z0-9_-]{43}$/

/**
 * Finds the credential in the headers of a request. A server joins repeated headers with commas,
 * and no credential contains one, so a comma means two credentials. `Authorization` of another
 * scheme counts as none.
 */
export function extract(headers: Headers): Presented {
  const authorization = headers.get('authorization')
  const signature = headers.get('payment-signature')
  const legacy = headers.get('x-payment')
  const redeem = headers.get('payment-redeem')
  if (authorization === null && signature === null && legacy === null && redeem === null)
    return none

  const found: Exclude<Presented, { kind: 'none' | 'sign-in' | 'fault' }>[] = []
  if (authorization !== null && scheme.test(authorization))
    found.push({ kind: 'mpp', value: authorization })
  const isLegacy = legacy !== null
  // Some clients send one value under both the v2 and the v1 name.
  if (signature !== null && signature !== legacy)
    found.push({ kind: 'x402', value: signature, isLegacy: false })
  if (isLegacy) found.push({ kind: 'x402', value: legacy, isLegacy })
  if (redeem !== null) found.push({ kind: 'redeem', token: redeem })

  const values = found.map((each) => (each.kind === 'redeem' ? each.token : each.value))
  // `Authorization: Bearer x` and `Authorization: Payment y` arrive joined as one value. Before
  // "none": a buyer with a payment behind another scheme must not get a second challenge.
  const isHidden = /,\s*payment /i.test(authorization ?? '')
  if (isHidden || found.length > 1 || values.some((value) => value.includes(',')))
    return fault('multiple-credentials', 'Send exactly one payment credential.')
  const [first] = found
  if (first === undefined) return none
  if (first.kind === 'redeem' && !redeemToken.test(first.token))
    return fault('invalid-redeem-token', 'Payment-Redeem is not a token of this service.')
  return first
}

/** The same at an item where wallets may sign in. */
export function extractWithSignIn(headers: Headers): Presented {
  const found = extract(headers)
  const value = found.kind === 'none' ? headers.get(SignIn.name) : null
  return value === null ? found : { kind: 'sign-in', value }
}

function fault(code: string, detail: string): Presented {
  return { kind: 'fault', fault: { code, detail } }
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
  /** What offers of a network say of payment channels; undefined: there are none. */
  channelOf: (network: Network['id']) => X402.ChannelTerms | undefined
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
    case 'sign-in':
      throw new Error(`not a credential: ${presented.kind}`)
  }
}

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
  // What sells by this function has no offers of version 1 and takes no channels.
  if (parsed.network !== undefined || parsed.channel !== undefined) return undefined
  const { method, signed, identifier } = parsed
  const { spender: _, facilitator: __, asset = network.asset.address, ...rest } = signed
  const transfer = { method, network: network.id, chainId: network.chainId, ...rest, asset }
  const own = { identifier, credentialHash: Crypto.sha256(presented.value) }
  return { ...named(transfer, network.asset), protocol: 'x402', bound: false, ...own }
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
  credential: PresentedX402,
  { item, priced = () => item, url }: Asked,
  { sponsor, channelOf, now }: CredentialOptions,
): Presentation {
  const parsed = payloadOf(credential)
  if (Problem.isFault(parsed)) throw Problem.ofFault(parsed, 'malformed-payment-signature')
  const matches = matchesOf(credential, parsed, { item, channelOf })
  if ('code' in matches) throw Problem.ofFault(matches, 'verification-failed')
  const presented = matches.map(({ transfer, offer }) => ({
    ...signed(transfer, offer),
    refusal: () =>
      checkScheme(item, parsed) ??
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
  const { approval } = Problem.isFault(sponsored) ? Sponsoring.nothing : sponsored
  return {
    ...chosen,
    transfer: Sponsoring.withPermit(chosen.transfer, sponsored),
    refusal: () => chosen.refusal() ?? late,
    approval,
    protocol: 'x402',
    alternatives: isOnly || chosen.isKeySigned() ? [] : presented.filter((each) => each !== chosen),
    bound: X402.isRouteBound(parsed, { url, method: item.method }),
    identifier: parsed.identifier,
    // All of a payload of version 1 is on the chain once it is sent, so its bytes prove nothing.
    credentialHash: parsed.network === undefined ? Crypto.sha256(credential.value) : undefined,
  }
}

/** Whether a fault is only about time, which does not apply to a known payment. */
function isLate(sponsored: object): sponsored is Problem.Fault {
  return Problem.isFault(sponsored) && sponsored.code === 'eip2612_deadline_expired'
}

/** Whether a new payment may use the scheme. */
function checkScheme({ isExact }: Item, { scheme }: X402.Parsed): Problem.Fault | undefined {
  if (isExact !== false || scheme !== 'exact') return undefined
  return { code: 'unsupported_scheme', detail: 'This scheme is not offered.' }
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
  const least = item.offers[0]?.amountAtomic
  if (item.mostAtomic === undefined || least === undefined) return undefined
  if (amountAtomic >= least && amountAtomic <= item.mostAtomic) return undefined
  return { code, detail: `The amount ${amountAtomic} is not the price of this request, ${least}.` }
}

function signed(transfer: Transfer.Transfer, offer: Offer): Signing {
  const own = named(transfer, offer.network.asset)
  // Token contracts want v as 27 or 28, whatever the buyer's library writes.
  if (Crypto.isCanonical(transfer.signature) || !own.isKeySigned()) return own
  const signature = Crypto.withCanonicalV(transfer.signature)
  return { ...own, transfer: { ...transfer, signature } }
}

type Signing = Pick<Named, 'transfer' | 'asset' | 'isKeySigned'>

/** A transfer with the check of its signature, made at the first call. */
function named(transfer: Transfer.Transfer, asset: Asset): Signing {
  let signed: boolean | undefined
  return {
    transfer,
    asset,
    isKeySigned() {
      signed ??=
        Crypto.recover(Transfer.digest(transfer, asset), transfer.signature) ===
        Transfer.signerOf(transfer)
      return signed
    },
  }
}

/**
 * Throws ProblemError 402 unless a credential has the signature with which its money is known, or
 * that of the payer's key. The chain has accepted one signature of a contract.
 */
export function assertSigned(
  { transfer, asset, isKeySigned }: Named,
  { signature }: Pick<Transfer.Transfer, 'signature'>,
): void {
  if (transfer.signature === signature || isKeySigned()) return
  const reason = Transfer.signatureCodes[transfer.method]
  throw Denial.verificationFailed(reason, Explanation.otherSigner(transfer, asset.eip712))
}

function payloadOf(presented: PresentedX402): X402.Parsed | Problem.Fault {
  const { parsePayload } = presented.isLegacy ? X402V1 : X402
  presented.payload ??= parsePayload(presented.value)
  return presented.payload
}

/**
 * `X-PAYMENT-RESPONSE` for a buyer that paid by version 1, by the `PAYMENT-RESPONSE` of its answer. Any
 * other buyer gets the same value under both names.
 */
export function legacyResponse(
  presented: Presented,
  paymentResponse: string | null | undefined,
): string | undefined {
  if (presented.kind !== 'x402' || !presented.isLegacy || !paymentResponse) return undefined
  const payload = payloadOf(presented)
  if (Problem.isFault(payload) || payload.network === undefined) return undefined
  return X402V1.responseOf(paymentResponse)
}

/** Whether a credential asks for the refund of a channel. */
export function isRefund(presented: Presented): boolean {
  if (presented.kind !== 'x402') return false
  const parsed = payloadOf(presented)
  return !Problem.isFault(parsed) && parsed.channel?.voucher.kind === 'refund'
}

function matchesOf(
  presented: PresentedX402,
  payload: X402.Parsed,
  { item, channelOf }: { item: Item } & Pick<CredentialOptions, 'channelOf'>,
): Matches {
  if (presented.matched?.item === item) return presented.matched.matches
  const offers = offersFor(item, payload.signed.amountAtomic)
  const matches =
    payload.network === undefined || item.takesV1
      ? X402.matchOffer(payload, offers, {
          takesUpto: item.isByUse === true,
          channelOf: item.isByChannel ? ({ network }) => channelOf(network.id) : undefined,
        })
      : noVersion1
  presented.matched = { item, matches }
  return matches
}

const noVersion1 = {
  code: 'invalid_x402_version',
  detail: 'x402 version 1 is not taken here: pay by version 2.',
}

/**
 * The offers that a payment of this amount may use. Where the price depends on the request, these
 * are all offers, so that a known payment is recognised whatever its request costs now.
 */
function offersFor(
  { offers, retired = [], mostAtomic }: Item,
  amountAtomic: bigint,
): readonly (Offer | RetiredOffer)[] {
  if (mostAtomic === undefined) return retired.length === 0 ? offers : [...offers, ...retired]
  const others = retired.filter(
    (before) => !offers.some((o) => o.network === before.network && o.payTo === before.payTo),
  )
  return [...offers, ...others].map((offer) => ({ ...offer, amountAtomic }))
}

/** Whether a request's credential justifies memory for its body; no check of the money. */
export type IsPlausible = (presented: Presented, item: Item) => Promise<boolean>

type PlausibilityOptions = Pick<CredentialOptions, 'challengeSecrets' | 'realm' | 'channelOf'> & {
  settlement: Pick<Settlement, 'findByRedeemToken' | 'findById'>
}

/**
 * Accepts a challenge of ours, an x402 payload that takes an offer of the item, a sign-in for this
 * service, and an issued redeem token. Makes no signature check and no node call. Otherwise any header
 * would put a body among the paid ones.
 */
export function createPlausibility(options: PlausibilityOptions): IsPlausible {
  const { challengeSecrets: secrets, realm, channelOf } = options
  return async (presented, item) => {
    if (presented.kind === 'mpp') {
      const parsed = Credential.parse(presented.value)
      if (Problem.isFault(parsed)) return false
      return !Problem.isFault(Challenge.verify(parsed.challenge, { secrets, realm }))
    }
    if (presented.kind === 'x402') {
      const parsed = payloadOf(presented)
      return (
        !Problem.isFault(parsed) && !('code' in matchesOf(presented, parsed, { item, channelOf }))
      )
    }
    if (presented.kind === 'sign-in') {
      const parsed = SignIn.parse(presented.value)
      return !Problem.isFault(parsed) && parsed.domain === new URL(item.resource.url).host
    }
    if (presented.kind !== 'redeem') return false
    return (await findByToken(options, presented.token)) !== undefined
  }
}

/** RFC 9530 digest of a body, `sha-256=:base64:`; undefined for an empty one. */
export function bodyDigest(body: Uint8Array): string | undefined {
  if (body.byteLength === 0) return undefined
  return `sha-256=:${new Bun.CryptoHasher('sha256').update(body).digest('base64')}:`
}

/**
 * Identifies what a payment was made for: sha256 (hex) over method, canonical path, query, body
 * digest, and of a charge by use the headers that select its answer. The parts before the headers
 * cannot contain a line feed, so the joined text is unambiguous.
 */
export function fingerprint(
  method: string,
  path: string,
  search: string,
  { digest = '', headers }: { digest?: string | undefined; headers?: string | undefined },
): string {
  const parts = [method, path, search, digest, ...(headers === undefined ? [] : [headers])]
  return Crypto.sha256(parts.join('\n'))
}
