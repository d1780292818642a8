import type { Launched, NewPayment, RowsRefusal, SettlingCommits } from '../Ledger'
import type { Payment } from '../Payment'
import { paymentOf, toPayment } from '../rows'
import { jobs, type PaymentRow, payments, transactions } from '../schema'
import * as Event from '../WebhookEvent'
import { isBarred, isDuplicate, RefusedError } from './errors'
import { fenceOf, laneKey } from './fences'
import { payerLock } from './parts'
import type { Selected } from './payments'
import { arrayText, type Json, rowText, toJson } from './rows'
import type { SettlingParts } from './settling-parts'

type Launches = Pick<SettlingCommits, 'launch' | 'launchJob' | 'storeExternal'>
type Launch = Parameters<SettlingCommits['launch']>[0]

/** Writes before bytes are sent, or for a payment with an external settlement. */
export function createLaunches(parts: SettlingParts): Launches {
  return {
    async launch(input) {
      try {
        return { kind: 'stored', payments: await store(parts, input) }
      } catch (error) {
        const refused = refusalOf(error)
        if (refused) return { kind: 'refused', ...refused }
        if (!isDuplicate(error)) throw error
        const found = await findOthers(parts, input)
        if (found === undefined) throw error
        return found
      }
    },
    launchJob: (input) => launchJob(parts, input),
    async storeExternal(input) {
      const { id } = input.row
      try {
        await parts.commits.add({
          call: 'store_external',
          input: entryOf(parts, input),
          key: id,
          read: () => undefined,
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
  }
}

async function store(
  parts: SettlingParts,
  { transaction, fresh, again }: Launch,
): Promise<Payment[]> {
  const { hash } = transaction
  const plain = fresh.filter(({ rows }) => rows === undefined).toSorted(byMoney)
  const limited = fresh.filter(({ fundsAtomic }) => fundsAtomic !== undefined)
  const settled = await parts.commits.add({
    call: 'launch',
    input: {
      fence: fenceOf(parts, transaction),
      transaction: toJson(transactions, transaction),
      fresh: arrayText(plain.map(({ row }) => rowText(payments, row))),
      with_rows: fresh.filter(({ rows }) => rows).map((each) => entryOf(parts, each)),
      again: arrayText(again.map(({ id }) => id).toSorted()),
      members: arrayText([...again.map(({ id }) => id), ...fresh.map(({ row }) => row.id)]),
      limits: limited.map(({ row: { id, idempotencyKey: key }, fundsAtomic }) => ({
        ...{ id, funds: String(fundsAtomic) },
        ...(key !== null && { key }),
      })),
    },
    key: laneKey(transaction),
    ...locksOf(fresh),
    read: (value) => {
      const rows = (value as { settled: readonly Json[] }).settled.map(toPayment)
      return new Map(rows.map((payment) => [payment.id, payment]))
    },
  })
  return [
    ...again.map((payment): Payment => ({ ...payment, state: 'broadcast', transaction: hash })),
    ...fresh.map(({ row }) => settled.get(row.id) ?? paymentOf(row)),
  ]
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
function entryOf({ products }: SettlingParts, { row, rows }: NewPayment): Json {
  const entry = { row: toJson(payments, row) }
  if (rows === undefined) return entry
  return 'settles' in rows
    ? { ...entry, authorization: true }
    : { ...entry, order: products.order(rows) }
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

async function launchJob(
  parts: SettlingParts,
  { transaction, job, rider }: Parameters<SettlingCommits['launchJob']>[0],
): ReturnType<SettlingCommits['launchJob']> {
  const { products } = parts
  try {
    await parts.commits.add({
      call: 'launch_job',
      input: {
        fence: fenceOf(parts, transaction),
        transaction: toJson(transactions, transaction),
        job: toJson(jobs, job),
        rider: rider === undefined ? null : products.rider(rider),
      },
      key: laneKey(transaction),
      read: () => undefined,
      events: rider && {
        types: products.events.types,
        of: (ridden) => products.events.of(rider, ridden),
      },
    })
    return undefined
  } catch (error) {
    if (error instanceof RefusedError) return error.reason
    throw error
  }
}

function confirmedEvents(payment: Payment) {
  const { confirmedAt } = payment
  return confirmedAt === undefined ? [] : [Event.paymentConfirmed(payment, confirmedAt)]
}
