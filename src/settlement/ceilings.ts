import type { Address } from 'viem'
import type { Transfer } from '../protocol/Transfer'

/**
 * Signed ceilings of the scheme `upto` that are not settled, in memory. After a restart there is none:
 * what was forwarded then is void, and what is metered needs no ceiling any more.
 */
export type Ceilings = {
  /** Sum of the ceilings of a payer on all networks, atomic. */
  openOf(payer: Address): bigint
  /** Sum of what the payer of this transfer reserves of its balance. */
  reservedOf(transfer: Transfer): bigint
  /** Call it in the same turn of the event loop as the checks of these. */
  add(id: string, transfer: Transfer): void
  has(id: string): boolean
  /** A payment reserves the charge from now on, so the ceiling reserves nothing more. */
  handOver(id: string): void
  /** The authorization has ended. Repeatable. */
  release(id: string): void
}

export function createCeilings(): Ceilings {
  const open = new Map<string, { transfer: Transfer; isReserved: boolean }>()
  const sum = (isMine: (entry: { transfer: Transfer; isReserved: boolean }) => boolean) => {
    let amount = 0n
    for (const each of open.values()) if (isMine(each)) amount += each.transfer.amountAtomic
    return amount
  }
  return {
    openOf: (payer) => sum(({ transfer }) => transfer.payer === payer),
    reservedOf: ({ payer, network, asset }) =>
      sum(
        ({ transfer, isReserved }) =>
          isReserved &&
          transfer.payer === payer &&
          transfer.network === network &&
          transfer.asset === asset,
      ),
    add: (id, transfer) => void open.set(id, { transfer, isReserved: true }),
    has: (id) => open.has(id),
    handOver(id) {
      const own = open.get(id)
      if (own) own.isReserved = false
    },
    release: (id) => void open.delete(id),
  }
}
