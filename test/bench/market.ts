import { samplePrice } from '../../src/demo/exchange'
import { testWorld } from '../harness/world'
import { findLoad } from './load'

// Throughput of the free stock routes, and their cost for the node. Chain and gateway share the
// machine with the load, so these are lower bounds.

const seconds = 3
const edit = (text: string) => text.replace('quote_per_minute = 120', 'quote_per_minute = 1000000')
const world = await testWorld({ exchange: true, edit })
const load = findLoad()
const asked = async () => {
  const metrics = await (await fetch(`${world.url}/metrics`)).text()
  const line = /^turnpike_rpc_calls_total\{[^}]*4663[^}]*eth_call[^}]*\} (\d+)$/m.exec(metrics)
  return Number(line?.[1] ?? 0)
}

const rows: string[] = []
const row = (name: string, perSecond: number, calls: number) =>
  rows.push(
    `${name.padEnd(44)} ${perSecond.toFixed(0).padStart(8)}/s ${calls.toFixed(1).padStart(8)}/s`,
  )

for (const path of ['list', 'quote?symbol=NVDA&usdg=25']) {
  const url = `${world.url}/api/stock/${path}`
  await fetch(url)
  for (const connections of [1, 16]) {
    const before = await asked()
    const perSecond = await load.drive({ url, status: 200, connections, seconds })
    row(`${path}, ${connections} connections`, perSecond, ((await asked()) - before) / seconds)
  }
}

// Every amount occurs once, so that only the call can be shared.
let amount = 1_000_000
let answers = 0
const before = await asked()
const until = performance.now() + seconds * 1000
const visit = async () => {
  while (performance.now() < until) {
    const usdg = (amount++ / 1e6).toFixed(6)
    const response = await fetch(`${world.url}/api/stock/quote?symbol=SPY&usdg=${usdg}`)
    const { price } = (await response.json()) as { price: string }
    if (Math.abs(Number(price) / samplePrice('SPY') - 1) > 0.01) throw new Error(`price ${price}`)
    answers++
  }
}
await Promise.all(Array.from({ length: 16 }, visit))
row(
  'quote, 16 connections, no amount twice',
  answers / seconds,
  ((await asked()) - before) / seconds,
)

const head = `${`by ${load.name}`.padEnd(44)} ${'answers'.padStart(10)} ${'eth_call'.padStart(10)}`
process.stdout.write(`${[head, ...rows].join('\n')}\n`)
await world.stop()
process.exit(0)
