import type { Database, Statement } from 'bun:sqlite'
import type {
  AssetRow,
  RequestCounts,
  SalesFigures,
  SalesKey,
  SalesOfSpan,
  SalesQuery,
  SalesReads,
  SalesRow,
  Span,
} from '../SalesLedger'
import * as Sql from './sales-sql'

/** The figures of sales, from any connection. */
export function createSalesReads(sqlite: Database): SalesReads {
  const prepared = new Map<string, Statement>()
  /** Prepared on first use, because a service may never need them. */
  const all = <Row>(sql: string, values: Record<string, string | number> = {}): Row[] => {
    const statement = prepared.get(sql) ?? sqlite.prepare(sql)
    prepared.set(sql, statement)
    return statement.all(values) as Row[]
  }
  const figures = (span: Span, { byPayer, redeemable }: SalesQuery): SalesOfSpan => {
    const ids = { from: idAt(span.from), to: idAt(span.to) }
    const { at, rows } = collect()
    const payments = all<Sql.PaymentsRow>(Sql.paymentsSql(byPayer), { ...ids, ...redeemable })
    for (const row of payments) addPayments(at(row), row)
    for (const row of all<Sql.OrdersRow>(Sql.ordersSql(byPayer), ids)) addOrders(at(row), row)
    for (const row of all<Sql.OrderGasRow>(Sql.orderGasSql(byPayer), ids)) addGas(at(row), row)
    for (const row of all<Sql.ChargesRow>(Sql.chargesSql(byPayer), ids)) addCharges(at(row), row)
    const otherGas = all<Sql.OtherGasRow>(Sql.otherGasSql, { ...span })
    return {
      rows: rows(),
      otherGas: otherGas.map((row) => {
        const { network, kind, unknownGas } = row
        return { network, kind, unknownGas, gasWei: Sql.gasOf(row) }
      }),
      requests: all<RequestCounts>(Sql.requestsSql, { ...span }),
    }
  }
  // One transaction, so that all figures are of one state.
  const inOne = sqlite.transaction(figures)
  return {
    ofSpan: async (span, query) => inOne(span, query),
    async firstAt() {
      const [first] = all<Sql.FirstRow>(Sql.firstSql)
      const times = [
        timeOf(first?.payment ?? null),
        timeOf(first?.authorization ?? null),
        first?.hour ?? null,
        first?.transactionAt ?? null,
      ].filter((time) => time !== null)
      return times.length === 0 ? undefined : Math.min(...times)
    },
    assets: async () => all<AssetRow>(Sql.assetsSql),
  }
}

function idAt(at: number): string {
  return `pay_${at.toString(16).padStart(12, '0')}`
}

function timeOf(id: string | null): number | null {
  const time = id === null ? Number.NaN : Number.parseInt(id.slice(4, 16), 16)
  return Number.isNaN(time) ? null : time
}

const nothing: SalesFigures = {
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
        ...nothing,
      }
      byKey.set(text, made)
      return made
    },
    rows: () => [...byKey.values()],
  }
}
