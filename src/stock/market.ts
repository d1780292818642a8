import type { Address, Hex } from 'viem'
import { RpcFault } from '../chain/client'
import type { Call } from '../chain/multicall'
import * as Uniswap from '../chain/uniswap'
import type { NetworkConfig, Stock, StockToken } from '../config/Config'
import type * as Network from '../protocol/Network'
import { dayMs } from '../protocol/Time'
import * as Snapshot from './Snapshot'

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
    options?: { people?: readonly Address[]; fresh?: boolean },
  ): Promise<Snapshot.Snapshot>
  /** Whether an order may be taken on a snapshot. */
  judge(snapshot: Snapshot.Snapshot): Snapshot.Verdict
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

export type MarketOptions = {
  /** Gets all snapshots of the list. */
  history?: Pick<History, 'add'>
  stock: Stock
  asset: NetworkConfig['asset']
  /** Many eth_calls in one, in the state of one block; undefined for one that failed by itself. */
  read(
    network: Network.Id,
    calls: readonly Call[],
    options?: { timeoutMs?: number },
  ): Promise<{ blockNumber: bigint; results: readonly (Hex | undefined)[] }>
  /** Unix ms. */
  now: () => number
  /** Whether the issuer halts trading; undefined when it does not answer. Must answer fast. */
  isHalted?: ((token: StockToken) => Promise<boolean | undefined>) | undefined
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
    judge: (snapshot) => Snapshot.judge(snapshot, stock, now()),
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

type Ask = ReturnType<typeof createAsk>

/** Reads the newest block, and the issuer's answer. */
function createAsk(options: MarketOptions) {
  const { stock, asset, isHalted } = options
  const readNewest = createReader(options)
  return async (token: StockToken, usdgAtomic: bigint, people: readonly Address[] = []) => {
    const question = { stock, asset, token, usdgAtomic, people }
    const [answer, halted] = await Promise.all([
      readNewest(Snapshot.calls(question)),
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
    last = await Promise.all(tokens.map((token) => ask(token, minAtomic)))
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

/** Concurrent reads for free answers: payments need the node, too. */
const activeMax = 2
/**
 * Most calls inside one: QuoterV2 takes up to some 200,000 gas, and nodes cap eth_call at
 * 50,000,000.
 */
const callsMax = 400
const waitingMax = 1_000

type Question = {
  calls: readonly Call[]
  resolve(answer: Snapshot.Answers): void
  reject(error: unknown): void
}

/**
 * Returns a function that reads the newest block. Calls that wait at the same time share one call of a
 * node, so that many requests cost few. It throws RpcFault when the network gives no answer within
 * `timeoutMs`, with the queue.
 */
function createReader({ stock, read, now, timeoutMs = 2_000 }: MarketOptions) {
  const waiting = new Set<Question>()
  let active = 0
  let isDue = false
  return (calls: readonly Call[]): Promise<Snapshot.Answers> => {
    if (waiting.size >= waitingMax)
      return Promise.reject(new RpcFault('too many reads are under way'))
    const { promise, resolve, reject } = Promise.withResolvers<Snapshot.Answers>()
    const question = { calls, resolve, reject }
    const timer = setTimeout(() => {
      waiting.delete(question)
      reject(new RpcFault('no answer in time'))
    }, timeoutMs)
    waiting.add(question)
    schedule()
    return promise.finally(() => clearTimeout(timer))
  }

  /** Runs once per turn of the event loop, so that requests of one turn share a call. */
  function schedule(): void {
    if (isDue) return
    isDue = true
    setImmediate(() => {
      isDue = false
      while (active < activeMax && waiting.size > 0) void send(take())
    })
  }

  function take(): Question[] {
    const taken: Question[] = []
    let count = 0
    for (const question of waiting) {
      if (taken.length > 0 && count + question.calls.length > callsMax) break
      waiting.delete(question)
      taken.push(question)
      count += question.calls.length
    }
    return taken
  }

  async function send(questions: readonly Question[]): Promise<void> {
    active++
    const readAt = now()
    try {
      const calls = questions.flatMap((question) => question.calls)
      const { results, blockNumber } = await read(stock.network, calls, { timeoutMs })
      let start = 0
      for (const question of questions) {
        const end = start + question.calls.length
        question.resolve({ results: results.slice(start, end), blockNumber, readAt })
        start = end
      }
    } catch (cause) {
      const fault = cause instanceof RpcFault ? cause : new RpcFault('no usable answer', { cause })
      for (const question of questions) question.reject(fault)
    } finally {
      active--
      schedule()
    }
  }
}

/** A price, and the time of its read (unix ms). */
type Point = { at: number; priceAtomic: bigint }

/** The prices of the last day, from reads for the list. Nothing is read only for them. */
export type History = {
  add(snapshots: readonly Snapshot.Snapshot[]): void
  /** Prices of a token by its symbol, the oldest first. */
  of(symbol: string): readonly Point[]
}

/** The newest price of each span of this length is kept. */
const slotMs = 15 * 60 * 1000

export function createHistory(now: () => number): History {
  const bySymbol = new Map<string, Map<number, Point>>()
  const pointsOf = (symbol: string) => {
    const known = bySymbol.get(symbol) ?? new Map<number, Point>()
    bySymbol.set(symbol, known)
    return known
  }
  return {
    add(snapshots) {
      for (const snapshot of snapshots) {
        const priceAtomic = Snapshot.shownPriceAtomic(snapshot)
        if (priceAtomic === undefined) continue
        const at = snapshot.readAt
        const points = pointsOf(snapshot.token.symbol)
        points.set(Math.floor(at / slotMs), { at, priceAtomic })
        for (const [slot, point] of points) if (point.at < at - dayMs) points.delete(slot)
      }
    },
    of: (symbol) =>
      [...(bySymbol.get(symbol)?.values() ?? [])].filter(({ at }) => at >= now() - dayMs),
  }
}
