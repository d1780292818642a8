import type { Address, Hex } from 'viem'
import * as Crypto from '../../protocol/Crypto'
import { base64url, encodeJson } from '../../protocol/Header'
import * as Json from '../../protocol/Json'
import * as Permit from '../../protocol/Permit'
import { permitName } from '../../protocol/Sponsoring'
import * as Transfer from '../../protocol/Transfer'
import * as Upto from '../../protocol/Upto'
import * as X402 from '../../protocol/X402'
import { type MppSource, type Terms, timeoutSecondsMax, type X402Source } from './Terms'

/** The buyer's info of the x402 extension `eip2612GasSponsoring`. */
export type PermitInfo = {
  from: Address
  asset: Address
  spender: Address
  amount: string
  nonce: string
  deadline: string
  signature: Hex
  version: string
}

/** What was paid, and by whom. */
export type Paid = { terms: Terms; payer: Address }

/** The buyer's payment of terms, in the form of a request header. */
export type Credential = Paid & { header: string; value: string; transfer: Transfer.Transfer }

/**
 * Signs the payment of the terms. `now` in unix ms; `random` are 32 bytes that were never used
 * before.
 */
export function from(
  terms: Terms,
  input: {
    privateKey: Uint8Array
    now: number
    random: Uint8Array
    /** The permit for an x402 payment whose server sponsors the approval by it. */
    permit?: PermitInfo
  },
): Credential {
  return terms.source.kind === 'mpp'
    ? payMpp(terms, terms.source, input)
    : payX402(terms, terms.source, input)
}

type Input = Parameters<typeof from>[1]

function payMpp(terms: Terms, source: MppSource, input: Input): Credential {
  const { nonce, params } = source
  const expiresAt = Date.parse(params.expires ?? '')
  const latest = input.now + timeoutSecondsMax * 1000
  const limit = Number.isFinite(expiresAt) ? Math.min(expiresAt, latest) : latest
  const validBefore = BigInt(Math.floor(limit / 1000))
  const transfer = sign(terms, input.privateKey, { nonce, validBefore })
  const json = {
    challenge: params,
    payload:
      terms.method === 'eip3009'
        ? { type: 'authorization', ...authorization(transfer), signature: transfer.signature }
        : mppPermit(transfer),
    source: `did:pkh:eip155:${transfer.chainId}:${transfer.payer}`,
  }
  const value = `Payment ${base64url(JSON.stringify(json))}`
  return { header: 'authorization', value, transfer, terms, payer: transfer.payer }
}

function mppPermit(transfer: Transfer.Transfer) {
  const amount = String(transfer.amountAtomic)
  return {
    type: 'permit2',
    permit: {
      permitted: [{ token: transfer.asset, amount }],
      nonce: String(BigInt(transfer.nonce)),
      deadline: String(transfer.validBefore),
    },
    transferDetails: [{ to: transfer.payee, requestedAmount: amount }],
    witness: { to: transfer.payee, validAfter: String(transfer.validAfter) },
    signature: transfer.signature,
  }
}

function payX402(terms: Terms, source: X402Source, input: Input): Credential {
  const { accepted, resource } = source
  const extensions = salted(source.extensions, input.random)
  const bound = terms.method === 'eip3009' && resource !== undefined && extensions !== undefined
  const nonce =
    bound && Object.hasOwn(extensions, 'mppx')
      ? X402.boundNonce(accepted, resource, extensions)
      : Crypto.hex(input.random)
  const transfer = sign(terms, input.privateKey, {
    nonce,
    validBefore: BigInt(Math.floor(input.now / 1000) + source.timeoutSeconds),
  })
  const { signature } = transfer
  const payload =
    terms.method === 'eip3009'
      ? { authorization: authorization(transfer), signature }
      : { permit2Authorization: permit2Authorization(transfer), signature }
  const sent = input.permit === undefined ? extensions : withPermit(extensions, input.permit)
  const value = encodeJson(envelope({ ...source, extensions: sent }, payload))
  return { header: 'payment-signature', value, transfer, terms, payer: transfer.payer }
}

/** The x402 payment with a signed payload. */
export function envelope(
  { accepted, resource, extensions }: X402Source,
  payload: object,
): Json.JsonObject {
  return JSON.parse(JSON.stringify({ x402Version: 2, resource, accepted, payload, extensions }))
}

export function withPermit(
  extensions: Json.JsonObject | undefined,
  info: PermitInfo,
): Json.JsonObject {
  return { ...extensions, [permitName]: { ...Json.child(extensions, permitName), info } }
}

/** mppx's route binding: with this salt, the nonce is a hash of everything that is bought. */
function salted(
  extensions: Json.JsonObject | undefined,
  random: Uint8Array,
): Json.JsonObject | undefined {
  const mppx = extensions === undefined ? undefined : Json.member(extensions, 'mppx')
  if (!Json.isObject(mppx)) return extensions
  const nonce = Crypto.hex(random).slice(2)
  return { ...extensions, mppx: { ...mppx, info: { ...Json.child(mppx, 'info'), nonce } } }
}

function authorization(transfer: Transfer.Transfer) {
  return {
    from: transfer.payer,
    to: transfer.payee,
    value: String(transfer.amountAtomic),
    validAfter: String(transfer.validAfter),
    validBefore: String(transfer.validBefore),
    nonce: transfer.nonce,
  }
}

function permit2Authorization(transfer: Transfer.Transfer) {
  const { upto } = transfer
  return {
    from: transfer.payer,
    permitted: { token: transfer.asset, amount: String(transfer.amountAtomic) },
    spender: upto ? Upto.proxyAddress : Permit.proxyAddress,
    nonce: String(BigInt(transfer.nonce)),
    deadline: String(transfer.validBefore),
    witness: {
      to: transfer.payee,
      ...(upto && { facilitator: upto.facilitator }),
      validAfter: String(transfer.validAfter),
    },
  }
}

function sign(
  terms: Terms,
  privateKey: Uint8Array,
  bounds: { nonce: Hex; validBefore: bigint },
): Transfer.Transfer {
  const { facilitator, amountAtomic } = terms
  const unsigned = {
    method: terms.method,
    network: terms.network,
    chainId: terms.chainId,
    asset: terms.asset.address,
    payer: Crypto.addressOf(privateKey),
    payee: terms.payTo,
    amountAtomic,
    validAfter: 0n,
    ...bounds,
    ...(facilitator && { upto: { ceilingAtomic: amountAtomic, facilitator } }),
  }
  const signature = Crypto.sign(Transfer.digest(unsigned, terms.asset), privateKey)
  return { ...unsigned, signature }
}
