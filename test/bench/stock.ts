import { encodeFunctionData, erc20Abi, multicall3Abi, parseAbi } from 'viem'
import { privateKeyToAccount } from 'viem/accounts'
import { account } from '../../src/demo/accounts'
import {
  type Chain,
  execute,
  multicall3Address,
  prepareChain,
  startChain,
} from '../../src/demo/chains'
import { openExchange } from '../../src/demo/exchange'
import { ask, payX402 } from '../harness/buyer'
import { shipped } from '../harness/stock'
import { createStockProgram } from '../harness/stockserve'
import * as Stats from './Stats'

/**
 * Purchases a second and how long one takes, from the paid request to the delivered shares, with 1
 * and 16 buyers, while the chain mines at once and in blocks of a second; then the free routes. The
 * program runs as an operator starts it; buyers sign before the clock starts.
 */

const network = 'eip155:4663'
const init = { method: 'POST' }
const abi = parseAbi(['function mint(address to, uint256 value)'])
const symbols = ['NVDA', 'TSLA', 'AAPL', 'MSFT']
const say = (text: string) => void process.stdout.write(`${text}\n`)

type Line = { load: string; perSecond: number; times: readonly number[]; faults: number }

const lines: Line[] = []
for (const blockTimeMs of [undefined, 1_000]) {
  const { stock, network: terms } = await shipped()
  const chain = await startChain({
    chainId: terms.chainId,
    ...(blockTimeMs === undefined ? {} : { blockTimeMs }),
  })
  const program = await createStockProgram({ rpcUrl: chain.url })
  try {
    await prepareChain(chain, terms)
    await openExchange(chain, terms.asset.address, stock)
    const buyers = await fund(chain, terms.asset.address, 16)
    await program.start()
    const blocks = blockTimeMs === undefined ? 'automine' : '1 s blocks'
    // The router's allowance, and code that has run before.
    await buy(buyers.slice(0, 1), 2)
    for (const [count, each] of blockTimeMs === undefined
      ? ([
          [1, 60],
          [16, 20],
        ] as const)
      : ([
          [1, 6],
          [16, 6],
        ] as const)) {
      const run = await buy(buyers.slice(0, count), each)
      lines.push({ load: `buy, ${count} at once, ${blocks}`, ...run })
    }
    if (blockTimeMs === undefined) {
      const quote = (index: number) =>
        `/api/stock/quote?symbol=${symbols[index % symbols.length]}&usdg=${(1 + (index % 999)).toFixed(0)}`
      lines.push({ load: 'list, 16 at once', ...(await read(() => '/api/stock/list')) })
      lines.push({ load: 'quote, 16 at once, same', ...(await read(() => quote(1))) })
      lines.push({ load: 'quote, 16 at once, all different', ...(await read(quote)) })
    }
  } finally {
    await program.remove()
    await chain.stop()
  }

  async function buy(buyers: readonly Buyer[], each: number): Promise<Omit<Line, 'load'>> {
    const credentials = await Promise.all(
      buyers.map(async (buyer, index) => {
        const list = []
        for (let turn = 0; turn < each; turn++) {
          const symbol = symbols[(index + turn) % symbols.length]
          const path = `/api/stock/buy?symbol=${symbol}&usdg=1`
          const asked = await ask(program.url + path, init)
          const options = { network, method: 'permit2' } as const
          list.push({ path, signature: await payX402(asked.required, buyer, options) })
        }
        return list
      }),
    )
    const times: number[] = []
    let faults = 0
    const startedAt = performance.now()
    await Promise.all(
      credentials.map(async (list) => {
        for (const { path, signature } of list) {
          const sentAt = performance.now()
          const headers = { 'payment-signature': signature }
          const response = await fetch(program.url + path, { ...init, headers })
          await response.arrayBuffer()
          if (response.status === 200) times.push(performance.now() - sentAt)
          else faults++
        }
      }),
    )
    return { perSecond: (times.length * 1_000) / (performance.now() - startedAt), times, faults }
  }

  async function read(pathOf: (index: number) => string): Promise<Omit<Line, 'load'>> {
    const times: number[] = []
    let faults = 0
    let index = 0
    const startedAt = performance.now()
    const work = async () => {
      while (performance.now() - startedAt < 3_000) {
        const sentAt = performance.now()
        const response = await fetch(program.url + pathOf(index++))
        await response.arrayBuffer()
        if (response.status === 200) times.push(performance.now() - sentAt)
        else faults++
      }
    }
    await Promise.all(Array.from({ length: 16 }, work))
    return { perSecond: (times.length * 1_000) / (performance.now() - startedAt), times, faults }
  }
}

for (const { load, perSecond, times, faults } of lines) {
  const sorted = times.toSorted((left, right) => left - right)
  const at = (share: number) => (sorted[Math.floor(sorted.length * share)] ?? 0).toFixed(1)
  say(
    `${load.padEnd(34)} ${perSecond.toFixed(1).padStart(8)}/s  median ${Stats.median(times).toFixed(1)} ms  ` +
      `p90 ${at(0.9)} ms  of ${times.length}  faults ${faults}`,
  )
}

type Buyer = ReturnType<typeof privateKeyToAccount>

/** Buyers of their own with USDG and the approval. */
async function fund(chain: Chain, asset: `0x${string}`, count: number): Promise<Buyer[]> {
  const buyers = Array.from({ length: count }, (_, index) =>
    privateKeyToAccount(`0x${(index + 1).toString(16).padStart(64, '7')}`),
  )
  const approve = encodeFunctionData({
    abi: erc20Abi,
    functionName: 'approve',
    args: ['0x000000000022D473030F116dDEE9F6B43aC78BA3', 2n ** 256n - 1n],
  })
  const mints = buyers.map(({ address }) => ({
    target: asset,
    allowFailure: false,
    callData: encodeFunctionData({ abi, functionName: 'mint', args: [address, 400_000_000n] }),
  }))
  const data = encodeFunctionData({ abi: multicall3Abi, functionName: 'aggregate3', args: [mints] })
  await execute(chain, [{ from: account(9).address, to: multicall3Address, data, gas: 9_000_000n }])
  for (const { address } of buyers) {
    await chain.rpc('anvil_setBalance', [address, '0xde0b6b3a7640000'])
    await chain.rpc('anvil_impersonateAccount', [address])
  }
  await execute(
    chain,
    buyers.map(({ address }) => ({ from: address, to: asset, data: approve, gas: 100_000n })),
  )
  return buyers
}
