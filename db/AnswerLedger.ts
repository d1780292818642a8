/** An answer as it was delivered. `headers`: JSON of the pairs. Times are unix ms. */
export type StoredAnswer = {
  status: number
  headers: string
  body: Uint8Array
  createdAt: number
  expiresAt: number
}

/** Bytes of one payer; `rowBytes` are added for each answer to headers and body. */
export type AnswerUsage = { payer: string; bytes: number }

export type AnswerLedger = {
  find(paymentId: string): Promise<StoredAnswer | undefined>
  /** Stores only the first one of a payment. */
  store(paymentId: string, answer: StoredAnswer): Promise<void>
  /** Deletes expired answers; resolves with the time (unix ms) at which the next one expires. */
  sweep(now: number): Promise<number | undefined>
  usage(rowBytes: number): Promise<readonly AnswerUsage[]>
}
