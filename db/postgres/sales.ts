import { postgres as dialect } from '../dialect'
import {
  createSalesSelects,
  figuresOf,
  idAt,
  type SalesLedger,
  type SpanRows,
  salesSql,
} from '../sales'
import type { Parts } from './parts'
import { selectsOf } from './reader'
import { positional } from './rows'

/** Twin: db/sqlite/sales.ts. */
export function createSales({ commits, reader }: Pick<Parts, 'commits' | 'reader'>): SalesLedger {
  const spans = [spanSql(false), spanSql(true)] as const
  return {
    ...createSalesSelects(selectsOf(reader)),
    async ofSpan({ from, to }, { byPayer, redeemable }) {
      const ids = { from: idAt(from), to: idAt(to) }
      const values = { ...ids, begin: from, end: to, ...redeemable }
      const row = await reader.one<{ sums: string }>(...positional(spans[byPayer ? 1 : 0], values))
      if (row === undefined) throw new Error('the figures have no row')
      return figuresOf(JSON.parse(row.sums) as SpanRows)
    },
    addRequests: (day, counts, keptFrom) =>
      commits.addSoon({
        call: 'add_requests',
        input: { day, counts: counts.map((each) => ({ ...each })), keptFrom },
        key: 'requests',
      }),
    describe: (input) =>
      commits.addSoon({
        call: 'describe_books',
        input: { ...input, assets: input.assets.map((each) => ({ ...each })) },
        key: 'accounts',
      }),
  }
}

/** All figures of a span as one statement, which sees one state of the database. */
export function spanSql(byPayer: boolean): string {
  const { payments, orders, orderGas, charges, otherGas } = salesSql(dialect)
  const parts: Readonly<Record<keyof SpanRows, string>> = {
    payments: payments(byPayer),
    orders: orders(byPayer),
    orderGas: orderGas(byPayer),
    charges: charges(byPayer),
    otherGas,
  }
  const members = Object.entries(parts).map(
    ([name, each]) => `'${name}', (SELECT coalesce(json_agg(r), '[]') FROM (${each}) AS r)`,
  )
  return `SELECT CAST(json_build_object(${members.join(',\n')}) AS TEXT) AS sums`
}
