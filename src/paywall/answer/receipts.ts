import type { Address } from 'viem'
import type { Payment, Protocol } from '../../../db/Payment'
import type { Offer } from '../../protocol/Offer'
import type { ProblemError } from '../../protocol/Problem'
import * as Receipt from '../../protocol/Receipt'
import * as X402 from '../../protocol/X402'
import type { Item } from '../offer/Item'

/** The signer of receipts: its key, and the address of that key, which takes a while to compute. */
export type Issuer = { key: Uint8Array; address: Address }

/**
 * Longer responses omit the copy under the version 1 name, so that the head stays below the 4 KB
 * that proxies accept by default.
 */
const legacyMaxBytes = 1_300

const urlMaxLength = 300
/** With a longer query a receipt would leave no room for that copy. */
const withQueryMaxLength = 200

/**
 * The resource of a payment: the URL, or the route's own URL where the full one would make the head of
 * the answer with the receipt longer than proxies accept.
 */
export function receiptUrl(url: string, { resource }: Pick<Item, 'resource'>): string {
  return url.length > urlMaxLength ? resource.url : url
}

/** The purchase that a receipt names. */
export type Bought = {
  /** Query of the request, '' or with its `?`, where it is known. The hash of the request has it, too. */
  search?: string | undefined
  order?: string | undefined
}

/** The signed receipt of a payment. `now` is unix ms. */
export function signReceipt(
  payment: Payment,
  issuer: Issuer,
  now: number,
  { search = '', order }: Bought = {},
): Receipt.Signed {
  const { transaction, transfer, purpose } = payment
  const whole = purpose.resource + search
  const url = whole.length > withQueryMaxLength ? purpose.resource : whole
  const amount = String(transfer.amountAtomic)
  const fields = {
    network: transfer.network,
    resourceUrl: Receipt.urlOf(url, { request: purpose.fingerprint, amount, order }),
    payer: transfer.payer,
    issuedAt: Math.floor(now / 1000),
    transaction,
  }
  return Receipt.sign(fields, issuer.key)
}

/** What an answer has used, and the ceiling that its buyer signed. */
export type Usage = { ceilingAtomic: bigint; units: Readonly<Record<string, number>> }

type Answered = { protocol: Protocol; usage?: Usage | undefined }

/** Receipt headers of a delivered answer, in the protocol of its payment. */
export function successHeaders(
  payment: Payment,
  { protocol, usage }: Answered,
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
  const response = Receipt.x402({
    success: true,
    transaction,
    network: transfer.network,
    payer: transfer.payer,
    amount: String(transfer.amountAtomic),
    receipt,
    extensions: extensionOf(usage),
  })
  return response.length > legacyMaxBytes
    ? { 'payment-response': response }
    : { 'payment-response': response, 'x-payment-response': response }
}

function extensionOf(usage: Usage | undefined) {
  if (usage === undefined) return {}
  return { usage: { info: { ceiling: String(usage.ceilingAtomic), units: usage.units } } }
}

/** Most age (ms) of a receipt that was signed in advance, because it contains its own time. */
const aheadMs = 2_000
/** Most receipts that are signed in advance; the oldest ones are dropped first. */
const aheadMax = 1_000

/** Receipts that are signed in advance, while their payments are being confirmed. */
export function createReceipts(issuer: Issuer, now: () => number) {
  const ahead = new Map<string, { receipt: Receipt.Signed; signedAt: number }>()
  return {
    /** Signs the receipt of a payment that is being confirmed. `search`: the query of its request. */
    expect(payment: Payment, search: string): void {
      const signedAt = now()
      const [oldest] = ahead.keys()
      if (oldest !== undefined && ahead.size >= aheadMax) ahead.delete(oldest)
      const receipt = signReceipt(payment, issuer, signedAt, { search })
      ahead.set(payment.id, { receipt, signedAt })
    },
    /** Receipt headers of an answer that is sent now. */
    headersOf(payment: Payment, { search, ...answer }: Answered & { search: string }) {
      const early = ahead.get(payment.id)
      ahead.delete(payment.id)
      // A transaction may have been replaced since its receipt was signed.
      const isGood =
        early?.receipt.payload.transaction === payment.transaction &&
        Math.abs(now() - early.signedAt) < aheadMs
      const receipt = isGood ? early.receipt : signReceipt(payment, issuer, now(), { search })
      return successHeaders(payment, answer, issuer, receipt)
    },
  }
}

/** Payer and network of a failed payment, as far as they are known. */
export type Failing = { network: string; payer?: Address | undefined }

/**
 * `PAYMENT-RESPONSE` of an x402 request that failed. Its network must be a CAIP-2 id: without one
 * there is no header. A 402 omits the copy under the version 1 name, because its head must stay
 * short.
 */
export function failureHeaders(
  problem: Pick<ProblemError, 'code' | 'members'> & { status?: number },
  failing: Failing | undefined,
): Readonly<Record<string, string>> {
  if (failing === undefined) return {}
  const { reason, transaction } = problem.members
  const response = Receipt.x402({
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
 * Network of an x402 payment that could not be read, for `failureHeaders`: the one it accepted, else that
 * of the first offer.
 */
export function failingOf(
  credential: string | undefined,
  offers: readonly Pick<Offer, 'network'>[],
): Failing | undefined {
  const named = credential === undefined ? undefined : X402.acceptedNetwork(credential)
  const network = named ?? offers[0]?.network.id
  return network === undefined ? undefined : { network }
}

function isHash(value: unknown): value is `0x${string}` {
  return typeof value === 'string' && /^0x[0-9a-f]{64}$/.test(value)
}
