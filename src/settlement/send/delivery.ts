import type { Payment } from '../../../db/Payment'
import type { Context } from '../state/state'
import { untilWritten } from '../state/wait'
import { NotDeliverableError } from './Outcome'

export type Delivered =
  | { delivered: true; upstreamStatus: number; truncated: boolean }
  | {
      delivered: false
      upstreamStatus: number | undefined
      redeemTokenHash: string
      redeemUntil: number
    }

/** The delivery state of payments. All that are changed at the same time share a commit. */
export function createDeliveryStates({ ledger, progress, now, log }: Context) {
  const { deliveries } = ledger

  const writes: (() => void)[] = []

  /**
   * Runs the write after this turn of the event loop, so that all writes of a turn share a commit.
   */
  function afterTurn(write: () => Promise<boolean>): Promise<boolean> {
    return new Promise((resolve, reject) => {
      writes.push(() => void write().then(resolve, reject))
      if (writes.length > 1) return
      setImmediate(() => {
        for (const each of writes.splice(0)) each()
        ledger.flush()
      })
    })
  }

  /** A token must be on the disk before its buyer has it, so this rejects while the disk fails. */
  function end(id: string, given: Delivered | (() => Delivered)): Promise<boolean> {
    if (typeof given !== 'function' && !given.delivered) return deliveries.fail(id, given, now())
    const write = (result: Delivered) =>
      result.delivered ? deliveries.deliver(id, result, now()) : deliveries.fail(id, result, now())
    // The caller keeps its claim until this is written, so the same credential gets no second answer.
    return untilWritten({ ledger, progress }, () =>
      typeof given === 'function' ? afterTurn(async () => write(given())) : write(given),
    )
  }

  return {
    /**
     * Commits `attempts + 1` and `delivering`; resolves before the upstream may be contacted. Rejects
     * with NotDeliverableError when the payment is not confirmed, was delivered, or is with another
     * process.
     */
    async beginDelivery(id: string, attempts?: number): Promise<Payment> {
      const payment = await deliveries.begin(id, attempts)
      if (!payment) throw new NotDeliverableError(`payment ${id} is not to be delivered`)
      return payment
    },
    /**
     * Resolves when it is on the disk. Rejects with NotDeliverableError when this process has no
     * delivery of the payment. A function is called at the write, after this turn of the event loop.
     * While the disk fails, the end is kept and written later. An end with a token is not kept: then
     * this rejects.
     */
    async endDelivery(id: string, given: Delivered | (() => Delivered)): Promise<void> {
      if (!(await end(id, given)))
        throw new NotDeliverableError(`no delivery of payment ${id} was started`)
    },
    /**
     * Changes delivery from none to delivered in one commit. True for exactly one caller ever, false
     * for the others and while the payment is not confirmed. Undefined when the write failed: no
     * caller has it, and the same call may succeed later. Never rejects.
     */
    async handOver(id: string): Promise<boolean | undefined> {
      try {
        return await deliveries.handOver(id, now())
      } catch (error) {
        // On a fault answer no caller, because answering two would give a paid answer away.
        log('settlement-fault', { payment: id, error })
        return undefined
      }
    },
    /** An answer of any status was sent for this payment. */
    markAnswered: (id: string): Promise<void> => deliveries.markAnswered(id),
  }
}
