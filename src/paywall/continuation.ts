import type { Payment } from '../settlement/Payment'

/** What a request shows to continue a payment that is known already. */
export type Shown = {
  /** Of the credential as it was sent now, `credentialHash`. */
  credentialHash: string | undefined
  /** Its nonce commits to the resource, as mppx chooses it. */
  bound: boolean
  /** Its `Idempotency-Key` or payment-identifier. */
  key: string | undefined
}

/**
 * Whether a request may wait for a payment, fetch its answer or hold its place. The calldata of an
 * x402 payment has payer, nonce and signature: a reader of the chain or of the mempool rebuilds a
 * credential that is as good as the buyer's. So only the bytes that began the payment continue it, or
 * the key that was reserved with it. Of a payment that was begun before the bytes were kept nothing
 * is accepted that the chain publishes: a nonce as mppx makes it commits to a random value of the
 * buyer, which the chain does not have. An MPP credential always continues: it echoes the id of its
 * challenge, and the chain has only a hash of that.
 */
export function mayContinue({ purpose, state }: Payment, shown: Shown): boolean {
  // Nothing was paid and nothing can be: there is no place to take.
  if (state === 'expired' || purpose.protocol === 'mpp') return true
  if (shown.key !== undefined && shown.key === purpose.idempotencyKey) return true
  if (purpose.credentialHash === undefined) return shown.bound
  return shown.credentialHash === purpose.credentialHash
}
