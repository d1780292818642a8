import * as Address from './Address'
import * as Challenge from './Challenge'
import { decodeJson } from './Header'
import * as Json from './Json'
import * as Permit from './Permit'
import type { Fault } from './Problem'
import { readAuthorization, type Transfer } from './Transfer'

/**
 * MPP credential, `Authorization: Payment ..`, with an EIP-3009 `authorization` or a `permit2`
 * payload (draft-evm-charge-00; the permit2 witness is that of the x402ExactPermit2Proxy).
 */

/** A credential whose transfer matches the challenge that it echoes. */
export type Parsed = {
  /** Not proven to be ours: see `Challenge.verify`. */
  challenge: Challenge.Echo
  request: Challenge.ChargeRequest
  type: 'authorization' | 'permit2'
  transfer: Transfer
}

const headerPattern = /^Payment +([^ ]+) *$/i
const sourcePattern = /^did:pkh:eip155:([1-9]\d{0,15}):(0x[0-9a-fA-F]{40})$/

const permitProfile = [
  `Permit2 is settled by the x402ExactPermit2Proxy: sign spender ${Permit.proxyAddress}`,
  '(methodDetails.spender) with the witness "Witness(address to,uint256 validAfter)".',
  "The draft's PaymentWitness does not bind the payee.",
].join(' ')

/** The credential breaks a rule of the method. */
class TermsError extends Error {
  override readonly name = 'TermsError'
}

/**
 * Decodes a credential and compares it with the terms of the challenge that it echoes. Faults:
 * `malformed-credential`, `verification-failed`, `method-unsupported`. It does not check the
 * challenge's authenticity, the time or the signature.
 */
export function parse(value: string): Parsed | Fault {
  try {
    return Json.wellFormed('malformed-credential', 'The credential', () => decode(value))
  } catch (error) {
    if (!(error instanceof TermsError)) throw error
    return { code: 'verification-failed', detail: error.message }
  }
}

function decode(value: string): Parsed | Fault {
  const encoded = headerPattern.exec(value)?.[1]
  if (encoded === undefined) throw new Json.JsonError('not "Payment" and one base64url value')
  const json = decodeJson(encoded, 'base64url')
  const challenge = echo(Json.read(json, 'challenge', 'object'))
  const payload = Json.read(json, 'payload', 'object')
  if (challenge.method !== 'evm' || challenge.intent !== 'charge') {
    const detail = 'Only method "evm" with intent "charge" is accepted here.'
    return { code: 'method-unsupported', detail }
  }
  const request = Challenge.parseRequest(challenge.request)
  const type = Json.read(payload, 'type', 'text')
  if ((type !== 'authorization' && type !== 'permit2') || !request.credentialTypes.includes(type)) {
    const accepted = request.credentialTypes.join(', ')
    throw new TermsError(`The challenge accepts these credential types: ${accepted}.`)
  }
  const source = Json.optional(json, 'source', 'text')
  const transfer =
    type === 'authorization'
      ? authorization(payload, challenge, request)
      : permit(payload, challenge, request, source)
  checkSource(source, transfer)
  return { challenge, request, type, transfer }
}

function echo(json: Json.JsonObject): Challenge.Echo {
  return {
    id: Json.read(json, 'id', 'text'),
    realm: Json.read(json, 'realm', 'text'),
    method: Json.read(json, 'method', 'text'),
    intent: Json.read(json, 'intent', 'text'),
    request: Json.read(json, 'request', 'text'),
    expires: Json.optional(json, 'expires', 'text'),
    digest: Json.optional(json, 'digest', 'text'),
    opaque: Json.optional(json, 'opaque', 'text'),
  }
}

function authorization(
  payload: Json.JsonObject,
  challenge: Challenge.Echo,
  request: Challenge.ChargeRequest,
): Transfer {
  const transfer: Transfer = {
    method: 'eip3009',
    network: `eip155:${request.chainId}`,
    chainId: request.chainId,
    asset: request.currency,
    ...readAuthorization(payload),
    signature: Json.read(payload, 'signature', 'signature'),
  }
  expectTerms(transfer, challenge, request)
  return transfer
}

function permit(
  payload: Json.JsonObject,
  challenge: Challenge.Echo,
  request: Challenge.ChargeRequest,
  source: string | undefined,
): Transfer {
  const witness = Json.read(payload, 'witness', 'object')
  if (!request.permit2 || Json.member(witness, 'challengeHash') !== undefined) {
    throw new TermsError(permitProfile)
  }
  const owner = source === undefined ? undefined : sourcePattern.exec(source)
  if (!owner)
    throw new TermsError('A permit2 credential needs source did:pkh:eip155:{chain}:{owner}.')
  const permitJson = Json.read(payload, 'permit', 'object')
  const permitted = Json.read(permitJson, 'permitted', 'single')
  const details = Json.read(payload, 'transferDetails', 'single')
  const nonce = Json.read(permitJson, 'nonce', 'uint')
  const transfer: Transfer = {
    method: 'permit2',
    network: `eip155:${request.chainId}`,
    chainId: request.chainId,
    asset: Json.read(permitted, 'token', 'address'),
    payer: Json.read({ owner: owner[2] ?? null }, 'owner', 'address'),
    payee: Json.read(witness, 'to', 'address'),
    amountAtomic: Json.read(permitted, 'amount', 'uint'),
    nonce: `0x${nonce.toString(16).padStart(64, '0')}`,
    validAfter: Json.read(witness, 'validAfter', 'uint'),
    validBefore: Json.read(permitJson, 'deadline', 'uint'),
    signature: Json.read(payload, 'signature', 'signature'),
  }
  expectTerms(transfer, challenge, request)
  expect(transfer.validAfter === 0n, 'witness.validAfter must be "0".')
  expect(
    Json.read(details, 'to', 'address') === transfer.payee,
    'transferDetails[0].to must be witness.to.',
  )
  expect(
    Json.read(details, 'requestedAmount', 'uint') === transfer.amountAtomic,
    'transferDetails[0].requestedAmount must be the permitted amount.',
  )
  const expiresAt = challenge.expires === undefined ? Number.NaN : Date.parse(challenge.expires)
  expect(
    Number(transfer.validBefore) * 1000 <= expiresAt,
    'permit.deadline must not be after the expiry of the challenge.',
  )
  return transfer
}

function expectTerms(
  transfer: Transfer,
  challenge: Challenge.Echo,
  request: Challenge.ChargeRequest,
): void {
  const { asset, payee, amountAtomic } = transfer
  expect(
    asset === request.currency,
    () => `The signed token is ${asset}, and currency of the challenge is ${request.currency}.`,
  )
  expect(
    payee === request.recipient,
    () => `The signed payee is ${payee}, and recipient of the challenge is ${request.recipient}.`,
  )
  expect(
    amountAtomic === request.amountAtomic,
    () =>
      `The signed amount is ${amountAtomic}, and amount of the challenge is ${request.amountAtomic}.`,
  )
  expect(
    transfer.nonce === Challenge.nonceOf(challenge),
    'The nonce must be keccak256 of the challenge id followed by the realm.',
  )
}

/** A did:pkh source must name the payer. Other DIDs are ignored. */
function checkSource(source: string | undefined, transfer: Transfer): void {
  if (source === undefined || !source.startsWith('did:pkh:')) return
  const match = sourcePattern.exec(source)
  const isPayer =
    match?.[1] === String(transfer.chainId) && Address.equal(match[2] ?? '', transfer.payer)
  expect(isPayer, 'The source is not the payer on the chain of the challenge.')
}

/** A text with values is made only when it is needed. */
function expect(condition: boolean, detail: string | (() => string)): void {
  if (!condition) throw new TermsError(typeof detail === 'string' ? detail : detail())
}
