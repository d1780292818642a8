import { dayOf } from '../../src/protocol/Time'
import type { EventType } from '../../src/protocol/Webhook'
import { entitlementRow } from '../entitlements'
import type { Tally } from '../GrantBudget'
import type {
  IncludedPayment,
  Inclusion,
  JobRider,
  Launch,
  Launched,
  NewPayment,
  OrderRows,
  RowsRefusal,
  SettlingCommits,
} from '../Ledger'
import { newOrderRow } from '../orders'
import type { AddedGas } from '../outbox'
import type { Payment } from '../Payment'
import * as Refund from '../Refund'
import { paymentOf, toPayment } from '../rows'
import {
  entitlements,
  grants,
  grantTopUps,
  jobs,
  orders,
  type PaymentRow,
  payments,
  transactions,
} from '../schema'
import { decoderOf } from '../select'
import * as Event from '../WebhookEvent'
import type { WebhookEvent } from '../webhooks'
import type { Change } from './commits'
import { isBarred, isDuplicate, RefusedError } from './errors'
import {
  type Fences,
  fenceOf,
  fenceOfFirst,
  fenceOfJob,
  fenceOfTransaction,
  laneKey,
} from './fences'
import { eventsOf, rideOf, typesOf } from './orders'
import { type Parts, payerLock } from './parts'
import type { Selected } from './reader'
import { refundedEvents } from './refunds'
import { arrayText, type Json, reservationOf, rowText, toJson } from './rows'
import type { Gas, GasSum } from './sums'

const decodeTransaction = decoderOf(transactions)

export function createSettling(parts: SettlingParts): SettlingCommits {
  const { commits } = parts
  return {
    async launch(...inputs) {
      try {
        return { kind: 'stored', payments: await store(parts, inputs) }
      } catch (error) {
        const refused = refusalOf(error)
        if (refused) return { kind: 'refused', ...refused }
        if (!isDuplicate(error)) throw error
        const found = await findOthers(parts, { fresh: inputs.flatMap(({ fresh }) => fresh) })
        if (found === undefined) throw error
        return found
      }
    },
    async launchJob({ transaction, job, rider }) {
      try {
        await parts.commits.add({
          call: 'launch_job',
          input: {
            fence: fenceOf(parts, transaction),
            transaction: toJson(transactions, transaction),
            job: toJson(jobs, job),
            rider: rider === undefined ? null : productRows.rider(rider),
          },
          key: laneKey(transaction),
          events: rider && {
            types: productRows.events.types,
            of: (ridden) => productRows.events.of(rider, ridden),
          },
        })
        return undefined
      } catch (error) {
        if (error instanceof RefusedError) return error.reason
        throw error
      }
    },
    async storeExternal(input) {
      const { id } = input.row
      try {
        await parts.commits.add({
          call: 'store_external',
          input: entryOf(input),
          key: id,
          events: {
            types: ['payment.confirmed'],
            of: (stored) =>
              confirmedEvents(stored === null ? paymentOf(input.row) : toPayment(stored)),
          },
        })
        return 'stored'
      } catch (error) {
        const refused = refusalOf(error)
        if (refused) return { refused: refused.reason }
        if (!isDuplicate(error)) throw error
        const found = await findOthers(parts, { fresh: [input] })
        return found?.kind === 'refused' ? { refused: found.reason } : 'known'
      }
    },
    async record(inclusion, members, options) {
      // After a loss the chain restores this, except that a delivery was started.
      const isSoon = !members.some((each) => each.startsDelivery)
      const { sum, confirmed } = await repeatDuplicate((isFirst) => {
        const isCostly = options?.isCostly ?? false
        const change = recordOf(parts, inclusion, members, { isCostly, isFirst })
        return isSoon ? parts.commits.addSoon(change) : parts.commits.add(change)
      })
      const { network, product } = inclusion.included
      parts.gas.note({ network, product, day: dayOf(inclusion.at), sum })
      return confirmed
    },
    async giveUp({ hashes, payments, job, at }) {
      await parts.commits.add({
        call: 'give_up',
        input: { fence: await fenceOfFirst(parts, hashes), hashes, payments, job: job ?? null, at },
        key: payments[0] ?? job ?? '',
      })
    },
    async replace({ transaction, hashes, payments, job }) {
      await commits.add({
        call: 'replace',
        input: {
          fence: fenceOf(parts, transaction),
          transaction: toJson(transactions, transaction),
          hashes,
          payments,
          job: job ?? null,
        },
        key: laneKey(transaction),
      })
    },
    async confirm(id, { transaction, logIndex, blockNumber }, at) {
      await commits.add({
        call: 'confirm',
        input: {
          id,
          transaction: transaction.toLowerCase(),
          log_index: logIndex,
          block_number: Number(blockNumber),
          at,
        },
        key: id,
        events: {
          types: ['payment.confirmed'],
          of: (row) => (row === null ? [] : [Event.paymentConfirmed(toPayment(row), at)]),
        },
      })
    },
    async expire(id, isUsed) {
      await commits.add({ call: 'expire', input: { id, used: isUsed }, key: id })
    },
    async revert(id, hashes) {
      await commits.add({ call: 'revert', input: { id, hashes }, key: id })
    },
    reopen: async (network, hash) =>
      commits.add({
        call: 'reopen',
        input: { fence: await fenceOfTransaction(parts, network, hash), network, hash },
        key: `lane:${network}:${hash}`,
        read: (value) => {
          const { payments, job } = value as { payments: string[]; job: string | null }
          return { payments, job: job ?? undefined }
        },
      }),
    resendJob: async (id) =>
      commits.add({
        call: 'resend_job',
        input: { fence: await fenceOfJob(parts, id), id },
        key: id,
        read: (rows) => (rows as readonly Json[]).map(decodeTransaction),
      }),
  }
}

async function store(parts: SettlingParts, launches: readonly Launch[]): Promise<Payment[]> {
  const [first] = launches
  if (first === undefined) throw new Error('nothing to write')
  const isOne = launches.length === 1
  const settled = await parts.commits.add({
    call: isOne ? 'launch' : 'launch_all',
    input: isOne
      ? inputOf(parts, first)
      : { launches: launches.map((each) => inputOf(parts, each)) },
    key: laneKey(first.transaction),
    ...locksOf(launches.flatMap(({ fresh }) => fresh)),
    read: (value) => {
      const rows = (value as { settled: readonly Json[] }).settled.map(toPayment)
      return new Map(rows.map((payment) => [payment.id, payment]))
    },
  })
  return launches.flatMap(({ transaction: { hash: transaction }, fresh, again }) => [
    ...again.map((payment): Payment => ({ ...payment, state: 'broadcast', transaction })),
    ...fresh.map(({ row }) => settled.get(row.id) ?? paymentOf(row)),
  ])
}

/** The input of `launch`. */
function inputOf(parts: SettlingParts, { transaction, fresh, again }: Launch): Json {
  const plain = fresh.filter(({ rows }) => rows === undefined).toSorted(byMoney)
  const limited = fresh.filter(({ fundsAtomic }) => fundsAtomic !== undefined)
  return {
    fence: fenceOf(parts, transaction),
    transaction: toJson(transactions, transaction),
    fresh: arrayText(plain.map(({ row }) => rowText(payments, row))),
    with_rows: fresh
      .filter(({ rows }) => rows)
      .toSorted(byMoney)
      .map((each) => entryOf(each)),
    again: arrayText(again.map(({ id }) => id).toSorted()),
    members: arrayText([...again.map(({ id }) => id), ...fresh.map(({ row }) => row.id)]),
    limits: limited.map(({ row: { id, idempotencyKey: key }, fundsAtomic }) => ({
      ...{ id, funds: String(fundsAtomic) },
      ...(key !== null && { key }),
    })),
  }
}

/**
 * An order that is the same on every gateway, so that launches with common money wait for each other
 * without a deadlock.
 */
function byMoney({ row: one }: NewPayment, { row: other }: NewPayment): number {
  const [left, right] = [moneyOf(one), moneyOf(other)]
  if (left === right) return 0
  return left < right ? -1 : 1
}

function moneyOf({ network, asset, payer, nonce }: PaymentRow): string {
  return `${network} ${asset} ${payer} ${nonce}`.toLowerCase()
}

/** Locks of the functions. They are taken before any row, so all commits take them in one order. */
function locksOf(fresh: readonly NewPayment[]): { locks?: readonly string[] } {
  const locks = fresh.flatMap(({ row, rows, fundsAtomic }) => [
    ...(fundsAtomic === undefined ? [] : [payerLock(row.payer)]),
    // The lock of `insert_order`.
    ...(rows && 'order' in rows ? [row.payer.toLowerCase()] : []),
  ])
  return locks.length > 0 ? { locks } : {}
}

/** The input of `insert_with_rows`. */
function entryOf({ row, rows }: NewPayment): Json {
  const entry = { row: toJson(payments, row) }
  if (rows === undefined) return entry
  if ('settles' in rows) return { ...entry, authorization: true }
  return 'order' in rows
    ? { ...entry, order: productRows.order(rows) }
    : { ...entry, entitlement: toJson(entitlements, entitlementRow(rows.entitles, row)) }
}

/** What refused payments or their rows, and the ids of the payments. */
function refusalOf(error: unknown): { ids: readonly string[]; reason: RowsRefusal } | undefined {
  if (!(error instanceof RefusedError) && !isBarred(error)) return undefined
  const reason = error instanceof RefusedError ? error.reason : 'money-authorized'
  return { ids: error.detail?.split(' ') ?? [], reason }
}

type Asked = Pick<
  PaymentRow,
  'id' | 'network' | 'asset' | 'payer' | 'nonce' | 'merchant' | 'route' | 'idempotencyKey'
>

const asked = `jsonb_to_recordset($1) AS asked (id text, network text, asset text, payer text,
  nonce text, merchant text, route text, "idempotencyKey" text)`
const ofMoney = `SELECT asked.id, to_jsonb(payments) AS row FROM ${asked}
  JOIN payments ON payments.network = asked.network AND lower(payments.asset) = lower(asked.asset)
    AND lower(payments.payer) = lower(asked.payer) AND payments.nonce = lower(asked.nonce)`
const ofKey = `SELECT asked.id FROM ${asked}
  JOIN payments ON payments.merchant = asked.merchant AND payments.route = asked.route
    AND lower(payments.payer) = lower(asked.payer)
    AND payments.idempotency_key = asked."idempotencyKey" AND payments.state <> 'expired'
  ORDER BY asked.id LIMIT 1`

/** Why a row is a duplicate: its money is stored, or a payment has the buyer's own key. */
async function findOthers(
  { reader }: SettlingParts,
  { fresh }: Pick<Launch, 'fresh'>,
): Promise<Exclude<Launched, { kind: 'stored' }> | undefined> {
  const rows = fresh.map(({ row }) => askedOf(row))
  const values = [JSON.stringify(rows)]
  const known = await reader.all<Selected & { id: string }>(ofMoney, values)
  if (known.length > 0) {
    return { kind: 'known', payments: new Map(known.map(({ id, row }) => [id, toPayment(row)])) }
  }
  const taken = (await reader.one<{ id: string }>(ofKey, values)) ?? findTwin(rows)
  return taken && { kind: 'refused', ids: [taken.id], reason: 'key-used' }
}

function askedOf(row: PaymentRow): Asked {
  const { id, network, asset, payer, nonce, merchant, route, idempotencyKey } = row
  return { id, network, asset, payer, nonce, merchant, route, idempotencyKey }
}

/** The first payment whose key another one of the same launch has. */
function findTwin(rows: readonly Asked[]): Asked | undefined {
  const seen = new Set<string>()
  return rows.find(({ merchant, route, payer, idempotencyKey }) => {
    if (idempotencyKey === null) return false
    const scope = JSON.stringify([merchant, route, payer.toLowerCase(), idempotencyKey])
    const isTaken = seen.has(scope)
    seen.add(scope)
    return isTaken
  })
}

export function confirmedEvents(payment: Payment) {
  const { confirmedAt } = payment
  return confirmedAt === undefined ? [] : [Event.paymentConfirmed(payment, confirmedAt)]
}

type Confirmed = readonly (Payment | undefined)[]
type Options = {
  isCostly: boolean
  /** Whether no log is expected to be taken. */
  isFirst: boolean
}

/** A log may be taken, and others may record another transaction at the nonce at the same time. */
const attemptsMax = 3

function recordOf(
  parts: SettlingParts,
  inclusion: Inclusion,
  members: readonly IncludedPayment[],
  { isCostly, isFirst }: Options,
): Change<{ sum: GasSum; confirmed: Confirmed }> {
  const { included, success, blockNumber, spentWei, receipt, hashes, job, at } = inclusion
  const { hash, network, relayer, nonce, product } = included
  const assigned = assign(members)
  const confirmedOf = (value: Json) => paymentsOf(value as Recorded, inclusion, members)
  return {
    call: 'record',
    input: {
      fence: fenceOf(parts, included),
      by: parts.gateway,
      included: { hash, network, relayer, nonce, product },
      success,
      block_number: Number(blockNumber),
      spent_wei: String(spentWei),
      receipt,
      hashes: arrayText(hashes),
      job: job ?? null,
      at,
      day: dayOf(at),
      is_costly: isCostly,
      first: members[0]?.id ?? null,
      all: arrayText(members.map(({ id }) => id).toSorted()),
      is_known: isFirst && members.every(({ payment }) => payment !== undefined),
      ...(isFirst ? columnsOf(assigned) : { members: members.map(memberOf) }),
    },
    key: laneKey(included),
    read: (value) => {
      const paid = confirmedOf(value)
      return { sum: sumOf(value), confirmed: members.map(({ id }) => paid.get(id)) }
    },
    events: {
      types: [
        ...(['budget.spent', 'payment.confirmed'] as const),
        ...(job !== undefined && Refund.paymentOf(job) ? (['payment.refunded'] as const) : []),
      ],
      of: (value) => {
        const paid = confirmedOf(value)
        const { wei: afterWei } = sumOf(value)
        const beforeWei = afterWei - spentWei
        return [
          ...listOf(parts.spent({ network, product, at, beforeWei, afterWei })),
          ...members.flatMap(({ id }) => {
            const payment = paid.get(id)
            return payment ? [Event.paymentConfirmed(payment, at)] : []
          }),
          ...refundedEvents((value as Recorded).refunded, at),
        ]
      },
    },
  }
}

type Recorded = {
  /** Rows that have other values than those of a payment that is confirmed for the first time. */
  confirmed?: readonly Json[]
  /** All that are confirmed. */
  paid: readonly string[]
  wei: string
  wasted: string
  /** The refund that the job has paid. */
  refunded?: Json
}

/** The confirmed payments by id; those that are as expected, from memory. */
function paymentsOf(
  { confirmed = [], paid }: Recorded,
  { included, blockNumber, at }: Inclusion,
  members: readonly IncludedPayment[],
): ReadonlyMap<string, Payment> {
  const rows = confirmed.map(toPayment)
  const found = new Map(rows.map((payment) => [payment.id, payment]))
  if (found.size === paid.length) return found
  const indexes = new Map(assign(members).map(({ id, index }) => [id, index]))
  const known = new Map(members.map((member) => [member.id, member]))
  for (const id of paid) {
    const member = known.get(id)
    if (member?.payment === undefined || found.has(id)) continue
    const { transfer, purpose, createdAt } = member.payment
    found.set(id, {
      ...{ id, transfer, purpose, createdAt },
      ...{ nonceUsed: false, truncated: false, answered: false, upstreamStatus: undefined },
      ...{ redeemTokenHash: undefined, redeemUntil: undefined, deliveredAt: undefined },
      state: 'confirmed',
      transaction: included.hash,
      logIndex: indexes.get(id),
      blockNumber,
      confirmedAt: at,
      delivery: member.startsDelivery ? 'delivering' : 'none',
      attempts: member.startsDelivery ? 1 : 0,
    })
  }
  return found
}

function sumOf(value: Json): GasSum {
  const { wei, wasted } = value as Recorded
  return { wei: BigInt(wei), wastedWei: BigInt(wasted) }
}

type Assigned = { id: string; index: number; starts: boolean }

/** A log for each member, in their order, as the database assigns them while none is taken. */
function assign(members: readonly IncludedPayment[]): readonly Assigned[] {
  const taken = new Set<number>()
  return members.flatMap(({ id, logs, startsDelivery: starts }) => {
    const index = logs.find((each) => !taken.has(each))
    if (index === undefined) return []
    taken.add(index)
    return { id, index, starts }
  })
}

function columnsOf(assigned: readonly Assigned[]): Readonly<Record<string, Json>> {
  return {
    ids: arrayText(assigned.map(({ id }) => id)),
    indexes: arrayText(assigned.map(({ index }) => index)),
    starts: arrayText(assigned.map(({ starts }) => starts)),
  }
}

function memberOf({ id, logs, startsDelivery: starts }: IncludedPayment): Json {
  return { id, logs, starts }
}

function listOf<T>(value: T | undefined): T[] {
  return value === undefined ? [] : [value]
}

async function repeatDuplicate<T>(run: (isFirst: boolean) => Promise<T>): Promise<T> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await run(attempt === 1)
    } catch (error) {
      if (attempt === attemptsMax || !isDuplicate(error)) throw error
    }
  }
}

/** The dependencies of the commits of settlement. */
export type SettlingParts = Parts & {
  gas: Pick<Gas, 'note'>
  /** The event of a gas budget that this addition spends. */
  spent(gas: AddedGas): WebhookEvent | undefined
  fences?: Fences | undefined
}

/**
 * Rows of products inside a commit of settlement: the inputs of functions that are called there, and
 * the events of what they return.
 */
export const productRows = {
  /** The rows of `insert_order`, which sets the payment and its transaction. */
  order({ order, quota }: OrderRows): Json {
    const unpaid = { paymentId: '', settlementTx: '0x' } as const
    return { order: toJson(orders, { ...newOrderRow(order), ...unpaid }), quota: quota ?? null }
  },
  /** The rider of `ride_order`, `ride_grant`, which set the transaction, `ride_refund` or `reserve_channel`. */
  rider(rider: JobRider): Json {
    if (rider.kind === 'order') {
      const { kind, ride, confirmed, withoutEffect = [] } = rider
      return { kind, ...rideOf(ride), confirmed: confirmed ?? null, withoutEffect }
    }
    if (rider.kind === 'repay') {
      const { kind, paymentId: confirmed, attempts } = rider
      return { kind, confirmed, attempts }
    }
    if (rider.kind === 'reserve') return { kind: rider.kind, ...reservationOf(rider) }
    const { budget, isSigned, isTopUp, row } = rider.grant
    const unsent = { transactionHash: '0x' } as const
    return {
      kind: rider.kind,
      isTopUp,
      isSigned,
      row: isTopUp
        ? toJson(grantTopUps, { ...row, ...unsent })
        : toJson(grants, { ...row, ...unsent }),
      from: budget.from,
      grants: budget.grants,
      wei: String(budget.wei),
    }
  },
  events: {
    types: [...typesOf('swap'), 'budget.spent'] as readonly EventType[],
    /** `ridden`: what the function of the rider returned. */
    of(rider: JobRider, ridden: Json): readonly WebhookEvent[] {
      if (rider.kind === 'order') return eventsOf(rider.ride.kind, ridden)
      if (rider.kind !== 'grant') return []
      const event = Event.grantsSpent(rider.grant, tallyOf(ridden))
      return event === undefined ? [] : [event]
    },
  },
}

function tallyOf(json: Json): Tally {
  const { grants, wei } = json as { grants: number; wei: string }
  return { grants, wei: BigInt(wei) }
}
