import type { Address, Hex } from 'viem'
import type { Db } from '../../db/open'
import type { Stock, StockToken } from '../config/Config'
import type { Asset } from '../protocol/Asset'
import type * as Network from '../protocol/Network'
import type { Errand, ErrandEnd } from '../settlement/Errand'
import type { Payment } from '../settlement/Payment'
import type { Allowance } from './allowance'
import type { Order } from './Order'
import type { Store } from './store'

/** What the desk needs of the settlement. */
export type DeskSettlement = {
  desk: Address
  run(
    errand: Errand,
    options: { waitMs: number; write?: (transaction: Hex) => void },
  ): Promise<ErrandEnd>
  errand(id: string):
    | {
        state: 'broadcast' | 'confirmed' | 'failed' | 'replaced'
        transaction: Hex
        blockNumber: bigint | undefined
      }
    | undefined
  onErrand(listener: (id: string) => void): void
  onPayment(listener: (id: string) => void): void
  findById(id: string): Payment | undefined
  read(
    network: Network.Id,
    calls: readonly { to: Address; data: Hex }[],
    options?: { timeoutMs?: number },
  ): Promise<{ blockNumber: bigint; results: readonly (Hex | undefined)[] }>
  rpc(network: Network.Id, method: string, params: readonly unknown[]): Promise<unknown>
}

/** What the pinned pool gives for an amount, at one block. */
export type Quote = { sharesAtomic: bigint; blockNumber: bigint; quotedAt: number }

/** What must hold before money moves; `status` and `code` are those of a problem. */
export type Verdict = { ok: true } | { ok: false; code: string; detail: string; status: number }

/** The market that the desk buys in. All reads throw RpcFault when no node answers. */
export type DeskMarket = {
  /** Undefined: the pool does not quote, which is an answer of the chain. */
  quote(token: StockToken, usdgAtomic: bigint): Promise<Quote | undefined>
  /** Pool, token and feed, and that none of these people is blocked. */
  check(token: StockToken, people: readonly Address[]): Promise<Verdict>
  /** The router's call that swaps exactly `usdgAtomic` for at least `floorAtomic`, before the deadline. */
  swap(terms: {
    token: StockToken
    recipient: Address
    usdgAtomic: bigint
    floorAtomic: bigint
    /** Unix seconds. */
    deadline: bigint
  }): { to: Address; data: Hex }
}

export type Log = (event: string, fields?: Readonly<Record<string, unknown>>) => void

/** Everything that the steps of an order share. */
export type Context = {
  db: Db
  store: Store
  settlement: DeskSettlement
  market: DeskMarket
  allowance: Allowance
  stock: Stock
  asset: Asset
  /** Blocks that a reorganisation may take away. */
  reorgDepth: number
  now: () => number
  log: Log
  /** Block at which an errand was first seen to have ended without effect, by its id. */
  endedAt: Map<string, bigint>
  /** Writes one change of an order and tells whoever waits for it. False: it was in another state. */
  change(make: () => Order | undefined): boolean
}

/** The listed token of an order, with what was pinned when it was taken. */
export function tokenOf({ stock }: Context, order: Order): StockToken | undefined {
  return stock.tokens.find(
    ({ address, pool, fee }) =>
      address === order.token && pool === order.pool && fee === order.poolFee,
  )
}
