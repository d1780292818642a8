import { storageCode } from '../../db/storage'
import type { Context } from './context'
import type { Payment } from './Payment'

export type Delivered =
  | { delivered: true; upstreamStatus: number; truncated: boolean }
  | {
      delivered: false
      upstreamStatus: number | undefined
      redeemTokenHash: string
      redeemUntil: number
    }

/** The delivery state of payments. All that are changed at the same time share a commit. */
export function deliveries({ db, group, store, now, log, signal }: Context) {
  /**
   * The caller keeps its claim until this is written, so the same credential gets no second answer.
   */
  async function persist<T>(add: () => Promise<T>): Promise<T> {
    for (;;) {
      try {
        return await add()
      } catch (error) {
        if (storageCode(error) === undefined) throw error
        await db.storage.writable(signal)
      }
    }
  }
  return {
    async beginDelivery(id: string): Promise<Payment> {
      const payment = await group.add(() => store.beginDelivery(id))
      if (!payment) throw new Error(`payment ${id} is not to be delivered`)
      return payment
    },
    async endDelivery(id: string, told: Delivered | (() => Delivered)): Promise<void> {
      // A token must be on the disk before its buyer has it. What was delivered has left already: its
      // record comes after the fact anyway.
      const isToken = typeof told !== 'function' && !told.delivered
      const add = isToken ? group.add : group.addSoon
      const change = () =>
        add(() => {
          const result = typeof told === 'function' ? told() : told
          return result.delivered
            ? store.deliver(id, result.upstreamStatus, result.truncated, now())
            : store.failDelivery(
                id,
                result.upstreamStatus,
                result.redeemTokenHash,
                result.redeemUntil,
              )
        })
      const isChanged = await (isToken ? change() : persist(change))
      if (!isChanged) throw new Error(`no delivery of payment ${id} was begun`)
    },
    async handOver(id: string): Promise<boolean | undefined> {
      try {
        return await group.add(() => store.handOver(id, now()))
      } catch (error) {
        // Unknown to everybody is better than known to two.
        log('settlement-fault', { payment: id, error })
        return undefined
      }
    },
    async markAnswered(id: string): Promise<void> {
      await group.add(() => store.markAnswered(id))
    },
  }
}
