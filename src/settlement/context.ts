import type { Address, Hex } from 'viem'
import type { Db } from '../../db/open'
import type { TransactionRow } from '../../db/schema'
import type { Client } from '../chain/client'
import type { Head } from '../chain/head'
import type { NetworkConfig } from '../config/Config'
import type * as Network from '../protocol/Network'
import type { Outcome, Payment } from './Payment'
import type { Store } from './store'

export type Log = (event: string, fields?: Readonly<Record<string, unknown>>) => void

/** What settlement keeps of one network while it runs. */
export type Rail = {
  network: NetworkConfig
  client: Client
  head: Head
  lane: Lane
  health: Health
  /** Payer code by address, asked only when the payer's own key did not sign. */
  codes: Map<string, { hasCode: boolean; until: number }>
  /** Recent blocks with transactions of ours, until they are too deep to be reorganised. */
  included: Map<bigint, { blockHash: Hex; hashes: Set<Hex>; misses: number }>
}

/** One relayer account on one network: its nonces, and every transaction that is not included yet. */
export type Lane = {
  address: Address
  privateKey: Uint8Array
  /** The next free account nonce; undefined until the chain was asked. */
  next: number | undefined
  /** Above every nonce that the database has a transaction under way for. */
  floor: number
  /** The chain's count of our transactions was below what we know to be included. */
  lag: { count: number; expected: number; isSure: boolean } | undefined
  /** Nonces that are being driven. */
  slots: Map<number, Slot>
  /** Why nothing new is sent. What was sent before is sent again until the reason is gone. */
  paused: string | undefined
  /** Until a node says that it has no eth_sendRawTransactionSync (EIP-7966). */
  hasSync: boolean
}

/** A nonce and the transactions that compete for it: the chain includes one. */
export type Slot = {
  nonce: number
  /** Oldest first. */
  transactions: TransactionRow[]
  paymentIds: readonly string[]
  /** Unix seconds after which the payload cannot succeed; undefined when it always can. */
  validBefore: bigint | undefined
}

export type Health = {
  ready: boolean
  /** Safe to show: hosts and addresses, no URLs. */
  reason: string | undefined
  balanceWei: bigint | undefined
  /** Checks so far that reached the node. */
  checks: number
}

export type SettlementOptions = {
  db: Db
  networks: readonly NetworkConfig[]
  /** The first one is used on every network. */
  relayerKeys: readonly Uint8Array[]
  /** Unix ms. */
  now: () => number
  log: Log
  /** Random bytes for payment ids; by default the system's. */
  random?: (length: number) => Uint8Array
  /** Time between two looks at a network's health. */
  checkMs?: number
}

export type Context = {
  db: Db
  store: Store
  rails: ReadonlyMap<Network.Id, Rail>
  now: () => number
  log: Log
  /** Payments that are being driven; the promises never reject. */
  running: Map<string, Promise<Outcome>>
  /** Money on its way by payer, so that one balance is not promised twice. */
  inFlight: Map<string, bigint>
  /** Ends the waiting, not the money: what is unfinished is in the database. */
  signal: AbortSignal
}

/** The rail of a network. Throws for one that is not configured. */
export function railOf(context: Context, id: Network.Id): Rail {
  const rail = context.rails.get(id)
  if (!rail) throw new Error(`${id} is not a configured network`)
  return rail
}

/** Key of what is in flight of one payer. */
export function payerKey({ network, asset, payer }: Payment['transfer']): string {
  return `${network}/${asset}/${payer}`
}

/** Resolves after the time, or at once when the signal fires. Never rejects. */
export function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve()
    const done = () => {
      clearTimeout(timer)
      signal.removeEventListener('abort', done)
      resolve()
    }
    const timer = setTimeout(done, ms)
    signal.addEventListener('abort', done)
  })
}

/** The promise's value, or undefined after the time. The promise goes on. */
export async function within<T>(promise: Promise<T>, ms: number): Promise<T | undefined> {
  const ended = new AbortController()
  const result = await Promise.race([promise, pause(ms, ended.signal).then(() => undefined)])
  ended.abort()
  return result
}
