/** An answer as it was delivered. `headers`: JSON of the pairs. Times are unix ms. */
export type StoredAnswer = {
  status: number
  headers: string
  body: Uint8Array
  createdAt: number
  expiresAt: number
}

/** Size of the stored answers of one payer: headers, bodies, and `rowBytes` for each answer. */
export type AnswerUsage = { payer: string; bytes: number }

export type AnswerLedger = {
  find(paymentId: string): Promise<StoredAnswer | undefined>
  /** Stores an answer, unless the payment has one. */
  store(paymentId: string, answer: StoredAnswer): Promise<void>
  /** Deletes expired answers; resolves with the time (unix ms) at which the next one expires. */
  sweep(now: number): Promise<number | undefined>
  usage(rowBytes: number): Promise<readonly AnswerUsage[]>
}
