import type { Address } from 'viem'
import type { EntitlementLedger, NewEntitlement } from '../Entitlement'
import {
  createEntitlementReads,
  createEntitlementSweep,
  entitlementRow,
  freshRows,
  untilOf,
} from '../entitlements'
import { entitlements, entitlementUses, type PaymentRow } from '../schema'
import type { Db } from './open'
import { insertInto, selectsOf, statement } from './statement'
import { changeOf } from './webhooks'
import { type Group, write } from './write'

type Counter = { wallet: Address | null; uses: number; usesMax: number; attempts: number }

/** Entitlements and their uses. Twin: db/postgres/functions/entitlements.sql. */
export function createEntitlements(db: Db, group: Group) {
  const insert = insertInto(db, entitlements)
  const insertUse = insertInto(db, entitlementUses)
  const isKept = statement(db, 'SELECT 1 FROM entitlement_uses WHERE id = $id')
  const find = statement<Counter & { isOver: number }>(
    db,
    `SELECT wallet, uses, uses_max AS usesMax, attempts,
       payment_id IS NOT NULL AND coalesce(${untilOf}, 0) <= $now AS isOver
     FROM entitlements AS e WHERE id = $id`,
  )
  const count = statement(
    db,
    `UPDATE entitlements SET uses = uses + 1, attempts = attempts + 1, uses_max = $max
     WHERE id = $id`,
  )
  const end = endUse(db)
  const ledger: EntitlementLedger = {
    ...createEntitlementReads(selectsOf(db)),
    use: (input) =>
      group.add(() => {
        const { id, entitlement, attemptsMax, now } = input
        if (isKept().get({ id }) !== null) return 'id-used'
        const { trial, day } = freshRows(input)
        const entitlementId = 'id' in entitlement ? entitlement.id : (trial?.id ?? '')
        const known = find().get({ id: entitlementId, now }) ?? undefined
        const wallet = known?.wallet ?? trial?.wallet
        if (!wallet || known?.isOver) return 'over'
        const isSpent = (row: Counter | null | undefined, max: number) =>
          row != null && (row.uses >= max || row.attempts >= attemptsMax * max)
        const max = trial?.usesMax ?? known?.usesMax ?? 0
        if (isSpent(known, max)) return 'spent'
        const pool = day && find().get({ id: day.id, now })
        if (day && isSpent(pool, day.usesMax)) return 'day-spent'
        if (trial && !known) insert(trial)
        if (day && !pool) insert(day)
        count().run({ id: entitlementId, max })
        if (day) count().run({ id: day.id, max: day.usesMax })
        const use = { id, entitlementId, dayId: day?.id ?? null, wallet }
        insertUse({ ...use, state: 'running', createdAt: now })
        return 'used'
      }),
    // An answer has been sent, or nothing is to be kept of it, so it need not wait for the disk.
    end: (id, isDelivered) => group.addSoon(() => end(id, isDelivered)),
    sweep: createEntitlementSweep({ change: changeOf(db, group) }),
  }
  return {
    ledger,
    riders: {
      insert: (entitlement: NewEntitlement, payment: PaymentRow) =>
        insert(entitlementRow(entitlement, payment)),
    },
  }
}

/** Gives back the uses that an earlier process had running. Call it before any use. */
export function recoverUses(db: Db): void {
  const end = endUse(db)
  const running = statement<{ id: string }>(
    db,
    "SELECT id FROM entitlement_uses WHERE state = 'running'",
  )
  const left = running().all({})
  if (left.length > 0) write(db, () => left.map(({ id }) => end(id, false)).length)
}

function endUse(db: Db) {
  const end = statement<{ id: string; day: string | null }>(
    db,
    `UPDATE entitlement_uses SET state = $state WHERE id = $id AND state = 'running'
     RETURNING entitlement_id AS id, day_id AS day`,
  )
  const giveBack = statement(db, 'UPDATE entitlements SET uses = uses - 1 WHERE id IN ($id, $day)')
  return (id: string, isDelivered: boolean): boolean => {
    const ended = end().get({ id, state: isDelivered ? 'delivered' : 'failed' })
    if (ended !== null && !isDelivered) giveBack().run(ended)
    return ended !== null
  }
}
