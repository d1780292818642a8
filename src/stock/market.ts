import type { Address } from 'viem'
import type { Call } from '../chain/multicall'
import * as Uniswap from '../chain/uniswap'
import type { NetworkConfig, Stock, StockToken } from '../config/Config'
import { createReader, type Read } from './reader'
import * as Snapshot from './Snapshot'
import * as Verdict from './Verdict'

/** Reads of the listed stocks; nothing here moves money. */
export type Market = {
  stock: Stock
  /** By symbol in any case, or by contract address. */
  find(symbolOrAddress: string): StockToken | undefined
  /**
   * All listed tokens with a quote of the smallest order, in the order of the file. At most a second
   * old, unless the network gives no answer: then the last one, which `readAt` tells. Throws
   * RpcFault when there is none.
   */
  snapshots(): Promise<readonly Snapshot.Snapshot[]>
  /** One of `snapshots`. */
  snapshot(token: StockToken): Promise<Snapshot.Snapshot>
  /**
   * What `usdgAtomic` buys, and all that must hold before money moves, of one block. Answers within
   * a second may share a look unless `fresh`. `people`: who must not be blocked. Throws RpcFault.
   */
  look(token: StockToken, usdgAtomic: bigint, options?: LookOptions): Promise<Snapshot.Snapshot>
  /** Whether an order may be taken on what was seen. */
  judge(look: Snapshot.Snapshot): Verdict.Verdict
  /**
   * The newest quote, whatever else speaks against it; undefined when the pool does not take all of
   * the amount. `quotedAt` is unix ms. Throws RpcFault.
   */
  quote(
    token: StockToken,
    usdgAtomic: bigint,
  ): Promise<{ sharesAtomic: bigint; blockNumber: bigint; quotedAt: number } | undefined>
  /** A fresh look, judged: for the smallest order unless an amount is given. Throws RpcFault. */
  check(
    token: StockToken,
    people: readonly Address[],
    usdgAtomic?: bigint,
  ): Promise<Verdict.Verdict>
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

export type LookOptions = { people?: readonly Address[]; fresh?: boolean }

export type MarketOptions = {
  stock: Stock
  asset: NetworkConfig['asset']
  read: Read
  /** Unix ms. */
  now: () => number
  /** Whether the issuer halts trading; undefined when it does not say. Must not take long. */
  isHalted?: (token: StockToken) => Promise<boolean | undefined>
  /** Longest time that a look may take. */
  timeoutMs?: number
}

const maxAgeMs = 1_000
/** Distinct amounts that are remembered for a second. */
const keptMax = 1_000

/** The market of `[stock]` on its network. */
export function createMarket(options: MarketOptions): Market {
  const { stock, asset, now, timeoutMs = 2_000 } = options
  const reader = createReader({ network: stock.network, read: options.read, now, timeoutMs })
  const looks = new Map<string, { askedAt: number; look: Promise<Snapshot.Snapshot> }>()
  let last: readonly Snapshot.Snapshot[] | undefined
  let refreshing: { askedAt: number; looks: Promise<readonly Snapshot.Snapshot[]> } | undefined

  const market: Market = {
    stock,
    find: (name) =>
      stock.tokens.find(
        ({ symbol, address }) =>
          symbol === name.toUpperCase() || address.toLowerCase() === name.toLowerCase(),
      ),
    async snapshots() {
      if (!isRecent(refreshing)) refreshing = { askedAt: now(), looks: refresh() }
      try {
        return await refreshing.looks
      } catch (error) {
        if (last === undefined) throw error
        return last
      }
    },
    async snapshot(token) {
      const found = (await market.snapshots()).find((look) => look.token === token)
      if (found === undefined) throw new Error(`${token.symbol} is not listed`)
      return found
    },
    look(token, usdgAtomic, { people = [], fresh = false } = {}) {
      if (fresh) return lookAt(token, usdgAtomic, people)
      const key = [token.address, usdgAtomic, ...people].join()
      const known = looks.get(key)
      if (isRecent(known)) return known.look
      const look = lookAt(token, usdgAtomic, people)
      forget()
      looks.set(key, { askedAt: now(), look })
      // A fault is not an answer to share.
      look.catch(() => looks.delete(key))
      return look
    },
    judge: (look) => Verdict.of(look, stock, now()),
    async quote(token, usdgAtomic) {
      const { sharesAtomic, blockNumber, readAt } = await lookAt(token, usdgAtomic, [])
      if (sharesAtomic === undefined) return undefined
      return { sharesAtomic, blockNumber, quotedAt: readAt }
    },
    async check(token, people, usdgAtomic = stock.minAtomic) {
      return market.judge(await lookAt(token, usdgAtomic, people))
    },
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
  return market

  async function lookAt(token: StockToken, usdgAtomic: bigint, people: readonly Address[]) {
    const question = { stock, asset, token, usdgAtomic, people }
    const [answer, isHalted] = await Promise.all([
      reader.ask(Snapshot.calls(question)),
      options.isHalted?.(token),
    ])
    const look = Snapshot.parse(question, answer)
    return isHalted === true ? { ...look, isHalted } : look
  }

  async function refresh(): Promise<readonly Snapshot.Snapshot[]> {
    const { minAtomic, tokens } = stock
    const all = await Promise.all(tokens.map((token) => lookAt(token, minAtomic, [])))
    last = all
    return all
  }

  function isRecent<T extends { askedAt: number }>(known: T | undefined): known is T {
    return known !== undefined && Math.abs(now() - known.askedAt) < maxAgeMs
  }

  /** Entries are in the order of their age: what is too old, or too much, is at the front. */
  function forget(): void {
    for (const [key, known] of looks) {
      if (isRecent(known) && looks.size < keptMax) break
      looks.delete(key)
    }
  }
}
