import { prepareHandOver } from '../../db/handover'
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
export function deliveries({ db, group, store, now }: Context) {
  const handOver = prepareHandOver(db)
  return {
    async beginDelivery(id: string): Promise<Payment> {
      const payment = await group.add(() => store.beginDelivery(id))
      if (!payment) throw new Error(`payment ${id} is not to be delivered`)
      return payment
    },
    async endDelivery(id: string, told: Delivered | (() => Delivered)): Promise<void> {
      const isChanged = await group.add(() => {
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
    handOver: (id: string): Promise<boolean> => group.add(() => handOver(id, now())),
    async markAnswered(id: string): Promise<void> {
      await group.add(() => store.markAnswered(id))
    },
  }
}
