import type { Address } from 'viem'
import * as ChainClock from './clock'
import type { ChainState, Context } from './context'
import * as Relayers from './relayer'

/** One relayer on one network. */
export type RelayerStatus = {
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
export function statusOf(context: Pick<Context, 'db' | 'now' | 'monotonic'>, chain: ChainState) {
  const storageFault = context.db.storage.fault()
  const { network, health } = chain
  const relayers = chain.relayers.map((relayer): RelayerStatus => {
    const reason = Relayers.pausedBy(relayer)
    return {
      relayer: relayer.address,
      ready: reason === undefined,
      inFlight: relayer.open,
      ...(reason === undefined ? {} : { reason }),
      ...(relayer.balanceWei === undefined ? {} : { balanceWei: relayer.balanceWei }),
    }
  })
  const [first] = relayers
  if (!first) throw new Error('a network without a relayer')
  const works = Relayers.isReady(chain)
  const ready = works && storageFault === undefined
  const unwritable = storageFault && `the database cannot be written (${storageFault})`
  const reason = health.reason ?? (works ? unwritable : first.reason)
  return {
    network: network.id,
    ready,
    relayer: first.relayer,
    clockAheadMs: ChainClock.aheadOf(context, chain),
    ...(reason === undefined ? {} : { reason }),
    ...(first.balanceWei === undefined ? {} : { balanceWei: first.balanceWei }),
    relayers,
  }
}
