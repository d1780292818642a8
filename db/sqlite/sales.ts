import type { Database, Statement } from 'bun:sqlite'
import { sqlite as dialect } from '../dialect'
import {
  createSalesSelects,
  figuresOf,
  idAt,
  type SalesLedger,
  type SalesOfSpan,
  type SalesQuery,
  type SalesReads,
  type Span,
  salesSql,
} from '../sales'
import { assets, ownAccounts, requests } from '../schema'
import type { Db } from './open'
import { insertInto, selectsOf, statement } from './statement'
import { write } from './write'

/** The figures of sales, from any connection. */
export function createSalesReads(sqlite: Database): SalesReads {
  const sql = salesSql(dialect)
  const prepared = new Map<string, Statement>()
  /** Prepared on first use, because a service may never need them. */
  const all = <Row>(text: string, values: Record<string, string | number>): Row[] => {
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
    })
  }
  // One transaction, so that all figures are of one state.
  const inOne = sqlite.transaction(figures)
  return {
    ...createSalesSelects(selectsOf({ sqlite })),
    ofSpan: async (span, query) => inOne(span, query),
  }
}

export function createSales(db: Db): SalesLedger {
  const add = insertInto(
    db,
    requests,
    `ON CONFLICT (day, merchant, route, client, step, detail) DO UPDATE
     SET times = times + excluded.times`,
  )
  const remove = statement(db, 'DELETE FROM requests WHERE day < $keptFrom')
  const addAccount = insertInto(db, ownAccounts, 'ON CONFLICT DO NOTHING')
  const addAsset = insertInto(
    db,
    assets,
    `ON CONFLICT (network, address) DO UPDATE
     SET network_name = excluded.network_name, symbol = excluded.symbol,
       decimals = excluded.decimals, coin_usd = excluded.coin_usd,
       updated_at = excluded.updated_at`,
  )
  return {
    ...createSalesReads(db.sqlite),
    async addRequests(day, counts, keptFrom) {
      db.withoutSync(() =>
        write(db, () => {
          for (const count of counts) add({ day, ...count })
          remove().run({ keptFrom })
        }),
      )
    },
    async describe({ accounts, assets: rows, now }) {
      db.withoutSync(() =>
        write(db, () => {
          for (const address of accounts) addAccount({ address, addedAt: now })
          for (const row of rows) addAsset({ ...row, updatedAt: now })
        }),
      )
    },
  }
}
