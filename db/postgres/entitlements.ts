import type { EntitlementLedger, Used } from '../Entitlement'
import { createEntitlementReads, createEntitlementSweep, freshRows } from '../entitlements'
import { entitlements } from '../schema'
import type { Parts } from './parts'
import { selectsOf } from './reader'
import { toJson } from './rows'
import { changeOf } from './webhooks'

/** Entitlements and their uses, whose counters all gateways share. */
export function createEntitlements({
  commits,
  reader,
  gateway: by,
}: Pick<Parts, 'commits' | 'reader' | 'gateway'>): EntitlementLedger & {
  /** Gives back the uses of gateways that are gone. */
  recover(): Promise<void>
} {
  const recover = () => commits.add({ call: 'recover_uses', input: {}, key: '' })
  const sweep = createEntitlementSweep({ change: changeOf({ commits }) })
  /** What the running uses of this process are counted by. */
  const counters = new Map<string, readonly string[]>()
  return {
    ...createEntitlementReads(selectsOf(reader)),
    recover,
    async use(input) {
      const { id, entitlement, attemptsMax: attempts, now: at } = input
      const { trial, day } = freshRows(input)
      const used = 'id' in entitlement ? entitlement.id : (trial?.id ?? '')
      const rowOf = (row: typeof trial) => (row === undefined ? null : toJson(entitlements, row))
      const counted = [used, ...(day ? [day.id] : [])]
      const outcome = await commits.add({
        call: 'use_entitlement',
        input: { id, entitlement: used, trial: rowOf(trial), day: rowOf(day), attempts, at, by },
        // A paid one locks its payment first.
        key: used.split('|').at(-1) ?? used,
        locks: [id, ...counted],
        read: (value) => value as Used,
      })
      if (outcome === 'used') counters.set(id, counted)
      return outcome
    },
    async end(id, isDelivered) {
      const counted = counters.get(id)
      counters.delete(id)
      return commits.addSoon({
        call: 'end_use',
        input: { id, is_delivered: isDelivered },
        key: id,
        // One that is given back changes its counters, which the commits of gateways share.
        locks: isDelivered ? undefined : counted,
        read: (value) => value === true,
      })
    },
    async sweep(before) {
      // A gateway that has left may have lost the end of a use.
      await recover()
      await sweep(before)
    },
  }
}
