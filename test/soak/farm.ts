import { farm, farmDelegated, flood } from '../harness/farm'
import { describeFlood, describeGain } from '../harness/farm-report'
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
    const approving = await farmDelegated(net, 48, baseFeeWei, { approves: true, together: 48 })
    process.stdout.write(`  delegated and approving:\n${describeGain(approving)}\n`)
    isGood &&= approving.grantedWei > 0n && approving.gainWei < 0n
    const early = await farmDelegated(net, 48, baseFeeWei, { isEarly: true })
    process.stdout.write(`  delegated before the grant:\n${describeGain(early)}\n`)
    isGood &&= early.grantedWei === 0n && early.gainWei < 0n
    // Four clients of a new network for every four grants: a grant is worth a little more than this.
    const fresh = await farmDelegated(net, 48, baseFeeWei, { together: 48 })
    process.stdout.write(`  delegated, of fresh clients:\n${describeGain(fresh)}\n`)
    isGood &&= fresh.grantedWei > 0n && fresh.gainWei * 5n < fresh.grantedWei
  }
} finally {
  await net.stop()
}
process.stdout.write(isGood ? 'good\n' : 'NOT GOOD\n')
process.exitCode = isGood ? 0 : 1
