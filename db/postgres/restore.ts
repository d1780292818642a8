import { jobs } from '../jobs'
import type { DrivenSlot } from '../LaneLedger'
import { payments, transactions } from '../schema'
import type { Query } from './Line'
import type { Held, LaneRow } from './lane-table'
import { productRows } from './product-rows'
import { type Json, toJson } from './rows'

/**
 * After a failover that lost commits: raises a lane above what was acknowledged, and writes again what
 * its holder drives there. One transaction. Undefined when the lane has changed since it was read.
 */
export async function restoreLane(
  query: Query,
  { network, relayer, epoch: read }: LaneRow,
  { held, id, slots }: { held: Held; id: string; slots: readonly DrivenSlot[] },
): Promise<Held | undefined> {
  const { epoch, next_nonce: nonce } = held
  const lane = { network, relayer, holder: id, read, epoch, nonce }
  const [row] = await query<{ held: Held | null }>('SELECT restore_lane($1::jsonb) AS held', [
    JSON.stringify({ ...lane, slots: slots.map(toSlot) }),
  ])
  return row?.held ?? undefined
}

function toSlot({ transactions: sent, payments: paid, job, grant }: DrivenSlot): Json {
  return {
    transactions: sent.map((row) => toJson(transactions, row)),
    payments: paid.map(({ row, order }) => ({
      row: toJson(payments, row),
      ...(order && { order: productRows.order({ order, quota: undefined }) }),
    })),
    job: job === undefined ? null : toJson(jobs, job),
    // An order is not restored: the desk finds its state from the job.
    grant: grant === undefined ? null : productRows.rider({ kind: 'grant', grant }),
  }
}
