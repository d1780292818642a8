import { expect, test } from 'bun:test'
import { runVector } from '../harness/recovery-vectors'

/** The recovery vectors of x402, by the steps of each: docs/schemes/batch-settlement-recovery.mdx. */

const price = 10n

test('happy-path: a stale buyer takes the proven state of the server, and signs once more', async () => {
  const ran = await runVector({ claimed: 0n, local: 0n, price, corrections: [100n] })
  expect(ran).toEqual({ signed: [10n, 110n], told: '200', after: 110n })
})

test('cas-conflict: the loser of a race signs once more, above the charge of the winner', async () => {
  const ran = await runVector({ claimed: 0n, local: 100n, price, corrections: [110n] })
  expect(ran).toEqual({ signed: [110n, 120n], told: '200', after: 120n })
})

test('error: invalid-corrective-state: a charge below what is claimed changes and signs nothing', async () => {
  const ran = await runVector({ claimed: 150n, local: 0n, price, corrections: [100n] })
  expect(ran).toMatchObject({ signed: [10n], after: 0n })
  expect(ran.told).toBe('it shows a charge of 100, and 150 are claimed')
})

test('attack: loop-guard: a server that corrects again gets no third voucher', async () => {
  for (const again of [200n, 100n]) {
    // With 100 it is loop-guard-unchanged.
    const ran = await runVector({ claimed: 0n, local: 0n, price, corrections: [100n, again] })
    expect(ran).toMatchObject({ signed: [10n, 110n], told: '402' })
  }
})

test('error: transient-state-unavailable: without the chain nothing is changed or signed', async () => {
  const ran = await runVector({ claimed: undefined, local: 0n, price, corrections: [50n] })
  expect(ran).toMatchObject({ signed: [10n], after: 0n })
  expect(ran.told).toContain('--rpc URL names another node')
})
