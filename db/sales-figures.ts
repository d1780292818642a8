import type { SalesFigures, SalesKey, SalesOfSpan, SalesRow } from './SalesLedger'
import * as Sql from './sales-sql'

/** The figures of a span, from the sums of the database. */
export function figuresOf(sums: Sql.SpanRows): SalesOfSpan {
  const { at, rows } = collect()
  for (const row of sums.payments) addPayments(at(row), row)
  for (const row of sums.orders) addOrders(at(row), row)
  for (const row of sums.orderGas) addGas(at(row), row)
  for (const row of sums.charges) addCharges(at(row), row)
  return {
    rows: rows(),
    otherGas: sums.otherGas.map((row) => {
      const { network, kind, unknownGas } = row
      return { network, kind, unknownGas, gasWei: Sql.gasOf(row) }
    }),
    requests: sums.requests,
  }
}

/** Unix ms of the first row that has figures. */
export function firstOf(first: Sql.FirstRow | undefined): number | undefined {
  const times = [
    timeOf(first?.payment ?? null),
    timeOf(first?.authorization ?? null),
    first?.hour ?? null,
    first?.transactionAt ?? null,
  ].filter((time) => time !== null)
  return times.length === 0 ? undefined : Math.min(...times)
}

/** The smallest id of a payment whose request came at this time or later. */
export function idAt(at: number): string {
  return `pay_${at.toString(16).padStart(12, '0')}`
}

function timeOf(id: string | null): number | null {
  const time = id === null ? Number.NaN : Number.parseInt(id.slice(4, 16), 16)
  return Number.isNaN(time) ? null : time
}

/** The figures of no payment. */
export const noFigures: SalesFigures = {
  payments: 0,
  paidAtomic: 0n,
  deliveredAtomic: 0n,
  undelivered: 0,
  undeliveredAtomic: 0n,
  redeemable: 0,
  redeemableAtomic: 0n,
  openOrders: 0,
  refundedAtomic: 0n,
  swappedAtomic: 0n,
  pending: 0,
  pendingAtomic: 0n,
  lost: 0,
  lostAtomic: 0n,
  gasWei: 0n,
  unknownGas: 0,
}

function addPayments(to: SalesRow, row: Sql.PaymentsRow): void {
  const { outcome, payments } = row
  const amount = BigInt(row.amount)
  addGas(to, row)
  if (outcome === 'pending') {
    to.pending += payments
    to.pendingAtomic += amount
  }
  if (outcome === 'pending' || outcome === 'unpaid' || outcome === 'ordered') return
  to.payments += payments
  to.paidAtomic += amount
  if (outcome === 'delivered') {
    to.deliveredAtomic += amount
    return
  }
  to.undelivered += payments
  to.undeliveredAtomic += amount
  if (outcome !== 'redeemable') return
  to.redeemable += payments
  to.redeemableAtomic += amount
}

function addOrders(to: SalesRow, { outcome, payments, ...row }: Sql.OrdersRow): void {
  const [amount, returned] = [BigInt(row.amount), BigInt(row.returned)]
  to.payments += payments
  to.paidAtomic += amount
  if (outcome === 'delivered') {
    to.deliveredAtomic += amount - returned
    to.refundedAtomic += returned
    to.swappedAtomic += BigInt(row.usdg) - returned
  } else if (outcome === 'refunded') {
    to.refundedAtomic += amount
  } else {
    to.undelivered += payments
    to.undeliveredAtomic += amount
    to.openOrders += payments
  }
}

function addCharges(to: SalesRow, { state, charges, amount }: Sql.ChargesRow): void {
  if (state === 'metered') {
    to.pending += charges
    to.pendingAtomic += BigInt(amount)
  } else {
    to.lost += charges
    to.lostAtomic += BigInt(amount)
  }
}

function addGas(to: SalesRow, row: Sql.GasSum): void {
  to.gasWei += Sql.gasOf(row)
  to.unknownGas += row.unknownGas
}

/** Rows by their keys. */
function collect() {
  const byKey = new Map<string, SalesRow>()
  return {
    at({ class: of, network, asset, merchant, route, payer }: SalesKey): SalesRow {
      const text = [of, network, asset, merchant, route, payer].join(' ')
      const known = byKey.get(text)
      if (known !== undefined) return known
      const made = {
        ...{ class: of, network, asset, merchant, route, payer: payer ?? undefined },
        ...noFigures,
      }
      byKey.set(text, made)
      return made
    },
    rows: () => [...byKey.values()],
  }
}
