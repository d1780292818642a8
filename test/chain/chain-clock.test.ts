import { describe, expect, test } from 'bun:test'
import {
  aheadOf,
  announced,
  createClock,
  mayBeAheadMs,
  observe,
  skewOf,
} from '../../src/chain/clock'

// The monotonic clock starts at 0 when the wall clock shows `start`. Chain time is wall time minus
// `off`.

const start = 1_800_000_000_000
const block = (number: number, madeAtMs: number, offMs = 0) => ({
  number: BigInt(number),
  timestamp: BigInt(Math.floor((start + madeAtMs - offMs) / 1000)),
})
const at = (mono: number, stepMs = 0) => ({
  now: () => start + mono + stepMs,
  monotonic: () => mono,
})
const asked = (askedAt: number) => ({ askedAt, answeredAt: askedAt + 20 })

describe('the clock beside a chain', () => {
  test('the difference is unknown before a new block was seen', () => {
    const clock = createClock()
    expect(aheadOf(at(0), { clock })).toEqual({ min: -Infinity, max: Infinity })
    // Made an hour ago: the chain mines rarely, or our clock is an hour ahead.
    observe(clock, block(7, -3_600_000), asked(0))
    observe(clock, block(7, -3_600_000), asked(15_000))
    const later = at(15_100)
    expect([skewOf(later, { clock }), mayBeAheadMs(later, { clock })]).toEqual([0, 0])
  })

  test('a block that appears between two answers limits the difference on both sides', () => {
    for (const offMs of [0, 8_000, 90_000, -90_000]) {
      const clock = createClock()
      observe(clock, block(1, -500, offMs), asked(0))
      observe(clock, block(20, 14_500, offMs), asked(15_000))
      const { min, max } = aheadOf(at(15_100), { clock })
      expect(min).toBeLessThanOrEqual(offMs)
      expect(max).toBeGreaterThanOrEqual(offMs)
      expect(max - min).toBeLessThan(17_000)
    }
  })

  test('an announced block limits the difference by the delay of announcements', () => {
    const clock = createClock()
    observe(clock, block(1, -3_600_000), asked(0))
    announced(clock, block(2, 600_000, 8_000), 600_050)
    const { min, max } = aheadOf(at(600_100), { clock })
    expect(min).toBeGreaterThan(4_500)
    expect(max).toBeLessThan(9_500)
    // The next observe shows the same block.
    observe(clock, block(2, 600_000, 8_000), asked(610_000))
    expect(aheadOf(at(610_100), { clock })).toEqual({ min, max })
  })

  test('a change of the wall clock shows at once, without a block', () => {
    const clock = createClock()
    announced(clock, block(2, 600), 650)
    expect(skewOf(at(700), { clock })).toBe(0)
    expect(skewOf(at(800, 3_600_000), { clock })).toBeGreaterThan(3_590_000)
    expect(skewOf(at(900, -3_600_000), { clock })).toBeLessThan(-3_590_000)
    expect(skewOf(at(1_000), { clock })).toBe(0)
  })

  test('a lagging node or a single contradicting block has no lasting effect', () => {
    const clock = createClock()
    for (let n = 1; n <= 4; n++) announced(clock, block(n, n * 1_000), n * 1_000 + 50)
    announced(clock, block(70, 70_000), 70_050)
    // As a new block it would prove that the clock is a minute ahead.
    observe(clock, block(2, 2_000), asked(75_000))
    expect(skewOf(at(75_100), { clock })).toBe(0)
    announced(clock, block(71, 75_500, -500_000), 75_600)
    expect(skewOf(at(75_700), { clock })).toBeLessThan(-490_000)
    announced(clock, block(72, 76_500), 76_600)
    expect(skewOf(at(76_700), { clock })).toBe(0)
  })
})
