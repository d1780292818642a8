import type { Payment } from '../../db/Payment'

/** What a request shows to continue a payment that is known already. */
export type Shown = {
  presentation: {
    /** `credentialHash` of the credential in this request. */
    credentialHash: string | undefined
    /** Its nonce commits to the resource, as mppx chooses it. */
    bound: boolean
  }
  /** Its `Idempotency-Key` or payment-identifier. */
  key: string | undefined
}

/**
 * Whether a request may wait for a payment, fetch its answer or hold its place. The calldata of an
 * x402 payment contains payer, nonce and signature, so a reader of the chain can rebuild an
 * equivalent credential. Therefore only the bytes that began the payment continue it, or the key
 * reserved with it. Payments from before the bytes were kept continue only with an mppx nonce,
 * which commits to a random value of the buyer that the chain does not have. An MPP credential
 * always continues: it echoes the id of its challenge, and the chain has only a hash of that id.
 */
export function mayContinue({ purpose, state }: Payment, { presentation, key }: Shown): boolean {
  // An expired payment has no answer that a stranger could take.
  if (state === 'expired' || purpose.protocol === 'mpp') return true
  if (key !== undefined && key === purpose.idempotencyKey) return true
  if (purpose.credentialHash === undefined) return presentation.bound
  return presentation.credentialHash === purpose.credentialHash
}
