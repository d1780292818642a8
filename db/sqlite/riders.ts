import type { Hex } from 'viem'
import type { JobRider, OrderRows, RowsRefusal } from '../Ledger'

/**
 * Rows of products inside a commit of settlement. Each function is called inside its transaction,
 * and throws RefusedError to roll it back.
 */
export type Riders = {
  orders: {
    /** The order of a payment, after the payment's row. Throws for the quota. */
    insert(rows: OrderRows, payment: { id: string; transaction: Hex }): void
    ride(rider: Extract<JobRider, { kind: 'order' }>, transaction: Hex): void
  }
  grants: {
    ride(rider: Extract<JobRider, { kind: 'grant' }>, transaction: Hex): void
    /** The transaction of `ride` was not committed: what is in memory is read again. */
    undo(): void
  }
}

/** Rolls a transaction back because the rows of a product cannot be written. */
export class RefusedError extends Error {
  override readonly name = 'RefusedError'
  readonly reason: RowsRefusal

  constructor(reason: RowsRefusal) {
    super(`rows refused: ${reason}`)
    this.reason = reason
  }
}
