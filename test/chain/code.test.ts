import { describe, expect, test } from 'bun:test'
import type { Address } from 'viem'
import { type Client, RpcError, RpcFault } from '../../src/chain/client'
import { findMissing } from '../../src/chain/multicall'
import { outcomeOf } from '../harness/outcome'

const full: Address = '0x1111111111111111111111111111111111111111'
const empty: Address = '0x2222222222222222222222222222222222222222'

/** A node that answers a call with the sizes of these codes. The last one is of Multicall3. */
function answering(...sizes: readonly number[]) {
  const words = sizes.map((size) => size.toString(16).padStart(64, '0'))
  return nodeOf(async () => `0x${words.join('')}`)
}

function nodeOf(answer: () => Promise<unknown>) {
  const calls: string[] = []
  const call: Client['call'] = (method) => {
    calls.push(method)
    return answer()
  }
  return { calls, call }
}

describe('the code of contracts', () => {
  test('one call finds the addresses without code', async () => {
    const node = answering(24, 0, 3_808)
    expect([...((await findMissing(node, [full, empty])) ?? [])]).toEqual([empty])
    expect(node.calls).toEqual(['eth_call'])
  })

  test('error: nothing is known from a node that does not run creation code', async () => {
    expect(await findMissing(answering(24, 0, 0), [full, empty])).toBeUndefined()
    expect(await findMissing(answering(24), [full, empty])).toBeUndefined()
    const refusing = nodeOf(() => Promise.reject(new RpcError(3, 'execution reverted', undefined)))
    expect(await findMissing(refusing, [full])).toBeUndefined()
  })

  test('error: a node that does not answer is a fault', async () => {
    const silent = nodeOf(() => Promise.reject(new RpcFault('no answer')))
    expect(await outcomeOf(findMissing(silent, [full]))).toThrow('no answer')
  })
})
