import type { Address, Hex } from 'viem'
import type { RowsRefusal } from '../../../db/Ledger'
import type { GasProduct } from '../../../db/schema'
import type { Receipt } from '../../chain/receipt'
import type * as Network from '../../protocol/Network'

/**
 * A transaction of our own that carries no payment: a swap, a refund, a grant, an allowance, or a call
 * for a payment channel.
 */
export type Job = {
  /** Unique permanently, e.g. `refund:ORDER`: one id is never sent at two account nonces. */
  id: string
  kind: 'swap' | 'refund' | 'grant' | 'allowance' | 'channel'
  /** The product whose gas budget pays. */
  product: GasProduct
  network: Network.Id
  /** The account that must send it; undefined: any relayer of the network. */
  relayer: Address | undefined
  valueWei: bigint
  /**
   * Unused gas costs nothing. Nodes refuse a limit below what a chain takes for L1 data, and a refused
   * nonce blocks all above it.
   */
  gasLimit: bigint
  /** What the account must have left beside its cost, wei. */
  keepsWei?: bigint
  /** Whether it may use only the first half of the budget: the other one is for other jobs. */
  sparesHalf?: boolean
  /**
   * Whether the code of a payer takes part. It can use all of the gas, whatever a simulation has shown, so such
   * jobs share what wallets with code may cost their product.
   */
  runsCode?: boolean
  /** An account that has too little native coin for sales may send it, too. */
  takesLast?: true
} & (JobCall | { compose: (sender: Sender) => JobCall })

/** The call that is sent; `isCreation`: `data` is the code of a contract that is created, at `to`. */
export type JobCall = { to: Address; data: Hex; isCreation?: boolean }

/**
 * For calls that contain a signature of their sender, or the address that they create. Both are
 * known only when the job is written. `compose` must be pure. It runs once, inside the decision to
 * send.
 */
export type Sender = {
  address: Address
  /** Account nonce of the transaction. */
  nonce: number
  /** 65 bytes. */
  sign(digest: Uint8Array): Hex
}

/**
 * The state of a job. `confirmed` and `failed` are final within `reorg_depth`. `replaced`: the
 * chain has another confirmed transaction at its nonce, so the job did not run and never will.
 */
export type JobEnd =
  | { kind: 'confirmed'; transaction: Hex; receipt: Receipt }
  | { kind: 'failed'; transaction: Hex; receipt: Receipt }
  | { kind: 'replaced'; transaction: Hex }
  /** Sent, not decided in time; settlement continues in the background. */
  | { kind: 'pending'; transaction: Hex }
  /** The rows of the product could not be written: nothing was written or sent. */
  | { kind: 'refused'; reason: RowsRefusal }
  /** Nothing was written or sent. */
  | { kind: 'unavailable'; detail: string; retryAfterSeconds: number }
