import type { Address } from 'viem'
import type * as Network from '../../protocol/Network'
import type { Transfer } from '../../protocol/Transfer'
import type { Verified } from '../state/state'

/**
 * Signed ceilings of the scheme `upto` that are not settled, in memory. After a restart there is
 * none: what was forwarded before is void, and a metered charge needs no ceiling.
 */
export type Ceilings = {
  /** Sum of the ceilings of a payer on all networks, atomic. */
  openOf(payer: Address): bigint
  /** Number of ceilings of a network that one relayer is to settle, of all payers or of one. */
  countOf(network: Network.Id, facilitator: Address, payer?: Address): number
  /** Sum of what the payer of this transfer reserves of its balance. */
  reservedOf(transfer: Transfer): bigint
  /**
   * Adds a ceiling. Call it in the same turn of the event loop as the checks of these sums. `close` is
   * called when it is released.
   */
  add(id: string, transfer: Transfer, verified: Verified | undefined, close: () => void): void
  /** What the simulation of an authorization showed of a payer without code. */
  verifiedOf(id: string): Verified | undefined
  has(id: string): boolean
  ids(): readonly string[]
  /** A payment reserves the charge from now on, so the ceiling reserves nothing more. */
  handOver(id: string): void
  /** The authorization has ended. May be called again. */
  release(id: string): void
}

type Entry = {
  transfer: Transfer
  verified: Verified | undefined
  isReserved: boolean
  close: () => void
}

export function createCeilings(): Ceilings {
  const open = new Map<string, Entry>()
  const sum = (isMine: (entry: Entry) => boolean) => {
    let amount = 0n
    for (const each of open.values()) if (isMine(each)) amount += each.transfer.amountAtomic
    return amount
  }
  return {
    countOf(network, facilitator, payer) {
      let count = 0
      for (const { transfer } of open.values()) {
        if (transfer.network !== network || transfer.upto?.facilitator !== facilitator) continue
        if (payer === undefined || transfer.payer === payer) count++
      }
      return count
    },
    openOf: (payer) => sum(({ transfer }) => transfer.payer === payer),
    reservedOf: ({ payer, network, asset }) =>
      sum(
        ({ transfer, isReserved }) =>
          isReserved &&
          transfer.payer === payer &&
          transfer.network === network &&
          transfer.asset === asset,
      ),
    add: (id, transfer, verified, close) =>
      void open.set(id, { transfer, verified, isReserved: true, close }),
    verifiedOf: (id) => open.get(id)?.verified,
    has: (id) => open.has(id),
    ids: () => [...open.keys()],
    handOver(id) {
      const own = open.get(id)
      if (own) own.isReserved = false
    },
    release(id) {
      open.get(id)?.close()
      open.delete(id)
    },
  }
}
