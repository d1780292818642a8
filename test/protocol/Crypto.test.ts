import { expect, test } from 'bun:test'
import { getAddress, keccak256 as viemKeccak } from 'viem'
import { privateKeyToAccount, sign as viemSign } from 'viem/accounts'
import * as Crypto from '../../src/protocol/Crypto'
import { random, randomHex } from './random'

const order = 0xfffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141n

function withHighS(signature: string): string {
  const s = order - BigInt(`0x${signature.slice(66, 130)}`)
  const v = signature.endsWith('1b') ? '1c' : '1b'
  return `${signature.slice(0, 66)}${s.toString(16).padStart(64, '0')}${v}`
}

test('keccak256 equals that of viem, also interleaved', () => {
  const next = random(1)
  for (let size = 0; size < 300; size += 7) {
    const data = randomHex(next, size)
    expect(Crypto.hex(Crypto.keccak256(Crypto.bytes(data)))).toBe(viemKeccak(data))
  }
})

test('checksums equal those of viem', () => {
  const next = random(2)
  for (let run = 0; run < 200; run++) {
    const address = randomHex(next, 20)
    expect(Crypto.checksum(address.slice(2))).toBe(getAddress(address))
  }
})

test('addresses and signatures equal those of viem', async () => {
  const next = random(3)
  for (let run = 0; run < 20; run++) {
    const privateKey = randomHex(next, 32)
    const hash = randomHex(next, 32)
    const account = privateKeyToAccount(privateKey)
    const signature = Crypto.sign(Crypto.bytes(hash), Crypto.bytes(privateKey))
    expect(signature).toBe(await viemSign({ hash, privateKey, to: 'hex' }))
    expect(Crypto.addressOf(Crypto.bytes(privateKey))).toBe(account.address)
    expect(Crypto.recover(Crypto.bytes(hash), signature)).toBe(account.address)
  }
})

test('v is accepted as 27/28 and as 0/1', () => {
  const digest = Crypto.keccak256('x')
  const key = Crypto.bytes('11'.repeat(32))
  const signature = Crypto.sign(digest, key)
  const bare = `${signature.slice(0, 130)}${signature.endsWith('1b') ? '00' : '01'}` as const
  expect(Crypto.recover(digest, bare)).toBe(Crypto.addressOf(key))
  expect(Crypto.withCanonicalV(bare as `0x${string}`)).toBe(signature)
  expect(Crypto.withCanonicalV(signature)).toBe(signature)
})

test('error: anything but a canonical 65-byte signature recovers nothing', () => {
  const digest = Crypto.keccak256('x')
  const signature = Crypto.sign(digest, Crypto.bytes('11'.repeat(32)))
  const body = signature.slice(0, 130)
  const zero = '00'.repeat(32)
  for (const hostile of [
    withHighS(signature),
    `${body}02`,
    `${body}1d`,
    `${body}25`,
    `${body}ff`,
    body,
    `${signature}00`,
    signature.slice(2),
    `0x${zero}${signature.slice(66)}`,
    `${signature.slice(0, 66)}${zero}1b`,
    `0x${order.toString(16)}${signature.slice(66)}`,
    `0x${'ff'.repeat(64)}1b`,
    `0X${signature.slice(2)}`,
    `${signature.slice(0, 131)}g`,
    '',
    '0x',
  ]) {
    expect(Crypto.recover(digest, hostile)).toBeUndefined()
  }
  expect(Crypto.recover(digest.subarray(1), signature)).toBeUndefined()
})

test('error: keys and digests of the wrong size throw', () => {
  expect(() => Crypto.addressOf(new Uint8Array(32))).toThrow()
  expect(() => Crypto.sign(new Uint8Array(31), Crypto.bytes('11'.repeat(32)))).toThrow()
  expect(() => Crypto.sign(new Uint8Array(32), Crypto.bytes('ff'.repeat(32)))).toThrow()
})

test('only a low s with v as 27 or 28 is canonical', () => {
  const signature = Crypto.sign(Crypto.keccak256('a'), Crypto.bytes('11'.repeat(32)))
  expect(Crypto.isCanonical(signature)).toBe(true)
  const body = signature.slice(0, 130)
  for (const other of [`${body}00`, `${body}01`, `${body}1d`, withHighS(signature), body])
    expect(Crypto.isCanonical(other)).toBe(false)
})

test('equal compares texts', () => {
  expect(Crypto.equal('abc', 'abc')).toBe(true)
  expect(Crypto.equal('abc', 'abd')).toBe(false)
  expect(Crypto.equal('abc', 'ab')).toBe(false)
  expect(Crypto.equal('ab', 'abc')).toBe(false)
})
