import { expect, test } from 'bun:test'
import * as Address from '../../src/protocol/Address'

const checksummed = '0x5fc5360D0400a0Fd4f2af552ADD042D716F1d168'

test('any case parses to the checksummed address', () => {
  expect(Address.parse(checksummed)).toBe(checksummed)
  expect(Address.parse(checksummed.toLowerCase())).toBe(checksummed)
  expect(Address.parse(`0x${checksummed.slice(2).toUpperCase()}`)).toBe(checksummed)
  expect(Address.equal(checksummed, checksummed.toLowerCase())).toBe(true)
  expect(Address.equal(checksummed, Address.zero)).toBe(false)
})

test('the strict parser accepts one case or the right checksum', () => {
  expect(Address.parseStrict(checksummed)).toBe(checksummed)
  expect(Address.parseStrict(checksummed.toLowerCase())).toBe(checksummed)
  expect(Address.parseStrict(`0x${checksummed.slice(2).toUpperCase()}`)).toBe(checksummed)
})

test('error: a wrong checksum is refused by the strict parser', () => {
  const wrong = checksummed.replace('D0400', 'd0400')
  expect(Address.parseStrict(wrong)).toBeUndefined()
  expect(Address.parse(wrong)).toBe(checksummed)
})

test('error: a text that is not an address is refused', () => {
  const digits = checksummed.slice(2)
  const hostile = [
    digits,
    `0X${digits}`,
    `0x${digits}0`,
    `0x${digits.slice(1)}`,
    `0xg${digits.slice(1)}`,
  ]
  for (const value of [...hostile, `${checksummed}\n`, '', null, 5, {}, [checksummed]]) {
    expect(Address.parse(value)).toBeUndefined()
  }
})
