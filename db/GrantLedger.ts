import type { Address } from 'viem'
import type * as Network from '../src/protocol/Network'
import type { Budget, Tally } from './GrantBudget'
import type { GrantRow, TopUpRow } from './schema'

/** A grant or a top-up that is written with its job: the job's transaction is its hash. */
export type NewGrant = (
  | { isTopUp: false; row: Omit<GrantRow, 'transactionHash'> }
  | { isTopUp: true; row: Omit<TopUpRow, 'transactionHash'> }
) & {
  /** Most grants and wei of the UTC day that began at `from` (unix ms). */
  budget: Budget & { from: number }
  /** Half of the day's budget is for requests that the address signed. */
  isSigned: boolean
}

export type GrantLedger = {
  find(network: Network.Id, address: Address): Promise<GrantRow | undefined>
  /** The top-up of a grant. */
  findTopUp(network: Network.Id, address: Address): Promise<TopUpRow | undefined>
  /** Sets the gas cost of a transfer, once that is known. */
  setFee(
    grant: { network: Network.Id; address: Address; isTopUp: boolean },
    feeWei: bigint,
  ): Promise<void>
  /** Sum of the grants since a time (unix ms). From memory after the first read. */
  tallySince(network: Network.Id, from: number): Promise<Tally>
}
