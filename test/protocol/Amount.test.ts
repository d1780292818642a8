import { expect, test } from 'bun:test'
import * as Amount from '../../src/protocol/Amount'

test('decimals convert both ways', () => {
  expect(Amount.fromDecimal('0.005', 6)).toBe(5000n)
  expect(Amount.fromDecimal('1000', 6)).toBe(1000000000n)
  expect(Amount.fromDecimal('1', 0)).toBe(1n)
  expect(Amount.toDecimal(5000n, 6)).toBe('0.005000')
  expect(Amount.toDecimal(0n, 6)).toBe('0.000000')
  expect(Amount.toDecimal(1234567n, 6)).toBe('1.234567')
  expect(Amount.toDecimal(7n, 0)).toBe('7')
})

test('error: decimals with too many places, signs or exponents throw', () => {
  for (const text of ['0.0000001', '-1', '1e3', '.5', '1.', '', ' 1', '1,5', '0x1', 'NaN', '01']) {
    expect(() => Amount.fromDecimal(text, 6)).toThrow(RangeError)
  }
  expect(() => Amount.fromDecimal('1'.repeat(80), 6)).toThrow(RangeError)
})
