/** An answer as it was delivered. `headers`: JSON of the pairs. Times are unix ms. */
export type StoredAnswer = {
  status: number
  headers: string
  body: Uint8Array
  createdAt: number
  expiresAt: number
}

/** Bytes of one payer; `rowBytes` count for each answer beside headers and body. */
export type AnswerUsage = { payer: string; bytes: number }

export type AnswerLedger = {
  find(paymentId: string): Promise<StoredAnswer | undefined>
  /** Keeps the first one of a payment. */
  store(paymentId: string, answer: StoredAnswer): Promise<void>
  /** Forgets what has expired; answers when the oldest that is left expires. */
  sweep(now: number): Promise<number | undefined>
  usage(rowBytes: number): Promise<readonly AnswerUsage[]>
}
