import type { DeliveryCommits } from '../Ledger'
import type { Group } from './group'
import type { Outbox } from './outbox'
import type { Statements } from './parts'

export function createDeliveries(
  group: Group,
  { payments }: Statements,
  outbox: Outbox,
): DeliveryCommits {
  return {
    begin: (id) => group.add(() => payments.beginDelivery(id)),
    // A delivered answer has been sent already, so its record need not wait for the disk.
    deliver: (id, { upstreamStatus, truncated }, at) =>
      group.addSoon(() => payments.deliver(id, upstreamStatus, truncated, at)),
    // The token must be on the disk before its buyer has it.
    fail: (id, result, at) =>
      group.add(() => {
        const failed = payments.failDelivery(id, result)
        if (failed) outbox.undelivered(failed, at)
        return failed !== undefined
      }),
    handOver: (id, at) => group.add(() => payments.handOver(id, at)),
    async markAnswered(id) {
      await group.add(() => payments.markAnswered(id))
    },
  }
}
