import type { Address } from 'viem'
import type { Offer } from '../protocol/Offer'
import type { ProblemError } from '../protocol/Problem'
import * as Receipt from '../protocol/Receipt'
import * as SettlementResponse from '../protocol/SettlementResponse'
import type { Payment, Protocol } from '../settlement/Payment'
import type { Presented } from './extract'
import type { Item } from './Item'

/** Who signs receipts. The address is that of the key, which takes a while to compute. */
export type Issuer = { key: Uint8Array; address: Address }

/**
 * Longer responses come without the copy under the name of version 1: with it a head could be longer
 * than the 4 KB that proxies take by default.
 */
const legacyMaxBytes = 1_300

const urlMaxLength = 300

/**
 * What a receipt names as bought: the URL, or the route's own where that would make the head of the
 * answer longer than proxies take.
 */
export function receiptUrl(url: string, { resource }: Pick<Item, 'resource'>): string {
  return url.length > urlMaxLength ? resource.url : url
}

/** The signed receipt of a payment, whatever carries it. `now` is unix ms. */
export function signReceipt(payment: Payment, issuer: Issuer, now: number): Receipt.Signed {
  const { transaction, transfer, purpose } = payment
  const fields = {
    network: transfer.network,
    resourceUrl: purpose.resource,
    payer: transfer.payer,
    issuedAt: Math.floor(now / 1000),
    transaction,
  }
  return Receipt.sign(fields, issuer.key)
}

/** Receipt headers of a delivered answer, in the protocol that it was paid with. */
export function successHeaders(
  payment: Payment,
  protocol: Protocol,
  issuer: Issuer,
  receipt: Receipt.Signed,
): Readonly<Record<string, string>> {
  const { transaction, transfer, purpose } = payment
  if (protocol === 'mpp')
    return {
      'payment-receipt': Receipt.mpp(receipt, {
        issuer: issuer.address,
        challengeId: purpose.challengeId,
      }),
    }
  const response = SettlementResponse.serialize({
    success: true,
    transaction,
    network: transfer.network,
    payer: transfer.payer,
    amount: String(transfer.amountAtomic),
    extensions: Receipt.extension(receipt),
  })
  return response.length > legacyMaxBytes
    ? { 'payment-response': response }
    : { 'payment-response': response, 'x-payment-response': response }
}

/** Who pays, and on which network: as far as that is known of a payment that failed. */
export type Failing = { network: string; payer?: Address | undefined }

/**
 * `PAYMENT-RESPONSE` of an x402 request that is not answered with what was bought. Its network must be
 * a CAIP-2 id: without any there is no header. A 402 has it under its present name alone, because its
 * head is long enough.
 */
export function failureHeaders(
  problem: Pick<ProblemError, 'code' | 'members'> & { status?: number },
  failing: Failing | undefined,
): Readonly<Record<string, string>> {
  if (failing === undefined) return {}
  const { reason, transaction } = problem.members
  const response = SettlementResponse.serialize({
    success: false,
    errorReason: typeof reason === 'string' ? reason : problem.code,
    transaction: isHash(transaction) ? transaction : '',
    network: failing.network,
    payer: failing.payer,
  })
  if (problem.status === 402) return { 'payment-response': response }
  return { 'payment-response': response, 'x-payment-response': response }
}

/**
 * Network of a payment that could not be read, for `failureHeaders`: what it says it accepted, else
 * that of the first offer.
 */
export function failingOf(
  presented: Presented,
  offers: readonly Pick<Offer, 'network'>[],
): Failing | undefined {
  const named =
    presented.kind === 'x402' ? SettlementResponse.acceptedNetwork(presented.value) : undefined
  const network = named ?? offers[0]?.network.id
  return network === undefined ? undefined : { network }
}

function isHash(value: unknown): value is `0x${string}` {
  return typeof value === 'string' && /^0x[0-9a-f]{64}$/.test(value)
}
