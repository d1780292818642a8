import { farm, flood } from '../harness/farm'
import { describeFlood, describeGain } from '../harness/farmreport'
import { startNetwork } from '../harness/settlement'

/**
 * Attacks on sponsoring with fifty times as many addresses as in the tests: `soak:farm [ADDRESSES]`.
 */
const addresses = Number(Bun.argv[2] ?? 100_000)
const net = await startNetwork('usdg')
let isGood = true
try {
  const figures = await flood(net, addresses)
  process.stdout.write(`${describeFlood(figures)}\n`)
  const { grants, grantsPerDay, spentWei, budgetWei, doubled, honest } = figures
  isGood =
    grants <= grantsPerDay &&
    spentWei <= budgetWei &&
    doubled === 0 &&
    honest.every((code) => code === 'granted')
  for (const baseFeeWei of [36_000_000n, 100_000_000n, 300_000_000n]) {
    const gain = await farm(net, 50, baseFeeWei)
    process.stdout.write(`${describeGain(gain)}\n`)
    isGood &&= gain.grantedWei > 0n && gain.gainWei < 0n
  }
} finally {
  await net.stop()
}
process.stdout.write(isGood ? 'good\n' : 'NOT GOOD\n')
process.exitCode = isGood ? 0 : 1
