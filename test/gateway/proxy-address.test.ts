import { describe, expect, test } from 'bun:test'
import { isIP } from 'node:net'
import fc from 'fast-check'
import * as Ip from '../../src/net/Ip'
import { createResolver } from '../../src/net/resolve'
import { ipVersion } from '../../src/net/runtime'
import { outcomeOf } from '../harness/outcome'

const refused = [
  '0.0.0.0',
  '0.1.2.3',
  '10.0.0.1',
  '10.255.255.255',
  '100.64.0.1',
  '100.100.100.200',
  '100.127.255.255',
  '127.0.0.1',
  '127.255.255.254',
  '168.63.129.16',
  '169.254.169.254',
  '172.16.0.1',
  '172.31.255.255',
  '192.0.0.192',
  '192.0.2.1',
  '192.88.99.1',
  '192.168.1.1',
  '198.18.0.1',
  '198.19.255.255',
  '198.51.100.7',
  '203.0.113.7',
  '224.0.0.1',
  '239.255.255.255',
  '240.0.0.1',
  '255.255.255.255',
  '::',
  '::1',
  '::127.0.0.1',
  '::ffff:127.0.0.1',
  '::ffff:8.8.8.8',
  '::ffff:0:8.8.8.8',
  '::ffff:7f00:1',
  '64:ff9b::7f00:1',
  '64:ff9b::8.8.8.8',
  '64:ff9b:1::1',
  '100::1',
  '2001::1',
  '2001:0:4136:e378:8000:63bf:3fff:fdd2',
  '2001:10::1',
  '2001:1ff::1',
  '2001:db8::1',
  '2002:7f00:1::1',
  '3fff::1',
  '3fff:fff::1',
  '4000::1',
  '5f00::1',
  'fc00::1',
  'fd00:ec2::254',
  'fe80::1',
  'fe80::1%eth0',
  '2606:4700::1%eth0',
  'fec0::1',
  'ff02::1',
  '',
  'localhost',
  '2130706433',
  '0x7f000001',
  '0177.0.0.1',
  '127.1',
  '8.8.8.8 ',
  '8.8.8.8:80',
  '[::1]',
]
const allowed = [
  '1.1.1.1',
  '8.8.8.8',
  '9.255.255.255',
  '11.0.0.0',
  '100.63.255.255',
  '100.128.0.0',
  '172.15.255.255',
  '172.32.0.0',
  '192.0.1.1',
  '198.17.255.255',
  '198.20.0.0',
  '223.255.255.255',
  '2001:200::1',
  '2001:4860:4860::8888',
  '2606:4700:4700::1111',
  '2a00:1450:4001:81b::200e',
  '3ffe::1',
]

describe('isPublic', () => {
  test.each(refused)('error: %j is no public address', (address) => {
    expect(Ip.isPublic(address)).toBe(false)
  })
  test.each(allowed)('%s is a public address', (address) => {
    expect(Ip.isPublic(address)).toBe(true)
  })
})

describe('createResolver', () => {
  test('an answer is cached for 30 s, concurrent lookups are one, an address resolves to itself', async () => {
    let now = 1_000
    const asked: string[] = []
    const resolve = createResolver({
      now: () => now,
      resolve: async (hostname) => {
        asked.push(hostname)
        return [`8.8.8.${asked.length}`]
      },
    })
    expect(await Promise.all([resolve('a.test'), resolve('a.test')])).toEqual([
      ['8.8.8.1'],
      ['8.8.8.1'],
    ])
    now += 29_999
    expect(await resolve('a.test')).toEqual(['8.8.8.1'])
    expect(await resolve('b.test')).toEqual(['8.8.8.2'])
    now += 1
    expect(await resolve('a.test')).toEqual(['8.8.8.3'])
    expect(await resolve('127.0.0.1')).toEqual(['127.0.0.1'])
    expect(await resolve('::1')).toEqual(['::1'])
    expect(asked).toEqual(['a.test', 'b.test', 'a.test'])
  })

  test('error: a failure is cached for 2 s only', async () => {
    let now = 1_000
    let count = 0
    const resolve = createResolver({
      now: () => now,
      resolve: async () => {
        count++
        if (count === 1) throw new Error('no such name')
        return ['8.8.8.8']
      },
    })
    expect(await outcomeOf(resolve('a.test'))).toThrow('no such name')
    now += 1_999
    expect(await outcomeOf(resolve('a.test'))).toThrow('no such name')
    now += 1
    expect(await resolve('a.test')).toEqual(['8.8.8.8'])
  })
})

test('the version of an address is that of the runtime, for addresses and what resembles one', () => {
  const part = fc.oneof(
    fc.nat(300).map(String),
    fc.constantFrom('00', '01', '1 ', '', 'a', '%1', '\n'),
  )
  const dotted = fc.array(part, { minLength: 3, maxLength: 5 }).map((parts) => parts.join('.'))
  const text = fc.oneof(dotted, fc.ipV4(), fc.ipV6(), fc.domain(), fc.string())
  const ending = fc.constantFrom('', '', '', '%eth0', ':80', ' ', '\n', '.')
  fc.assert(
    fc.property(text, ending, (start, end) => {
      expect(ipVersion(start + end)).toBe(isIP(start + end))
    }),
    { numRuns: 3_000 },
  )
})
