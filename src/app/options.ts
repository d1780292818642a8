import type { Database } from '../../db/Database'
import type { open } from '../../db/sqlite/open'
import type { Config } from '../config/Config'
import type { Secrets } from '../config/env'
import type { Log } from '../log'
import type { TransferRateMin } from '../paywall/answer/transfer-rate'
import type { WebhooksOptions } from '../webhooks/sender'

export type AppOptions = {
  config: Config
  secrets: Secrets
  dataDir: string
  log: Log
  /** Version of this program, which the database keeps. */
  version?: string | undefined
  /** Serves HTTPS with certificates of a CA, in place of `listen` of the configuration. */
  https?: HttpsOptions | undefined
  /** Number of log lines that could not be written. */
  droppedLines?: () => number
  /** Unix ms; tests drive it. */
  now?: () => number
  /** Limit of the answers stored for idempotency keys, bytes. */
  answersMaxBytes?: number
  /** Most failed transactions of one payer in ten minutes. */
  payerFailuresMax?: number
  /** The assumed block time of a chain before its blocks are known, ms. */
  blockTimeMs?: number
  /** Timeout of one call of a node, ms. */
  rpcTimeoutMs?: number
  /** A network is paused while its blocks prove a larger clock error, ms. */
  clockSkewMaxMs?: number
  /** Most refunded stock orders of one payer in an hour. */
  refundsMax?: number
  /** First wait before a step of a stock order is tried again, ms. */
  orderRetryMs?: number
  /** Time between two looks for refunds to send, ms. */
  refundLookMs?: number
  /** Opens the database of a server, in place of the file in the data directory. */
  openServer?: OpenServer | undefined
  /** Longest read of a stock's price from the chain, ms; 2 s by default. */
  marketTimeoutMs?: number
  /** Opens the file. Tests keep the connection, to let its writes fail. */
  openDatabase?: typeof open
  /** What an operator may start at `/admin`; without it these actions are not offered. */
  operator?: Operator | undefined
  /** How webhooks are sent. */
  posting?: WebhooksOptions['posting']
  /**
   * For a process that runs for long: the database's log gets its final length (16 MB) at the
   * start.
   */
  isLasting?: boolean
  /** Requests that this process may send by `fetch` at once; the runtime's own limit by default. */
  fetchesMax?: number | undefined
  /** Minimum rate at which buyers must read streams. */
  transferRateMin?: Partial<TransferRateMin>
  /** Longest idle time of a connection without a sale in progress, s. */
  idleSeconds?: number
}

export type OpenServer = (context: ServerContext) => Promise<Database>

/** What a service tells the database server that it opens. */
export type ServerContext = Pick<AppOptions, 'dataDir' | 'log'> & {
  /** Version of this program, which the database keeps. */
  program: string | undefined
  /** Hash of the configuration in force. */
  configHash: () => string
  /** Unix ms. */
  now: () => number
  /** Milliseconds that never decrease. */
  monotonic: () => number
}

export type HttpsOptions = {
  /** DNS names, lower case; the first is that of `base_url`. */
  domains: readonly string[]
  /** Every address by default. */
  hostname?: string
  /** Where the CA looks for its challenges. */
  httpPort: number
  httpsPort: number
  /** ACME directory of the CA. */
  directoryUrl: string
  /** PEM of the authorities of the directory's own certificate; the system's by default. */
  ca?: string | undefined
  /** Interval between two looks at the age of the certificate, ms. */
  checkMs?: number
}

/** What the program around the service does for an operator. Neither rejects. */
export type Operator = {
  /** Absolute path of the file with the configuration. */
  file: string
  /** Reads the file again. Returns the faults; none when it is in force. */
  reload(): Promise<readonly string[]>
  /** Copies the database into a file named by a time (unix ms); `text` names it, or says why not. */
  backUp(at: number): Promise<{ ok: boolean; text: string }>
}
