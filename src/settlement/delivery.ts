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
export function deliveries({ group, store, now, log }: Context) {
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
      const isChanged = await add(() => {
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
      if (!isChanged) throw new Error(`no delivery of payment ${id} was begun`)
    },
    async handOver(id: string): Promise<boolean> {
      try {
        return await group.add(() => store.handOver(id, now()))
      } catch (error) {
        // Unknown to everybody is better than known to two.
        log('settlement-fault', { payment: id, error })
        return false
      }
    },
    async markAnswered(id: string): Promise<void> {
      await group.add(() => store.markAnswered(id))
    },
  }
}
