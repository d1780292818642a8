import type { Address, Hex } from 'viem'
import type { Authorization } from '../../../db/Authorization'
import type { Buyer } from '../../../db/authorizations'
import type { Channel } from '../../../db/Channel'
import type { Rows } from '../../../db/Ledger'
import type { Payment } from '../../../db/Payment'
import type * as Voucher from '../../protocol/Channel'
import * as Crypto from '../../protocol/Crypto'
import { hourMs } from '../../protocol/Time'
import type { Transfer } from '../../protocol/Transfer'
import type { ChannelTerms } from '../../protocol/X402'
import { createDebts } from '../state/debts'
import { createBatches, within } from '../state/wait'

/** Payment channels in the memory of this process. The ledger has every channel. */
export type Channels = ReturnType<typeof createChannels>

export function createChannels(key: Uint8Array | undefined) {
  return {
    /** Signs claims and refunds; offers name its address. Undefined: there are no channels. */
    authorizer: key && { key, address: Crypto.addressOf(key) },
    /** Channels in use, the newest used last; see `remember`. */
    known: new Map<Hex, Channel>(),
    /** Amounts of vouchers that the ledger keeps, and that this process alone has and gave to no one. */
    unpublished: new Map<Hex, bigint>(),
    /** Who waits for the turn of a channel, where a request has it. */
    turns: new Map<Hex, (() => void)[]>(),
    /** Requests with a reserved voucher, by the id of the payment to be. */
    running: new Map<string, Running>(),
  }
}

/** A deposit that was paid in. `transaction`: undefined where this service has not sent it, and adds nothing. */
export type PaidDeposit = { transaction: Hex | undefined; amountAtomic: bigint }

/** A request whose voucher is reserved, until it is charged or released. */
export type Running = {
  transfer: Presented
  /** The deposit that came with the voucher. */
  deposit: PaidDeposit | undefined
  /** Written with the charge. */
  rows: Rows | undefined
  /** Whose failed requests are counted. */
  debtor: Buyer & { client: string | undefined }
  /** Ends what counts as open of the debtor. */
  close: () => void
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

/** A time before all others: what happened then is due. */
export const atOnce = Number.NEGATIVE_INFINITY

/** Whom channels pay, and in what. */
export type Owed = { receiver: Address; token: Address }

/** Channels that one call reads. */
export const pageMax = 100

/** Deposits of one signer in an hour, and as many refunds. */
export const perHour = 10

/** What this process does about the channels of a network. */
export type ChannelWatch = ReturnType<typeof createChannelWatch>

export function createChannelWatch(now: () => number) {
  return {
    /** What offers say of channels, as long as nothing changes. */
    terms: undefined as ChannelTerms | undefined,
    /** Open channels at the last look. */
    open: 0,
    /** What was charged and not claimed, of all channels, atomic. */
    unclaimedAtomic: 0n,
    /** Looks again now. */
    wake: () => {},

    // Of the reads of the chain. Times are by `Context.monotonic`.

    /**
     * Reads of states, with their writes: an older answer must not follow a newer one. Together, because a
     * node may be slow, and strangers may ask for many.
     */
    reads: createBatches<Hex>(pageMax),
    /** When every node last showed its events. */
    seenAt: atOnce,
    /** Channels to be read again. `blocks`: before that, no voucher of it is taken. */
    changed: new Map<Hex, { blocks: boolean }>(),
    /**
     * When all channels with unclaimed money were read. `atOnce`: all open ones are to be read, because
     * nothing is known of what happened before.
     */
    readAt: atOnce,
    /** The newest block whose events were asked for; undefined before. */
    block: undefined as bigint | undefined,
    /** Events of the newest blocks that the nodes show, with their channels. */
    events: new Map<string, Hex>(),
    /** Jobs whose caller reads the channels at their end. */
    awaited: new Set<string>(),

    // Of claims.

    /** Withdrawals: when the payer began each, and what is unclaimed. */
    withdrawals: new Map<Hex, { at: number; unclaimedAtomic: bigint }>(),
    /** When all unclaimed money was last claimed, by `Context.monotonic`; `atOnce`: at the next look. */
    claimedAt: atOnce,
    /** What the claims under way bring a channel to, atomic. */
    claiming: new Map<Hex, bigint>(),
    /** Channels whose claim every node refuses; for the log. */
    refused: new Set<Hex>(),
    /** Receivers for which something was claimed that they do not have. */
    owed: new Map<string, Owed>(),
    /** Since when claims that are due cannot be sent (unix ms), and why. */
    late: undefined as { since: number; reason: string } | undefined,

    // Of deposits and refunds, which cost their payers nothing.

    /** The newest deposit of a channel, and what the channel was charged before. */
    deposits: new Map<Hex, { id: string; chargedAtomic: bigint }>(),
    /** Deposits and refunds of signers. */
    signers: createDebts(now, perHour, hourMs),
  }
}

/** Channels that are kept in memory; any other one is read again. */
const knownMax = 10_000

/** Requests that may wait for the turn of one channel. */
const waitingMax = 16

/**
 * Keeps a channel as it was read. A read may be older than a charge that this process knows, and what
 * is charged only grows, so the greater one stays. Returns what is kept.
 */
export function remember({ known, unpublished, turns }: Channels, read: Channel): Channel {
  const before = known.get(read.id)
  const isOlder = before !== undefined && before.chargedAtomic > read.chargedAtomic
  // The account that is paid may claim by itself.
  if (before?.claimedAtomic !== read.claimedAtomic) unpublished.delete(read.id)
  const { chargedAtomic, signed } = isOlder ? before : read
  const channel = isOlder ? { ...read, chargedAtomic, signed } : read
  known.delete(read.id)
  known.set(read.id, channel)
  const [oldest] = known.keys()
  if (known.size > knownMax && oldest !== undefined && !turns.has(oldest)) {
    known.delete(oldest)
    unpublished.delete(oldest)
  }
  return channel
}

/**
 * Takes the turn of a channel, which has one request at a time. Resolves with its release, which may be
 * called again, or with undefined after the time (ms).
 */
export async function takeTurn(
  { turns }: Channels,
  id: Hex,
  waitMs: number,
): Promise<(() => void) | undefined> {
  const waiting = turns.get(id)
  if (waiting === undefined) turns.set(id, [])
  else {
    if (waiting.length >= waitingMax) return undefined
    const { promise, resolve } = Promise.withResolvers<void>()
    waiting.push(resolve)
    await within(promise, waitMs)
    const at = waiting.indexOf(resolve)
    // The turn may have come just after the time.
    if (at >= 0) return void waiting.splice(at, 1)
  }
  let isOver = false
  return () => {
    if (isOver) return
    isOver = true
    const next = turns.get(id)?.shift()
    if (next === undefined) turns.delete(id)
    else next()
  }
}
