import type { Address } from 'viem'
import {
  type Authorization,
  type Charge,
  type Delivered,
  type State,
  sourcesOf,
} from '../Authorization'
import {
  type AuthorizationLedger,
  type CeilingLimits,
  type CeilingRefusal,
  standingRowsMax,
} from '../AuthorizationLedger'
import { fromRow, toRow } from '../authorization-rows'
import { authorizations } from '../authorizations'
import { rowOf } from '../select'
import type { Change } from './commits'
import { isBarred, isDuplicate, RefusedError } from './errors'
import { type Parts, payerLock } from './parts'
import type { Reader } from './reader'
import { type Json, toJson } from './rows'
import { readTogether } from './together'

type Selected = { row: Json }

const select = 'SELECT to_jsonb(authorizations) AS row FROM authorizations'
const newest = 'ORDER BY created_at DESC LIMIT 1'
const isOpen = "state IN ('authorized', 'metered')"
const isOfMoney =
  'network = $1 AND lower(asset) = lower($2) AND lower(payer) = lower($3) AND nonce = lower($4)'
const isOfKey = 'merchant = $1 AND route = $2 AND lower(payer) = lower($3) AND idempotency_key = $4'

/** Authorizations of the scheme `upto`. */
export function createAuthorizations({
  commits,
  reader,
  gateway,
}: Pick<Parts, 'commits' | 'reader' | 'gateway'>): AuthorizationLedger {
  return {
    ...readAuthorizations(reader, gateway),
    async insert(authorization, limits) {
      const { id, transfer } = authorization
      const row = { ...toJson(authorizations, toRow(authorization)), authorized_by: gateway }
      try {
        // The server may crash, or a standby may take its place, while this process makes the
        // answer. A lost row could not be charged, and the same credential would buy another
        // answer.
        await commits.add({
          call: 'insert_authorization',
          input: { row, limits: limits === undefined ? null : limitsOf(limits) },
          key: id,
          ...(limits !== undefined && { locks: [payerLock(transfer.payer)] }),
          read: () => undefined,
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

type Reads = Pick<
  AuthorizationLedger,
  | 'find'
  | 'findById'
  | 'findByIdempotencyKey'
  | 'findVoid'
  | 'open'
  | 'hasFailedSince'
  | 'lossesSince'
  | 'standingOf'
>

/** What a living gateway forwards is not left behind: only it knows what the answer cost. */
const isLeft = `(state = 'metered' OR authorized_by IS NULL OR authorized_by = $1
  OR NOT EXISTS (SELECT 1 FROM gateways WHERE gateways.id = authorized_by))`

const isFailed = `lower(payer) = lower($1) AND failed_at > $2 AND state <> 'void'
  AND NOT EXISTS (SELECT 1 FROM payments
    WHERE payments.id = authorizations.id AND payments.state = 'confirmed')`

const byIds = `SELECT found.row FROM unnest($1::text[]) WITH ORDINALITY AS asked (id, place)
  LEFT JOIN LATERAL (
    SELECT to_jsonb(authorizations) AS row FROM authorizations
    WHERE authorizations.id = asked.id LIMIT 1
  ) AS found ON true
  ORDER BY asked.place`

const isLost = `failed_at IS NOT NULL AND product = 'gateway' AND NOT EXISTS (
  SELECT 1 FROM payments WHERE payments.id = authorizations.id AND payments.state = 'confirmed')`
const lost =
  "CASE WHEN coalesce(charge_atomic, '0') = '0' THEN ceiling_atomic ELSE charge_atomic END"
const losses = `SELECT id, merchant, payer, ${lost} AS atomic, failed_at AS at
  FROM authorizations WHERE ${isLost} AND failed_at > $1`
const standing = `SELECT (
    SELECT coalesce(sum(amount_atomic::numeric), 0)::text FROM (
      SELECT amount_atomic, merchant, product, state FROM payments
      WHERE network = $1 AND lower(asset) = lower($2) AND lower(payer) = lower($3)
      LIMIT ${standingRowsMax}) AS paid
    WHERE merchant = $4 AND product = 'gateway' AND state = 'confirmed'
  ) AS paid, (
    SELECT coalesce(sum(lost::numeric), 0)::text FROM (
      SELECT ${lost} AS lost FROM authorizations
      WHERE ${isLost} AND lower(payer) = lower($3) AND merchant = $4
      ORDER BY failed_at DESC LIMIT ${standingRowsMax}) AS losses
  ) AS lost`

type LossRow = { id: string; merchant: string; payer: Address; atomic: string; at: string }

function readAuthorizations(reader: Reader, gateway: string): Reads {
  const one = async (where: string, values: readonly unknown[]) => {
    const found = await reader.one<Selected>(`${select} WHERE ${where}`, values)
    return found && decode(found)
  }
  return {
    find: ({ network, asset, payer, nonce }) => one(isOfMoney, [network, asset, payer, nonce]),
    // Each gateway reads the payments that others report. Those of one commit share a read.
    findById: readTogether(async (ids: readonly string[]) =>
      (await reader.all<Selected>(byIds, [ids])).map((found) =>
        found.row === null ? undefined : decode(found),
      ),
    ),
    findByIdempotencyKey: ({ merchant, route, payer, key }) =>
      one(`${isOfKey} AND ${isOpen} ${newest}`, [merchant, route, payer, key]),
    findVoid: ({ merchant, route, payer, key }) =>
      one(`${isOfKey} AND state = 'void' ${newest}`, [merchant, route, payer, key]),
    open: async () =>
      (
        await reader.all<Selected>(
          `${select} WHERE ${isOpen} AND ${isLeft} ORDER BY created_at DESC`,
          [gateway],
        )
      ).map(decode),
    hasFailedSince: async (payer, at) =>
      (await one(`${isFailed} LIMIT 1`, [payer, at])) !== undefined,
    lossesSince: async (at) =>
      (await reader.all<LossRow>(losses, [at])).map((row) => ({
        ...row,
        atomic: BigInt(row.atomic),
        at: Number(row.at),
      })),
    async standingOf({ network, asset, payer, merchant }) {
      const row = await reader.one<{ paid: string; lost: string }>(standing, [
        network,
        asset,
        payer,
        merchant,
      ])
      return { paidAtomic: BigInt(row?.paid ?? 0), lostAtomic: BigInt(row?.lost ?? 0) }
    },
  }
}

function decode({ row }: Selected): Authorization {
  return fromRow(rowOf(authorizations, row))
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
