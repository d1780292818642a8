import type { Transfer } from '../src/protocol/Transfer'
import type { PaymentRow } from './schema'

type Columns = 'permit2612Value' | 'permit2612Deadline' | 'permit2612Signature'

/** The permit of a row, when it has one. */
export function permit2612Of(row: Pick<PaymentRow, Columns>): Pick<Transfer, 'permit2612'> {
  const { permit2612Value, permit2612Deadline, permit2612Signature } = row
  if (permit2612Value === null || permit2612Deadline === null || permit2612Signature === null) {
    return {}
  }
  return {
    permit2612: {
      valueAtomic: permit2612Value,
      deadline: permit2612Deadline,
      signature: permit2612Signature,
    },
  }
}
