import type { Address } from 'viem'
import * as ChainClock from './clock'
import type { Context, Rail } from './context'
import * as Lane from './lane'

/** One relayer on one network. */
export type LaneStatus = {
  relayer: Address
  ready: boolean
  reason?: string
  balanceWei?: bigint
  /** Transactions that wait for a block. */
  inFlight: number
}

/**
 * Whether a network can settle, and why not. No I/O. A fault of the storage stops every network: a
 * payment that is not recorded must not be sent.
 */
export function statusOf(context: Pick<Context, 'db' | 'now' | 'monotonic'>, rail: Rail) {
  const storageFault = context.db.storage.fault()
  const { network, health } = rail
  const lanes = rail.lanes.map((lane): LaneStatus => {
    const reason = Lane.pausedBy(lane)
    return {
      relayer: lane.address,
      ready: reason === undefined,
      inFlight: lane.open,
      ...(reason === undefined ? {} : { reason }),
      ...(lane.balanceWei === undefined ? {} : { balanceWei: lane.balanceWei }),
    }
  })
  const [first] = lanes
  if (!first) throw new Error('a network without a lane')
  const works = Lane.isReady(rail)
  const ready = works && storageFault === undefined
  const unwritable = storageFault && `the database cannot be written (${storageFault})`
  const reason = health.reason ?? (works ? unwritable : first.reason)
  return {
    network: network.id,
    ready,
    relayer: first.relayer,
    clockAheadMs: ChainClock.aheadOf(context, rail),
    ...(reason === undefined ? {} : { reason }),
    ...(first.balanceWei === undefined ? {} : { balanceWei: first.balanceWei }),
    lanes,
  }
}
