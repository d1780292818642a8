import type { Address } from 'viem'
import type * as Network from '../src/protocol/Network'

/**
 * An account of ours on a network, whose nonces one process chooses; or, without a relayer, the
 * network's duties that need no account: reorganisations, expiry, what no account drives now.
 */
export type Lane = { network: Network.Id; relayer: Address | undefined }

/** A lane that this process has taken; it chooses no account nonce below `nextNonce`. */
export type TakenLane = Lane & { nextNonce: number }

export type LaneListener = {
  /**
   * The process has the lane from now on. It drives what is open there before it signs anything new.
   * Rejects when that cannot be read: then the lane is given back.
   */
  taken(lane: TakenLane): Promise<void>
  /**
   * Whether the process gives the lane back now, and begins nothing more there. False: it lets the
   * lane, or another one of the network, become idle, and is asked again.
   */
  release(lane: Lane): boolean
  /** The process keeps all its lanes of the network: none has to become idle. */
  keep(lane: Pick<Lane, 'network'>): void
}

/**
 * Which lanes this process has. Several gateways over one database share the lanes; one process over
 * SQLite has them all. Answers from memory: the database decides at each write.
 */
export type LaneLedger = {
  /** Whether other processes may use the database at the same time. */
  isShared: boolean
  has(lane: Lane): boolean
  /** How many times any process has taken the lane. Undefined while this one does not have it. */
  epochOf(lane: Lane): number | undefined
  /** Processes that use the database, as far as they are known. */
  gateways(): number
  /** Whether another living process has the lane, as far as it is known. */
  isOfAnother(lane: Lane): boolean
  /**
   * Whether the others take this process for alive. When it was paused, or cannot reach the database,
   * they soon take its lanes and end its authorizations.
   */
  isFresh(): boolean
  /**
   * Begins to take lanes: the listener hears of each. Resolves after the first look. Does nothing
   * where the database is not shared.
   */
  start(lanes: readonly Lane[], listener: LaneListener): Promise<void>
  /** The process is about to end: it takes no more lanes, and keeps those that it has. */
  retire(): void
}

/** The gateways of a shared database and what each has, for operators. */
export type Overview = {
  gateways: readonly {
    id: string
    host: string
    version: string
    /** SHA-256 of the configuration file in force. */
    configHash: string
    /** Since its last sign of life, by the clock of the database, ms. */
    seenMsAgo: number
  }[]
  /** `epoch`: holders so far. `holder`: the id of a gateway. */
  lanes: readonly (TakenLane & { epoch: number; holder: string | undefined })[]
}

/** For a command beside the service, which signs nothing. */
export const lanesOfOthers: LaneLedger = {
  isShared: true,
  has: () => false,
  epochOf: () => undefined,
  gateways: () => 1,
  isOfAnother: () => true,
  isFresh: () => true,
  start: () => Promise.resolve(),
  retire: () => undefined,
}

/** For a process that has the ledger alone, and so all lanes. */
export const ownLanes: LaneLedger = {
  isShared: false,
  has: () => true,
  epochOf: () => 1,
  gateways: () => 1,
  isOfAnother: () => false,
  isFresh: () => true,
  start: () => Promise.resolve(),
  retire: () => undefined,
}
