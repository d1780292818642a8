import { type Static, Type } from '@sinclair/typebox'
import type { Address, Hex } from 'viem'
import {
  type AdminLedger,
  type Outcome,
  outcomes,
  type PaymentFilter,
  type PaymentLine,
} from '../../../db/admin'
import * as Schema from '../../protocol/Schema'
import type { Sources } from './sources'

/** The query of `GET /admin/payments`. */
export const searchQuery = Type.Object({
  q: Type.Optional(
    Type.String({
      maxLength: 80,
      description: 'id of a payment or an order, hash of a transaction, or address of a payer',
      fault: 'is longer than an id, a hash or an address',
    }),
  ),
  merchant: Type.Optional(Type.String({ maxLength: 100 })),
  route: Type.Optional(Type.String({ maxLength: 300 })),
  state: Type.Optional(
    Type.Union(
      outcomes.map((each) => Type.Literal(each)),
      { fault: 'is not a state' },
    ),
  ),
  before: Type.Optional(
    Type.String({ pattern: '^pay_[0-9a-f]{12,32}$', fault: 'is not an id of a payment' }),
  ),
})

type Fields = Static<typeof searchQuery>
export type Search = { [Name in keyof Fields]?: Fields[Name] | undefined }

export type Found = {
  lines: readonly PaymentLine[]
  /** Where older ones begin; undefined at the end. */
  next: string | undefined
  /** The search stopped here, before it had a whole page. */
  searchedTo?: string | undefined
  /** Why the search cannot be understood. */
  fault?: string | undefined
}

/** Rows of one read, which takes some milliseconds, and reads of one page. */
const windowRows = 2_000
const windowsMax = 25
/** A payer with more payments is searched like all payments. */
const payerMax = 1_000

/** The search of a query. `fault` names a field that cannot be read. Empty fields are ignored. */
export function parse(params: URLSearchParams): { search: Search; fault: string | undefined } {
  const filled = new URLSearchParams([...params].filter(([, value]) => value.trim() !== ''))
  const { values, wrong } = Schema.readQuery(searchQuery, filled)
  const [first] = wrong
  const fault = first && `${first.name === 'q' ? 'The search' : first.name} ${first.reason}.`
  return { search: values as Search, fault }
}

/** The payments that fit, the newest first. */
export async function find(
  { ledger }: Pick<Sources, 'ledger'>,
  search: Search,
  limit: number,
): Promise<Found> {
  const { merchant, route, state, before } = search
  const filter: PaymentFilter = { merchant, route, outcome: state as Outcome | undefined }
  const text = search.q?.trim() ?? ''
  if (text !== '') {
    if (/^0x[0-9a-f]{40}$/i.test(text))
      return ofPayer(ledger, { ...filter, payer: text as Address }, before, limit)
    const ids = await idsOf(ledger, text)
    if (ids === undefined) return { lines: [], next: undefined, fault: hint }
    const lines = await Promise.all(ids.map((id) => lineOf(ledger, id)))
    return { lines: lines.filter((line) => line !== undefined), next: undefined }
  }
  if (state === 'pending' && merchant === undefined && route === undefined)
    return pageOf(await ledger.pendingPayments({ before, limit: limit + 1 }), limit)
  return walk(ledger, filter, before, limit)
}

const hint =
  'Write an id such as pay_... or ord_..., a transaction (0x and 64 digits) or a payer (0x and 40 digits).'

/** Ids of the payments that a text names; undefined when it is none of the known forms. */
async function idsOf(ledger: AdminLedger, text: string): Promise<readonly string[] | undefined> {
  if (/^0x[0-9a-f]{64}$/i.test(text)) return ledger.inTransaction(text as Hex)
  if (/^pay_[0-9a-f]{1,40}$/.test(text)) return [text]
  if (!/^ord_[0-9a-f]{1,40}$/.test(text)) return undefined
  const payment = await ledger.paymentOfOrder(text)
  return payment === undefined ? [] : [payment]
}

async function lineOf(ledger: AdminLedger, id: string): Promise<PaymentLine | undefined> {
  const { lines } = await ledger.payments({}, { before: `${id}~`, limit: 1, rows: 1 })
  return lines[0]?.id === id ? lines[0] : undefined
}

async function ofPayer(
  ledger: AdminLedger,
  filter: PaymentFilter & { payer: Address },
  before: string | undefined,
  limit: number,
): Promise<Found> {
  const all = await ledger.ofPayer(filter.payer, payerMax)
  if (all === undefined) return walk(ledger, filter, before, limit)
  const fitting = all.filter(
    ({ id, merchant, route, outcome }) =>
      (before === undefined || id < before) &&
      (filter.merchant === undefined || merchant === filter.merchant) &&
      (filter.route === undefined || route === filter.route) &&
      (filter.outcome === undefined || outcome === filter.outcome),
  )
  return pageOf(fitting, limit)
}

function pageOf(lines: readonly PaymentLine[], limit: number): Found {
  const shown = lines.slice(0, limit)
  return { lines: shown, next: lines.length > limit ? shown.at(-1)?.id : undefined }
}

/** Reads from the newest on, part by part, and lets other work run between the parts. */
async function walk(
  ledger: AdminLedger,
  filter: PaymentFilter,
  before: string | undefined,
  limit: number,
): Promise<Found> {
  const lines: PaymentLine[] = []
  let next = before
  for (let read = 0; read < windowsMax; read++) {
    const page = { before: next, limit: limit - lines.length, rows: windowRows }
    const found = await ledger.payments(filter, page)
    lines.push(...found.lines)
    next = found.next
    if (next === undefined || lines.length >= limit) return { lines, next }
    await new Promise((resolve) => setImmediate(resolve))
  }
  return { lines, next, searchedTo: next }
}

/** The query of a search, without empty fields. */
export function toQuery(search: Search): string {
  const params = new URLSearchParams()
  for (const name of ['q', 'merchant', 'route', 'state', 'before'] as const) {
    const entered = search[name] ?? ''
    if (entered !== '') params.set(name, entered)
  }
  const text = params.toString()
  return text === '' ? '' : `?${text}`
}
