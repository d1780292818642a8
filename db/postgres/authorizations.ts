import { type Charge, type Delivered, type State, sourcesOf } from '../Authorization'
import {
  type AuthorizationLedger,
  type CeilingLimits,
  type CeilingRefusal,
  createAuthorizationReads,
} from '../authorizations'
import { authorizationRow, toAuthorization } from '../rows'
import { authorizations } from '../schema'
import type { Change } from './commits'
import { isBarred, isDuplicate, RefusedError } from './errors'
import { type Parts, payerLock } from './parts'
import { readTogether, selectsOf } from './reader'
import { type Json, toJson } from './rows'

/** What a living gateway forwards is not left behind: only it knows what the answer cost. */
const isLeft = `(state = 'metered' OR authorized_by IS NULL OR authorized_by = $gateway
  OR NOT EXISTS (SELECT 1 FROM gateways WHERE gateways.id = authorized_by))`

const byIds = `SELECT found.row FROM unnest($1::text[]) WITH ORDINALITY AS asked (id, place)
  LEFT JOIN LATERAL (
    SELECT to_jsonb(authorizations) AS row FROM authorizations
    WHERE authorizations.id = asked.id LIMIT 1
  ) AS found ON true
  ORDER BY asked.place`

/** Authorizations of the scheme `upto`. */
export function createAuthorizations({
  commits,
  reader,
  gateway,
}: Pick<Parts, 'commits' | 'reader' | 'gateway'>): AuthorizationLedger {
  return {
    ...createAuthorizationReads(selectsOf(reader), { condition: isLeft, values: { gateway } }),
    // Each gateway reads the payments that others report. Those of one commit share a read.
    findById: readTogether(async (ids: readonly string[]) =>
      (await reader.all<{ row: Json }>(byIds, [ids])).map(({ row }) =>
        row === null ? undefined : toAuthorization(row),
      ),
    ),
    async insert(authorization, limits) {
      const { id, transfer } = authorization
      const row = {
        ...toJson(authorizations, authorizationRow(authorization)),
        authorized_by: gateway,
      }
      try {
        // The server may crash, or a standby may take its place, while this process makes the
        // answer. A lost row could not be charged, and the same credential would buy another
        // answer.
        await commits.add({
          call: 'insert_authorization',
          input: { row, limits: limits === undefined ? null : limitsOf(limits) },
          key: id,
          ...(limits !== undefined && { locks: [payerLock(transfer.payer)] }),
        })
        return 'stored'
      } catch (error) {
        if (isDuplicate(error) || isBarred(error)) return 'known'
        if (error instanceof RefusedError) return { refused: error.reason as CeilingRefusal }
        throw error
      }
    },
    // On the disk, too: after a crash of the server no other gateway would know this charge, and
    // this process would wait for its settlement without end.
    meter: (id, charge, delivered) =>
      commits.add(charged(id, 'metered', columnsOf(charge, delivered))),
    // A lost `void` is written again, because the process looks for open authorizations that
    // nothing works on.
    void: (id, charge, delivered, lostAt) =>
      commits.addSoon(
        charged(id, 'void', { ...columnsOf(charge, delivered), failed_at: lostAt ?? null }),
      ),
    fail: (id) => commits.add(charged(id, 'failed', {})),
    async markFailed(id, at) {
      await commits.add(changeOf(id, null, { failed_at: at }))
    },
  }
}

function limitsOf({ unsettledAtomic, fundsAtomic, relayerMax, payerMax }: CeilingLimits): Json {
  const amounts = { unsettled: String(unsettledAtomic), funds: String(fundsAtomic) }
  return { ...amounts, relayer: relayerMax, payer: payerMax }
}

type Columns = Readonly<Record<string, Json>>

/** A change into a state, from those that the table of transitions permits. */
function charged(id: string, into: State, columns: Columns): Change<boolean> {
  return changeOf(id, sourcesOf(into), { state: into, ...columns })
}

function changeOf(id: string, from: readonly State[] | null, set: Columns): Change<boolean> {
  return {
    call: 'change_authorization',
    input: { id, from, set },
    key: id,
    read: (value) => value === true,
  }
}

function columnsOf({ amountAtomic, units }: Charge, delivered: Delivered | undefined): Columns {
  return {
    charge_atomic: String(amountAtomic),
    units: JSON.stringify(units),
    is_delivered: delivered !== undefined,
    upstream_status: delivered?.upstreamStatus ?? null,
    truncated: delivered?.truncated === true,
  }
}
