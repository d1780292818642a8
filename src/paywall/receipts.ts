import type { Address } from 'viem'
import type { ProblemError } from '../protocol/Problem'
import * as Receipt from '../protocol/Receipt'
import type { Transfer } from '../protocol/Transfer'
import * as X402 from '../protocol/X402'
import type { Payment, Protocol } from '../settlement/Payment'

/** Who signs receipts. The address is that of the key, which takes a while to compute. */
export type Issuer = { key: Uint8Array; address: Address }

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
  const response = X402.response({
    success: true,
    transaction,
    network: transfer.network,
    payer: transfer.payer,
    amount: String(transfer.amountAtomic),
    extensions: Receipt.extension(receipt),
  })
  return { 'payment-response': response, 'x-payment-response': response }
}

/** `PAYMENT-RESPONSE` of an x402 request that is not answered with what was bought. */
export function failureHeaders(
  problem: Pick<ProblemError, 'code' | 'members'>,
  transfer: Transfer | undefined,
): Readonly<Record<string, string>> {
  const { reason, transaction } = problem.members
  const response = X402.response({
    success: false,
    errorReason: typeof reason === 'string' ? reason : problem.code,
    transaction: isHash(transaction) ? transaction : '',
    network: transfer?.network ?? '',
    payer: transfer?.payer,
  })
  return { 'payment-response': response, 'x-payment-response': response }
}

function isHash(value: unknown): value is `0x${string}` {
  return typeof value === 'string' && /^0x[0-9a-f]{64}$/.test(value)
}
