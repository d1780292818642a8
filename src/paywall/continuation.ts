import type { Payment } from '../../db/Payment'

/** What a request presents to continue a known payment. */
export type Shown = {
  presentation: {
    /** `credentialHash` of the credential in this request. */
    credentialHash?: string | undefined
    /** Its nonce commits to the resource, as mppx chooses it. */
    bound: boolean
  }
  /** Its `Idempotency-Key` or payment-identifier. */
  key: string | undefined
}

/**
 * Whether a request may wait for a payment, fetch its answer or use its claim. The calldata of an
 * x402 payment contains payer, nonce and signature, so a reader of the chain can rebuild an
 * equivalent credential. Therefore only the bytes that started the payment continue it, or the key
 * reserved with it. Payments without stored bytes continue only with an mppx nonce. That commits to
 * a random value of the buyer that the chain does not have. An MPP credential always continues: it
 * contains the id of its challenge, and the chain has only a hash of that id.
 */
export function mayContinue(
  { purpose, state }: Pick<Payment, 'purpose' | 'state'>,
  { presentation, key }: Shown,
): boolean {
  // An expired payment has no answer that another client could take.
  if (state === 'expired' || purpose.protocol === 'mpp') return true
  if (key !== undefined && key === purpose.idempotencyKey) return true
  if (purpose.credentialHash === undefined) return presentation.bound
  return presentation.credentialHash === purpose.credentialHash
}
