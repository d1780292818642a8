import { afterAll, describe, expect, test } from 'bun:test'
import {
  type Address,
  decodeFunctionData,
  encodeFunctionData,
  getContractAddress,
  type Hex,
  parseAbi,
  toFunctionSelector,
} from 'viem'
import * as Creation from '../../src/chain/creation'
import * as Token from '../../src/chain/token'
import * as Uniswap from '../../src/chain/uniswap'
import { account } from '../../src/demo/accounts'
import { balanceOf, type Chain, execute, prepareChain } from '../../src/demo/chains'
import { openExchange, samplePrice } from '../../src/demo/exchange'
import { startChain } from '../harness/chains'
import { outcomeOf } from '../harness/outcome'
import { shipped } from '../harness/stock'

const { stock, network } = await shipped()
const { asset } = network
const chain = await startChain({ chainId: network.chainId })
afterAll(() => chain.stop())
await prepareChain(chain, network)
await openExchange(chain, asset.address, stock)

const abi = parseAbi([
  'function factory() view returns (address)',
  'function WETH9() view returns (address)',
  'function owner() view returns (address)',
  'function feeAmountTickSpacing(uint24) view returns (int24)',
  'function getPool(address, address, uint24) view returns (address)',
  'function transfer(address, uint256) returns (bool)',
  'function multicall(uint256 deadline, bytes[] data) payable returns (bytes[])',
  'function exactInputSingle((address tokenIn, address tokenOut, uint24 fee, address recipient, uint256 amountIn, uint256 amountOutMinimum, uint160 sqrtPriceLimitX96) params) payable returns (uint256)',
  'function sweepToken(address token, uint256 amountMinimum, address recipient) payable',
  'function quoteExactInputSingle((address tokenIn, address tokenOut, uint256 amountIn, uint24 fee, uint160 sqrtPriceLimitX96) params) returns (uint256, uint160, uint32, uint256)',
])

async function call(target: Chain, to: Address, data: Hex): Promise<Hex> {
  return (await target.rpc('eth_call', [{ to, data }, 'latest'])) as Hex
}

async function word(to: Address, data: Hex): Promise<bigint> {
  return BigInt((await call(chain, to, data)).slice(0, 66))
}

describe('the exchange of the demo', () => {
  test('factory, router and quoter have their real addresses inside', async () => {
    const factory = encodeFunctionData({ abi, functionName: 'factory' })
    const ether = encodeFunctionData({ abi, functionName: 'WETH9' })
    for (const contract of [stock.router, stock.quoter]) {
      expect(await word(contract, factory)).toBe(BigInt(stock.factory))
      expect(await word(contract, ether)).toBe(0x0bd7d308f8e1639fab988df18a8011f41eacad73n)
    }
    const owner = encodeFunctionData({ abi, functionName: 'owner' })
    expect(await word(stock.factory, owner)).toBe(BigInt(account(9).address))
    const spacing = (fee: number) =>
      word(
        stock.factory,
        encodeFunctionData({ abi, functionName: 'feeAmountTickSpacing', args: [fee] }),
      )
    expect(await Promise.all([500, 3000, 10_000].map(spacing))).toEqual([10n, 60n, 200n])
  })

  test('all pools of the shipped file have their pinned addresses and sample prices', async () => {
    expect(stock.tokens).toHaveLength(14)
    for (const token of stock.tokens) {
      const pool = Uniswap.getPool(stock.factory, asset.address, token.address, token.fee)
      expect(await word(pool.to, pool.data)).toBe(BigInt(token.pool))
      const slot0 = Uniswap.slot0(token.pool)
      const sqrt = Uniswap.parsePrice(await call(chain, slot0.to, slot0.data)) ?? 0n
      const isFirst = Uniswap.isFirst(asset.address, token.address)
      const price = Uniswap.midPriceAtomic(sqrt, isFirst, 10n ** 18n)
      expect(Number(price) / 1e6).toBeCloseTo(samplePrice(token.symbol), 4)
    }
  })

  test('error: a pool at another address is an error, and no exchange starts', async () => {
    const other = await startChain({ chainId: network.chainId })
    try {
      await prepareChain(other, network)
      const [first, second] = stock.tokens
      if (!first || !second) throw new Error('no tokens')
      const wrong = { ...stock, tokens: [{ ...first, pool: second.pool }] }
      const failure = openExchange(other, asset.address, wrong)
      expect(await outcomeOf(failure)).toThrow(`the pool of ${first.symbol} is ${first.pool}`)
    } finally {
      await other.stop()
    }
  })
})

describe('what we send to Uniswap', () => {
  const token = stock.tokens[0]
  if (!token) throw new Error('no token')
  const trade = {
    tokenIn: asset.address,
    tokenOut: token.address,
    fee: token.fee,
    amountInAtomic: 25_000_000n,
  }
  const recipient = '0x00000000000000000000000000000000000A11cE'

  test('calldata for Uniswap equals that of viem', () => {
    const quote = encodeFunctionData({
      abi,
      functionName: 'quoteExactInputSingle',
      args: [{ ...trade, amountIn: trade.amountInAtomic, sqrtPriceLimitX96: 0n }],
    })
    expect(Uniswap.quoteExactInputSingle(stock.quoter, trade)).toEqual({
      to: stock.quoter,
      data: quote,
    })
    const swap = {
      ...trade,
      recipient,
      changeTo: account(3).address,
      amountOutMinimumAtomic: 7n,
      deadline: 1_795_000_000n,
    } as const
    const fund = encodeFunctionData({
      abi,
      functionName: 'transfer',
      args: [stock.router, swap.amountInAtomic],
    })
    const exact = encodeFunctionData({
      abi,
      functionName: 'exactInputSingle',
      args: [
        {
          tokenIn: swap.tokenIn,
          tokenOut: swap.tokenOut,
          fee: swap.fee,
          recipient,
          amountIn: 0n,
          amountOutMinimum: 7n,
          sqrtPriceLimitX96: 0n,
        },
      ],
    })
    const sweep = encodeFunctionData({
      abi,
      functionName: 'sweepToken',
      args: [swap.tokenIn, 0n, swap.changeTo],
    })
    const [funding, routing] = Uniswap.swapCalls(stock.router, swap)
    const args = [swap.deadline, [exact, sweep]] as const
    const data = encodeFunctionData({ abi, functionName: 'multicall', args })
    expect(funding).toEqual({ to: swap.tokenIn, data: fund })
    expect(routing).toEqual({ to: stock.router, data })
    expect(decodeFunctionData({ abi, data }).functionName).toBe('multicall')
  })

  test('a swap delivers exactly its quote to the recipient, and spends exactly its amount', async () => {
    const quote = Uniswap.quoteExactInputSingle(stock.quoter, trade)
    const shares = Uniswap.parseQuote(await call(chain, quote.to, quote.data))
    if (shares === undefined) throw new Error('no quote')
    const buyer = account(1).address
    const before = await balanceOf(chain, asset.address, buyer)
    const changeTo = account(3).address
    const swap = { ...trade, recipient, changeTo, amountOutMinimumAtomic: shares } as const
    const { to, data } = await creation(buyer, swap)
    const fund = Token.transfer(asset.address, to, trade.amountInAtomic)
    await execute(chain, [{ from: buyer, ...fund }])
    await execute(chain, [{ from: buyer, data, gas: 500_000n }])
    // Neither tokens nor code stay at the address.
    expect(await chain.rpc('eth_getCode', [to, 'latest'])).toBe('0x')
    expect(await balanceOf(chain, asset.address, to)).toBe(0n)
    expect(await balanceOf(chain, token.address, recipient)).toBe(shares)
    expect(await balanceOf(chain, asset.address, buyer)).toBe(before - trade.amountInAtomic)
  })

  /**
   * The address that the account's transaction after the next one creates, to swap a balance that
   * is sent to it.
   */
  async function creation(from: Address, swap: Omit<Uniswap.Swap, 'deadline'>) {
    const count = await chain.rpc('eth_getTransactionCount', [from, 'latest'])
    const nonce = Number(count) + 1
    const sent = Creation.create(
      { address: from, nonce },
      Uniswap.swapCalls(stock.router, { ...swap, deadline: 1n << 40n }),
    )
    expect(sent.to).toBe(getContractAddress({ from, nonce: BigInt(nonce) }))
    return sent
  }

  test('error: a call to an address without code fails the transaction, as one that reverts does', async () => {
    const from = account(1).address
    const ask = (calls: Parameters<typeof Creation.initCode>[0]) =>
      chain.rpc('eth_call', [{ from, data: Creation.initCode(calls) }, 'latest'])
    const read = Token.balanceOf(asset.address, from)
    expect(await ask([read, read])).toBe('0x')
    expect(await outcomeOf(ask([read, { to: recipient, data: '0x' }]))).toThrow('revert')
    const poor = Token.transfer(asset.address, recipient, 1n)
    // It has the data of the revert.
    const fault: unknown = await ask([read, poor, read]).catch((error: unknown) => error)
    expect(fault).toMatchObject({ data: toFunctionSelector('InsufficientFunds()') })
  })

  test('error: a swap after its deadline reverts', async () => {
    const changeTo = account(3).address
    const swap = {
      ...trade,
      recipient,
      changeTo,
      amountOutMinimumAtomic: 0n,
      deadline: 1n,
    } as const
    const [, { to, data }] = Uniswap.swapCalls(stock.router, swap)
    const from = account(1).address
    expect(await outcomeOf(chain.rpc('eth_call', [{ from, to, data }, 'latest']))).toThrow(
      'too old',
    )
  })

  test('error: a pool without enough liquidity gives no quote', async () => {
    // The asset is token0 of some pools and token1 of others, so the price ends at either bound.
    const sides = new Set<boolean>()
    for (const { address, fee } of stock.tokens) {
      sides.add(Uniswap.isFirst(asset.address, address))
      const most = { ...trade, tokenOut: address, fee, amountInAtomic: 10n ** 40n }
      const { to, data } = Uniswap.quoteExactInputSingle(stock.quoter, most)
      const answer = await call(chain, to, data)
      expect(BigInt(answer.slice(0, 66))).toBeGreaterThan(0n)
      expect(Uniswap.parseQuote(answer)).toBeUndefined()
    }
    expect(sides.size).toBe(2)
    expect(Uniswap.parseQuote('0x')).toBeUndefined()
    expect(Uniswap.parseQuote(undefined)).toBeUndefined()
  })
})
