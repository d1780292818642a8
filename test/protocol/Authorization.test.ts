import { describe, expect, test } from 'bun:test'
import { type Address, domainSeparator } from 'viem'
import * as Authorization from '../../src/protocol/Authorization'

const token: Address = '0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913'
const domainOf = (version: string, name: string) =>
  Authorization.domainSeparator(8453, token, { name, version })

/** What viem says. */
function expected(version: string, name: string): string {
  const domain = { name, version, chainId: 8453, verifyingContract: token }
  return domainSeparator({ domain }).slice(2)
}

describe('the domain of a token, which a caller of the facilitator may name', () => {
  test('attack: a version and a name that read like those of another token are not its domain', () => {
    for (const [version, name] of [
      ['1/A', 'B'],
      ['1', 'A/B'],
      ['1/A', 'B'],
    ] as const)
      expect(domainOf(version, name)).toBe(expected(version, name))
  })

  test('attack: names of a quarter of a megabyte are not kept', () => {
    const use = () => {
      Bun.gc(true)
      return process.memoryUsage().heapUsed
    }
    domainOf('1', 'x')
    const before = use()
    for (let count = 0; count < 80; count++) domainOf('1', `${count} ${'x'.repeat(250_000)}`)
    expect(use() - before).toBeLessThan(10_000_000)
  })
})
