import { afterAll, beforeAll, expect, test } from 'bun:test'
import { farm, farmDelegated, flood } from '../harness/farm'
import { describeFlood, describeGain } from '../harness/farm-report'
import { startNetwork } from '../harness/settlement'

let net: Awaited<ReturnType<typeof startNetwork>>
beforeAll(async () => {
  net = await startNetwork('usdg')
})
afterAll(() => net?.stop())

test("2,000 addresses get at most the day's grants, once each, and an honest wallet gets its grant", async () => {
  // Fewer grants a day than in the shipped file; soak:farm attacks a full day.
  const figures = await flood(net, 2_000, 56)
  console.log(describeFlood(figures))
  // All that the day has for requests without a signature, and some with one.
  expect(figures.answers['signature-required']).toBeGreaterThan(0)
  expect(figures.grants).toBeGreaterThan(28)
  expect(figures.grants).toBeLessThanOrEqual(figures.grantsPerDay)
  expect(figures.answers.granted).toBe(figures.grants)
  expect(figures.spentWei).toBeGreaterThan(0n)
  expect(figures.spentWei).toBeLessThanOrEqual(figures.budgetWei)
  expect(figures.doubled).toBe(0)
  expect(figures.honest).toEqual(Array<string>(8).fill('granted'))
  for (const code of ['asset-balance-too-low', 'not-an-eoa', 'has-gas', 'balance-too-young'])
    expect(figures.answers[code] ?? 0).toBe(80)
})

test('an attacker that moves its dollars to new addresses pays more than it is granted', async () => {
  for (const baseFeeWei of [36_000_000n, 300_000_000n]) {
    const gain = await farm(net, 5, baseFeeWei)
    console.log(describeGain(gain))
    expect(gain.grantedWei).toBeGreaterThan(0n)
    expect(gain.gainWei).toBeLessThan(0n)
  }
})

test('attack: addresses that delegate approve, move on and pay more than they are granted, and their clients get no further grant', async () => {
  const gain = await farmDelegated(net, 8, 300_000_000n, { approves: true, fresh: false })
  console.log(describeGain(gain))
  // An allowance of an address with code does not count as its own approve.
  expect(gain.answers).toEqual({ granted: 4, 'rate-limited': 4 })
  expect(gain.gainWei).toBeLessThan(0n)
})

test('attack: an address that delegates after its check gets nothing, and its code no gas', async () => {
  const gain = await farmDelegated(net, 4, 300_000_000n, { isEarly: true })
  expect(gain.answers).toEqual({ 'already-sponsored': 4 })
  expect(gain.grantedWei).toBe(0n)
  expect(gain.transferGas).toEqual([21_000n])
  expect(gain.gainWei).toBeLessThan(0n)
})
