import type { Address } from 'viem'
import type { Call } from '../chain/multicall'
import * as Uniswap from '../chain/uniswap'
import type { NetworkConfig, Stock, StockToken } from '../config/Config'
import type { History } from './history'
import { createReader, type Read } from './reader'
import * as Snapshot from './Snapshot'
import * as Verdict from './Verdict'

/** Reads of the listed stocks; no function moves money. */
export type Market = {
  stock: Stock
  /** By symbol in any case, or by contract address. */
  find(symbolOrAddress: string): StockToken | undefined
  /**
   * All listed tokens with a quote of the smallest order, in the order of the file. At most a
   * second old. While the network gives no answer: the last ones, with their `readAt`. Throws
   * RpcFault when there are none.
   */
  snapshots(): Promise<readonly Snapshot.Snapshot[]>
  /** One of `snapshots`. */
  snapshot(token: StockToken): Promise<Snapshot.Snapshot>
  /**
   * What `usdgAtomic` buys, and the checks before money moves, of one block. Answers within a
   * second may share a snapshot unless `fresh`. `people`: accounts that must not be blocked. Throws
   * RpcFault.
   */
  snapshotOf(
    token: StockToken,
    usdgAtomic: bigint,
    options?: SnapshotOptions,
  ): Promise<Snapshot.Snapshot>
  /** Whether an order may be taken on a snapshot. */
  judge(snapshot: Snapshot.Snapshot): Verdict.Verdict
  /**
   * The calls of an account that holds `usdgAtomic` and spends all of it if no call fails. The part
   * that a pool cannot take goes to the payer. `deadline` is unix seconds.
   */
  swap(terms: SwapTerms): readonly Call[]
}

export type SwapTerms = {
  token: StockToken
  recipient: Address
  payer: Address
  usdgAtomic: bigint
  floorAtomic: bigint
  deadline: bigint
}

export type SnapshotOptions = { people?: readonly Address[]; fresh?: boolean }

export type MarketOptions = {
  /** Gets all snapshots of the list. */
  history?: Pick<History, 'add'>
  stock: Stock
  asset: NetworkConfig['asset']
  read: Read
  /** Unix ms. */
  now: () => number
  /** Whether the issuer halts trading; undefined when it does not answer. Must answer fast. */
  isHalted?: (token: StockToken) => Promise<boolean | undefined>
  /** Longest time that a snapshot may take, ms. */
  timeoutMs?: number | undefined
}

const maxAgeMs = 1_000
/** Distinct amounts that are cached for a second. */
const keptMax = 1_000

/** The market of `[stock]` on its network. */
export function createMarket(options: MarketOptions): Market {
  const { stock, asset, now } = options
  const ask = createAsk(options)
  const recent = createRecent(now)
  const snapshots = createSnapshots(options, ask)
  return {
    stock,
    find: (name) =>
      stock.tokens.find(
        ({ symbol, address }) =>
          symbol === name.toUpperCase() || address.toLowerCase() === name.toLowerCase(),
      ),
    snapshots,
    async snapshot(token) {
      const found = (await snapshots()).find((snapshot) => snapshot.token === token)
      if (found === undefined) throw new Error(`${token.symbol} is not listed`)
      return found
    },
    snapshotOf(token, usdgAtomic, { people = [], fresh = false } = {}) {
      if (fresh) return ask(token, usdgAtomic, people)
      const key = [token.address, usdgAtomic, ...people].join()
      return recent(key, () => ask(token, usdgAtomic, people))
    },
    judge: (snapshot) => Verdict.of(snapshot, stock, now()),
    swap: ({ token, recipient, payer, usdgAtomic, floorAtomic, deadline }) =>
      Uniswap.swapCalls(stock.router, {
        tokenIn: asset.address,
        tokenOut: token.address,
        fee: token.fee,
        amountInAtomic: usdgAtomic,
        recipient,
        amountOutMinimumAtomic: floorAtomic,
        changeTo: payer,
        deadline,
      }),
  }
}

type Ask = (
  token: StockToken,
  usdgAtomic: bigint,
  people: readonly Address[],
) => Promise<Snapshot.Snapshot>

/** Reads the newest block, and the issuer's answer. */
function createAsk({ stock, asset, read, now, isHalted, timeoutMs = 2_000 }: MarketOptions): Ask {
  const reader = createReader({ network: stock.network, read, now, timeoutMs })
  return async (token, usdgAtomic, people) => {
    const question = { stock, asset, token, usdgAtomic, people }
    const [answer, halted] = await Promise.all([
      reader.ask(Snapshot.calls(question)),
      isHalted?.(token),
    ])
    const snapshot = Snapshot.parse(question, answer)
    return halted === true ? { ...snapshot, isHalted: halted } : snapshot
  }
}

/** All listed tokens with the smallest order; read at most once a second. */
function createSnapshots({ stock, now, history }: MarketOptions, ask: Ask): Market['snapshots'] {
  const { minAtomic, tokens } = stock
  let last: readonly Snapshot.Snapshot[] | undefined
  let refreshing: { askedAt: number; snapshots: Promise<readonly Snapshot.Snapshot[]> } | undefined

  async function refresh(): Promise<readonly Snapshot.Snapshot[]> {
    last = await Promise.all(tokens.map((token) => ask(token, minAtomic, [])))
    history?.add(last)
    return last
  }

  return async () => {
    if (!isRecent(refreshing, now())) refreshing = { askedAt: now(), snapshots: refresh() }
    try {
      return await refreshing.snapshots
    } catch (error) {
      if (last === undefined) throw error
      return last
    }
  }
}

/** Snapshots of the last second, by their request. */
function createRecent(now: () => number) {
  const kept = new Map<string, { askedAt: number; snapshot: Promise<Snapshot.Snapshot> }>()
  return (key: string, ask: () => Promise<Snapshot.Snapshot>): Promise<Snapshot.Snapshot> => {
    const known = kept.get(key)
    if (isRecent(known, now())) return known.snapshot
    const snapshot = ask()
    // Entries are sorted by age: expired and surplus entries are first.
    for (const [old, entry] of kept) {
      if (isRecent(entry, now()) && kept.size < keptMax) break
      kept.delete(old)
    }
    kept.set(key, { askedAt: now(), snapshot })
    // Do not share a fault.
    snapshot.catch(() => kept.delete(key))
    return snapshot
  }
}

function isRecent<T extends { askedAt: number }>(known: T | undefined, now: number): known is T {
  return known !== undefined && Math.abs(now - known.askedAt) < maxAgeMs
}
