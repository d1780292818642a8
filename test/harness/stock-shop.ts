import {
  type Address,
  encodeFunctionData,
  erc20Abi,
  getContractAddress,
  type Hex,
  parseAbi,
} from 'viem'
import type { Stock, StockToken } from '../../src/config/Config'
import { account } from '../../src/demo/accounts'
import { balanceOf, type Chain, execute } from '../../src/demo/chains'
import { type Asked, ask } from './buyer'
import type { Scheme, Shop, ShopOptions, Tap, Terms } from './shop'
import { sign, startShop } from './shop'
import { tamper } from './test-ledger'

/** A shop with the stock desk on real Uniswap contracts. */
export type StockShop = Shop & {
  stock: Stock
  /** The token that the tests buy. */
  nvda: StockToken
  chain: Chain
  tap: Tap
  asset: Address
  desk: Address
  /** URL of a purchase; default 25 USDG of NVDA. */
  buyUrl(query?: Record<string, string>): string
  shares(holder: Address, token?: StockToken): Promise<bigint>
  usdg(holder: Address): Promise<bigint>
  order(id: string): Promise<OrderJson>
}

/** The JSON of an order. */
export type OrderJson = {
  id: string
  status: string
  symbol: string
  payer: Address
  recipient: Address
  usdg: string
  usdgAtomic: string
  quotedShares: string
  minimumShares: string
  deliveredShares?: string
  deliveredSharesAtomic?: string
  returned?: string
  returnedAtomic?: string
  settlementTx: Hex
  swapTx?: Hex
  refundTx?: Hex
  refundReason?: string
  heldReason?: string
}

export const network = 'eip155:4663'

/** The address of one swap, through which the desk's money goes to the router. */
export async function throughOf(chain: Chain, swapTx: Hex): Promise<Address> {
  const transaction = await chain.rpc('eth_getTransactionByHash', [swapTx])
  const { from, nonce } = transaction as { from: Address; nonce: Hex }
  return getContractAddress({ from, nonce: BigInt(nonce) })
}

const stablecoin = parseAbi([
  'function setPaused(bool value)',
  'function setBlocked(address account, bool value)',
  'function mint(address to, uint256 value)',
])

export async function startStockShop(options: ShopOptions = {}): Promise<StockShop> {
  // A failed step is tried again soon.
  return openStock(await startShop({ orderRetryMs: 50, ...options, exchange: true }))
}

/** Prepares the buyers of a shop that was started with `exchange`. */
export async function openStock<S extends Shop>(shop: S): Promise<S & StockShop> {
  const { config, chains, taps } = shop
  const { stock } = config
  const [nvda] = stock?.tokens ?? []
  const chain = chains[network]
  const tap = taps[network]
  const asset = config.networks.find(({ id }) => id === network)?.asset.address
  if (!stock || !nvda || !chain || !tap || !asset) throw new Error('the shop has no stocks')
  // The buyers have their own gas: their approval needs no sponsoring.
  for (const index of [3, 4, 5]) {
    await chain.rpc('anvil_setBalance', [account(index).address, '0xde0b6b3a7640000'])
  }
  await execute(
    chain,
    [3, 4, 5].map((index) => ({
      from: account(index).address,
      to: asset,
      data: encodeFunctionData({
        abi: erc20Abi,
        functionName: 'approve',
        args: ['0x000000000022D473030F116dDEE9F6B43aC78BA3', 2n ** 256n - 1n],
      }),
      gas: 100_000n,
    })),
  )
  return Object.assign(shop, {
    stock,
    nvda,
    chain,
    tap,
    asset,
    desk: shop.app.settlement.desk,
    buyUrl: (query: Record<string, string> = {}) =>
      `${shop.url}/api/stock/buy?${new URLSearchParams({ symbol: 'NVDA', usdg: '25', ...query })}`,
    shares: (holder: Address, token = nvda) => balanceOf(chain, token.address, holder),
    usdg: (holder: Address) => balanceOf(chain, asset, holder),
    order: async (id: string) =>
      (await (await fetch(`${shop.url}/api/stock/order/${id}`)).json()) as OrderJson,
  })
}

export const askToBuy = (url: string): Promise<Asked> => ask(url, { method: 'POST' })

/** Signs the terms of the 402 of a purchase. */
export function signOrder(
  url: string,
  terms: Omit<Terms, 'scheme' | 'network'> & { scheme?: Scheme } = {},
): Promise<Record<string, string>> {
  const { scheme = 'x402-permit2', ...rest } = terms
  return sign(url, { scheme, network, init: { method: 'POST' }, ...rest })
}

/** Requests, signs, pays. */
export async function buyStock(
  url: string,
  terms: Parameters<typeof signOrder>[1] = {},
  headers: Record<string, string> = {},
): Promise<Response> {
  const credential = await signOrder(url, terms)
  return fetch(url, { method: 'POST', headers: { ...headers, ...credential } })
}

/** Administrative functions of the stablecoin. */
export function pauseAsset(shop: StockShop, isPaused: boolean): Promise<void> {
  return send(
    shop,
    encodeFunctionData({ abi: stablecoin, functionName: 'setPaused', args: [isPaused] }),
  )
}

/** The stablecoin blocks this account. */
export function freeze(shop: StockShop, person: Address, isFrozen = true): Promise<void> {
  const args = [person, isFrozen] as const
  return send(shop, encodeFunctionData({ abi: stablecoin, functionName: 'setBlocked', args }))
}

/** The request that `turnpike orders retry` writes while the service runs. */
export function requestRetry({ dataDir }: StockShop, id: string): void {
  tamper(dataDir, "UPDATE orders SET retry_at = 1 WHERE id = ? AND state = 'held'", [id])
}

/** Gives USDG. */
export function mint(shop: StockShop, to: Address, amountAtomic: bigint): Promise<void> {
  const args = [to, amountAtomic] as const
  return send(shop, encodeFunctionData({ abi: stablecoin, functionName: 'mint', args }))
}

async function send({ chain, asset }: StockShop, data: Hex): Promise<void> {
  await execute(chain, [{ from: account(8).address, to: asset, data, gas: 200_000n }])
}

/** The desk's request to the node before which an action runs. */
export type Moment = 'quote' | 'receipt' | 'swap' | 'refund'

/**
 * Runs an action directly before the node gets the n-th request of a kind, once. The first read of
 * the pool is without payment, the second with it, the third after settlement.
 */
export function before(shop: StockShop, moment: Moment, turn: number, act: () => unknown): void {
  let seen = 0
  shop.tap.intercept = async (call) => {
    if (momentOf(shop, call) !== moment || ++seen !== turn) return undefined
    return act()
  }
}

export function momentOf(
  { desk }: Pick<StockShop, 'desk'>,
  { method, params }: { method: string; params: readonly unknown[] },
): Moment | undefined {
  const text = JSON.stringify(params).toLowerCase()
  const has = (digits: string) => text.includes(digits.replace(/^0x/, '').toLowerCase())
  if (method === 'eth_getTransactionReceipt') return 'receipt'
  if (method === 'eth_call') return has('c6a5026a') ? 'quote' : undefined
  if (!method.startsWith('eth_sendRawTransaction')) return undefined
  if (has('5ae401dc')) return 'swap'
  // `transferWithAuthorization`, from the desk.
  return has(`e3ee160e${desk.slice(2).padStart(64, '0')}`) ? 'refund' : undefined
}
