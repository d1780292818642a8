import type { Address, Hex } from 'viem'
import type { Authorization } from '../../../db/Authorization'
import type { Channel } from '../../../db/Channel'
import type { Rows } from '../../../db/Ledger'
import type { Payment } from '../../../db/Payment'
import type * as Voucher from '../../protocol/Channel'
import * as Crypto from '../../protocol/Crypto'
import type * as Network from '../../protocol/Network'
import type { Transfer } from '../../protocol/Transfer'

/** Payment channels in the memory of this process. The ledger has every channel. */
export type Channels = {
  /** Signs claims and refunds; offers name its address. Undefined: there are no channels. */
  authorizer: { key: Uint8Array; address: Address } | undefined
  /** Channels in use, the newest used last; see `remember`. */
  known: Map<Hex, Channel>
  /** Who waits for the turn of a channel, where a request has it. */
  turns: Map<Hex, (() => void)[]>
  /** Requests with a reserved voucher, by the id of the payment to be. */
  running: Map<string, Running>
  /** When every node of a network last showed its events, by `Context.monotonic`. */
  seenAt: Map<Network.Id, number>
  /** What was charged and not claimed, of all channels of a network, atomic. */
  unclaimed: Map<Network.Id, bigint>
}

/** A deposit that was paid in. `transaction`: undefined where no node shows it. */
export type PaidDeposit = { transaction: Hex | undefined; amountAtomic: bigint }

/** A request whose voucher is reserved, until it is charged or released. */
export type Running = {
  channelId: Hex
  /** The deposit that came with the voucher. */
  deposit: PaidDeposit | undefined
  /** Written with the charge. */
  rows: Rows | undefined
  /** Called when the next request of the channel may begin. */
  onEnd: (() => void) | undefined
}

/** The end of a request by a channel: its payment, where it costs something, and what it left. */
export type Settled = {
  payment?: Payment
  channel: Channel
  deposit?: PaidDeposit | undefined
}

/** An authorization that was charged. Of a channel it is settled by that. */
export type ChargedAuthorization = Authorization & { settled?: Settled }

/** A transfer of a credential of a channel. */
export type Presented = Transfer & { voucher: Voucher.Voucher }

export function isPresented(transfer: Transfer): transfer is Presented {
  return transfer.voucher !== undefined
}

/** Channels that are kept in memory; any other one is read again. */
const knownMax = 10_000

/** Requests that may wait for the turn of one channel. */
const waitingMax = 16

export function createChannels(key: Uint8Array | undefined): Channels {
  return {
    authorizer: key && { key, address: Crypto.addressOf(key) },
    known: new Map(),
    turns: new Map(),
    running: new Map(),
    seenAt: new Map(),
    unclaimed: new Map(),
  }
}

/**
 * Keeps a channel as it was read. A read may be older than a charge that this process knows, and what
 * is charged only grows, so the greater one stays. Returns what is kept.
 */
export function remember({ known, turns }: Channels, read: Channel): Channel {
  const before = known.get(read.id)
  const isOlder = before !== undefined && before.chargedAtomic > read.chargedAtomic
  const { chargedAtomic, signed } = isOlder ? before : read
  const channel = isOlder ? { ...read, chargedAtomic, signed } : read
  known.delete(read.id)
  known.set(read.id, channel)
  const [oldest] = known.keys()
  if (known.size > knownMax && oldest !== undefined && !turns.has(oldest)) known.delete(oldest)
  return channel
}

/**
 * Takes the turn of a channel, which has one request at a time. Resolves with its release, which may be
 * called again, or with undefined after the time (ms).
 */
export function takeTurn(
  { turns }: Channels,
  id: Hex,
  waitMs: number,
): Promise<(() => void) | undefined> | (() => void) {
  const waiting = turns.get(id)
  if (waiting === undefined) {
    turns.set(id, [])
    return releaseOf(turns, id)
  }
  if (waiting.length >= waitingMax) return Promise.resolve(undefined)
  return new Promise((resolve) => {
    const begin = () => {
      clearTimeout(timer)
      resolve(releaseOf(turns, id))
    }
    const timer = setTimeout(() => {
      waiting.splice(waiting.indexOf(begin), 1)
      resolve(undefined)
    }, waitMs)
    waiting.push(begin)
  })
}

function releaseOf(turns: Channels['turns'], id: Hex): () => void {
  let isOver = false
  return () => {
    if (isOver) return
    isOver = true
    const next = turns.get(id)?.shift()
    if (next === undefined) turns.delete(id)
    else next()
  }
}
