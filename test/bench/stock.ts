import { prepareChain } from '../../src/demo/chains'
import { openExchange } from '../../src/demo/exchange'
import { ask, payX402 } from '../harness/buyer'
import { startChain } from '../harness/chains'
import { shipped } from '../harness/stock'
import { fund, type Payer } from '../harness/stock-payers'
import { createStockProgram } from '../harness/stock-serve'
import * as Stats from './Stats'

/**
 * Purchases per second, and the time of one from the paid request to the delivered shares. It runs
 * with 1 and 16 buyers, with automining and with blocks of a second. The program runs as an
 * operator starts it; buyers sign before the clock starts. The free routes: bench:market.
 */

const network = 'eip155:4663'
const init = { method: 'POST' }
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
    // Warm up, so that the code is compiled.
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
  } finally {
    await program.remove()
    await chain.stop()
  }

  async function buy(buyers: readonly Payer[], each: number): Promise<Omit<Line, 'load'>> {
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
}

for (const { load, perSecond, times, faults } of lines) {
  const sorted = times.toSorted((left, right) => left - right)
  const at = (share: number) => (sorted[Math.floor(sorted.length * share)] ?? 0).toFixed(1)
  say(
    `${load.padEnd(34)} ${perSecond.toFixed(1).padStart(8)}/s  median ${Stats.median(times).toFixed(1)} ms  ` +
      `p90 ${at(0.9)} ms  of ${times.length}  faults ${faults}`,
  )
}
