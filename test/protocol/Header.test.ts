import { expect, test } from 'bun:test'
import * as Header from '../../src/protocol/Header'

const json = { a: 'subjects?>>~~', b: '\u00fc\ud83d\ude00' }
const standard = Buffer.from(JSON.stringify(json)).toString('base64')
const url = Buffer.from(JSON.stringify(json)).toString('base64url')

test('both alphabets decode, with and without padding', () => {
  expect(standard).toMatch(/[+/]/)
  for (const value of [
    standard,
    standard.replace(/=+$/, ''),
    url,
    url + '='.repeat((4 - (url.length % 4)) % 4),
  ]) {
    expect(Header.decodeJson(value, 'either')).toEqual(json)
  }
  expect(Header.decodeJson(url, 'base64url')).toEqual(json)
  expect(Header.decodeJson(Header.encodeJson(json), 'either')).toEqual(json)
})

test('every length decodes', () => {
  for (let size = 0; size < 9; size++) {
    const value = { a: 'x'.repeat(size) }
    expect(Header.decodeJson(Header.encodeJson(value), 'either')).toEqual(value)
    expect(Header.decodeJson(Header.base64url(JSON.stringify(value)), 'base64url')).toEqual(value)
  }
})

test('error: junk, mixed alphabets and broken padding are refused', () => {
  const empty = 'e30'
  expect(Header.decodeJson(empty, 'base64url')).toEqual({})
  for (const value of [
    ...[
      '',
      '=',
      'e3',
      'e3=',
      'e31',
      'e30==',
      'e30===',
      '=e30',
      'e=30',
      'e30 ',
      ' e30',
      'e3\n0',
      'e30,',
    ],
    ...[
      'e30\u0000',
      'e3\u00300\u00e9',
      `${standard}!`,
      `${standard.slice(0, 4)}-${standard.slice(5)}`,
    ],
    'A',
    'AAAAA',
  ]) {
    expect(() => Header.decodeJson(value, 'either')).toThrow()
  }
  expect(() => Header.decodeJson(standard, 'base64url')).toThrow('base64url')
})

test('error: leftover bits are refused, one text has one encoding', () => {
  expect(() => Header.decodeJson('e31=', 'either')).toThrow('base64')
  expect(Header.decodeJson('e30=', 'either')).toEqual({})
})

test('error: invalid UTF-8 and byte order marks are refused', () => {
  const encode = (bytes: number[]) => Buffer.from(bytes).toString('base64')
  for (const bytes of [
    [0x7b, 0x22, 0xff, 0x22, 0x3a, 0x31, 0x7d],
    [0x7b, 0x22, 0xc0, 0xaf, 0x22, 0x3a, 0x31, 0x7d],
    [0x7b, 0x22, 0xed, 0xa0, 0x80, 0x22, 0x3a, 0x31, 0x7d],
    [0xef, 0xbb, 0xbf, 0x7b, 0x7d],
  ]) {
    expect(() => Header.decodeJson(encode(bytes), 'either')).toThrow()
  }
})

test('error: nothing longer than the cap is decoded', () => {
  const value = Header.encodeJson({ a: 'x'.repeat(Header.maxLength) })
  expect(() => Header.decodeJson(value, 'either')).toThrow('longer')
})
