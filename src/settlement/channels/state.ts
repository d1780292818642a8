import type { Address, Hex } from 'viem'
import type { Authorization } from '../../../db/Authorization'
import type { Buyer } from '../../../db/authorizations'
import type { Channel } from '../../../db/Channel'
import type { Rows } from '../../../db/Ledger'
import type { Payment } from '../../../db/Payment'
import type * as Voucher from '../../protocol/Channel'
import * as Crypto from '../../protocol/Crypto'
import type * as Network from '../../protocol/Network'
import type { Transfer } from '../../protocol/Transfer'
import { createTurn, type Turn } from '../state/wait'

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
  /** What is to be done on the chain; see `watchOf`. */
  watches: Map<Network.Id, ChannelWatch>
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
  /** Whose failed requests are counted. */
  debtor: Buyer & { client: string | undefined }
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

/** What this process does about the channels of a network. */
export type ChannelWatch = {
  /** One read of states, with its write, at a time: an older answer must not follow a newer one. */
  turn: Turn
  /** Looks again now. */
  wake: () => void
  /** Channels to be read again. `blocks`: before that, no voucher of it is taken. */
  changed: Map<Hex, { blocks: boolean }>
  /** All channels are to be read: nothing is known of what happened before. */
  isUnread: boolean
  /** When all channels with unclaimed money were read, by `Context.monotonic`. */
  readAt: number
  /** The newest block whose events were asked for; undefined before. */
  block: bigint | undefined
  /** Events of the newest blocks that the nodes show, with their channels. */
  events: ReadonlyMap<string, Hex>
  /** Channels that are claimed at the next look, whatever that costs. */
  due: Set<Hex>
  /** Withdrawals: when the payer began each, and what is unclaimed. */
  withdrawals: Map<Hex, { at: number; unclaimedAtomic: bigint }>
  /** All unclaimed money is claimed at the next look. */
  isClaimDue: boolean
  /** When all of it was last claimed, by `Context.monotonic`. */
  claimedAt: number
  /** Channels whose claim every node refuses; for the log. */
  refused: Set<Hex>
  /** What the claims under way bring a channel to, and since when (unix ms). */
  claiming: Map<Hex, { amountAtomic: bigint; at: number }>
  /** The channels of the claims of this process, by job. */
  claims: Map<string, readonly Hex[]>
  /** The newest deposit of a channel, and what the channel was charged before. */
  deposits: Map<Hex, { id: string; chargedAtomic: bigint }>
  /** Jobs whose caller reads the channels at their end. */
  awaited: Set<string>
  /** Receivers for which something was claimed that they do not have. */
  owed: Map<string, { receiver: Address; token: Address }>
  /** Since when claims that are due cannot be sent (unix ms), and why. */
  late: { since: number; reason: string } | undefined
  isLateLogged: boolean
  /** Open channels at the last look. */
  open: number
  /** Wei that deposits and refunds have cost on a UTC day. */
  sponsored: { day: number; wei: bigint }
  /** When a signer may send the full number of deposits and refunds again, unix ms. */
  fullAt: Map<string, number>
  /** Claims and sweeps of this process. They never reject. */
  running: Set<Promise<void>>
}

/** The watch of a network. */
export function watchOf({ channels }: { channels: Channels }, id: Network.Id): ChannelWatch {
  const known = channels.watches.get(id)
  if (known) return known
  const watch: ChannelWatch = {
    turn: createTurn(),
    wake: () => {},
    changed: new Map(),
    isUnread: true,
    readAt: Number.NEGATIVE_INFINITY,
    block: undefined,
    events: new Map(),
    due: new Set(),
    withdrawals: new Map(),
    isClaimDue: false,
    claimedAt: Number.NEGATIVE_INFINITY,
    refused: new Set(),
    claiming: new Map(),
    claims: new Map(),
    deposits: new Map(),
    awaited: new Set(),
    owed: new Map(),
    late: undefined,
    isLateLogged: false,
    open: 0,
    sponsored: { day: 0, wei: 0n },
    fullAt: new Map(),
    running: new Set(),
  }
  channels.watches.set(id, watch)
  return watch
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
    watches: new Map(),
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
