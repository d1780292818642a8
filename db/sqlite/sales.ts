import type { Database, Statement } from 'bun:sqlite'
import { sqlite as dialect } from '../dialect'
import type { AssetRow, SalesOfSpan, SalesQuery, SalesReads, Span } from '../SalesLedger'
import { figuresOf, firstOf, idAt } from '../sales-figures'
import { type FirstRow, salesSql } from '../sales-sql'

/** The figures of sales, from any connection. */
export function createSalesReads(sqlite: Database): SalesReads {
  const sql = salesSql(dialect)
  const prepared = new Map<string, Statement>()
  /** Prepared on first use, because a service may never need them. */
  const all = <Row>(text: string, values: Record<string, string | number> = {}): Row[] => {
    const statement = prepared.get(text) ?? sqlite.prepare(text)
    prepared.set(text, statement)
    return statement.all(values) as Row[]
  }
  const figures = (span: Span, { byPayer, redeemable }: SalesQuery): SalesOfSpan => {
    const ids = { from: idAt(span.from), to: idAt(span.to) }
    const times = { begin: span.from, end: span.to }
    return figuresOf({
      payments: all(sql.payments(byPayer), { ...ids, ...redeemable }),
      orders: all(sql.orders(byPayer), ids),
      orderGas: all(sql.orderGas(byPayer), ids),
      charges: all(sql.charges(byPayer), ids),
      otherGas: all(sql.otherGas, times),
      requests: all(sql.requests, times),
    })
  }
  // One transaction, so that all figures are of one state.
  const inOne = sqlite.transaction(figures)
  return {
    ofSpan: async (span, query) => inOne(span, query),
    firstAt: async () => firstOf(all<FirstRow>(sql.first)[0]),
    assets: async () => all<AssetRow>(sql.assets),
  }
}
