import type { Address } from 'viem'
import type { Order } from '../../db/Order'
import type { OrderLedger, OrderMove } from '../../db/OrderLedger'
import type * as Logs from '../chain/logs'
import type { Stock, StockToken } from '../config/Config'
import type { WriteEvent } from '../log'
import type { Asset } from '../protocol/Asset'
import type { Settlement } from '../settlement/settlement'
import type { Market } from './market'
import type { Verdict } from './Verdict'

/** The parts of settlement that the desk uses. */
export type DeskSettlement = Pick<
  Settlement,
  | 'desk'
  | 'hasDesk'
  | 'deskEpoch'
  | 'isShared'
  | 'run'
  | 'job'
  | 'onJob'
  | 'onPayment'
  | 'findById'
  | 'read'
  | 'rpc'
  | 'observationOf'
>

/** The market in which the desk buys. */
export type DeskMarket = {
  /**
   * The shares that the pinned pool gives now (undefined when it takes no such amount), and the
   * result of the checks before money moves. Both are of one block. Throws RpcFault when no node
   * answers.
   */
  quote(token: StockToken, usdgAtomic: bigint, people: readonly Address[]): Promise<DeskQuote>
  /** The calls of an account that holds `usdgAtomic`; see `Market`. */
  swap: Market['swap']
}

export type DeskQuote = { verdict: Verdict; sharesAtomic: bigint | undefined }

/** The market for the desk: always the newest block. */
export function viewOf(market: Pick<Market, 'snapshotOf' | 'judge' | 'swap'>): DeskMarket {
  return {
    async quote(token, usdgAtomic, people) {
      const snapshot = await market.snapshotOf(token, usdgAtomic, { people, fresh: true })
      return { verdict: market.judge(snapshot), sharesAtomic: snapshot.sharesAtomic }
    },
    swap: market.swap,
  }
}

/** The parts that the steps of an order share. */
export type Context = {
  orders: OrderLedger
  settlement: DeskSettlement
  market: DeskMarket
  stock: Stock
  asset: Asset
  chainId: number
  /** Depth of a reorganisation, blocks. */
  reorgDepth: number
  now: () => number
  log: WriteEvent
  /** Block at which a job was first observed to have ended without effect, by its id. */
  endedAt: Map<string, bigint>
  /** Blocks that a node searches at once for logs. */
  logSpans: Logs.Spans
  /**
   * Orders with a confirmed payment that too few nodes show: the start (unix ms), the time of the
   * next log event, and the number of contradictions in a row.
   */
  unseen: Map<string, { since: number; logAt: number; disputes: number }>
  /** Makes one move of an order, and notifies. False: it was in another state. */
  move(move: OrderMove): Promise<boolean>
  /** Logs an order that was moved, and resumes the requests that wait for it. */
  notify(order: Order): void
}

/** The listed token of an order, with the pool and fee that the order has pinned. */
export function tokenOf({ stock }: Context, order: Order): StockToken | undefined {
  return stock.tokens.find(
    ({ address, pool, fee }) =>
      address === order.token && pool === order.pool && fee === order.poolFee,
  )
}
