import type { Hex } from 'viem'
import type * as Voucher from '../src/protocol/Channel'
import type * as Network from '../src/protocol/Network'

export type Config = Voucher.Config
export type OnChain = Voucher.OnChain

/** A payment channel as stored. Times are unix ms. */
export type Channel = {
  id: Hex
  network: Network.Id
  config: Config
  /** All that its requests were charged. Never falls. */
  chargedAtomic: bigint
  /**
   * The voucher that covers what was charged; undefined where the chain has all of it. It stays as long as
   * it covers that. So of all that claims have published, no other one is above what was charged.
   */
  signed: { maxAtomic: bigint; signature: Hex } | undefined
  /** The voucher of the request, or of the refund, that is under way. */
  reserved: Reserved | undefined
  /** When the state of the chain was read. Each read is later than the one before, whatever the clock says. */
  syncedAt: number
  /** When a voucher was last reserved. */
  usedAt: number
  createdAt: number
} & OnChain

export type Reserved = {
  /** Id of the payment to be, or `refund:` and the nonce. */
  id: string
  maxAtomic: bigint
  signature: Hex
  fingerprint: string
  at: number
}

/** A voucher that is to be reserved. */
export type Reservation = {
  channelId: Hex
  /** What was charged before. */
  baseAtomic: bigint
  reserved: Reserved
}

/** Of the open channels of a network. */
export type ChannelTotals = {
  network: Network.Id
  channels: number
  unclaimedAtomic: bigint
  withdrawals: number
  /** Withdrawals of channels that have something unclaimed. */
  unsafeWithdrawals: number
}
