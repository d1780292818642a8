import type { open } from '../../db/sqlite/open'
import type { Config } from '../config/Config'
import type { Secrets } from '../config/env'
import type { Log } from '../log'
import type { PaceMin } from '../paywall/pace'

export type AppOptions = Limits & {
  config: Config
  secrets: Secrets
  dataDir: string
  log: Log
  /** Lines of the log that could not be written. */
  droppedLines?: () => number
  /** Unix ms; tests drive it. */
  now?: () => number
  /** Cap of the answers kept for idempotency keys. */
  answersMaxBytes?: number
  /** Transactions that may fail on chain for one payer in ten minutes. */
  payerFailuresMax?: number
  /** What a chain's block time counts as before its blocks are known. */
  blockTimeMs?: number
  /** A network is paused while its blocks prove a larger clock error, ms. */
  clockSkewMaxMs?: number
  /** Stock orders that may be refunded to one payer in an hour. */
  refundsMax?: number
  /** First wait before a step of a stock order is tried again, ms. */
  orderRetryMs?: number
  /** Opens the database; tests keep the connection, to let its writes fail. */
  openDatabase?: typeof open
  /** It will run for long: the database's log is made as long at once as it gets anyway (16 MB). */
  isLasting?: boolean
}

/** Limits of the resources that peers can hold. */
type Limits = {
  /** Requests that this process may send by `fetch` at once; the runtime's own limit by default. */
  fetchesMax?: number | undefined
  /** How fast buyers must read streams. */
  paceMin?: Partial<PaceMin>
  /** Longest silence of a connection, unless a sale is under way on it. */
  idleSeconds?: number
}
