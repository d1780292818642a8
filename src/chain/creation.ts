import type { Address, Hex } from 'viem'
import * as Abi from '../protocol/Abi'
import type { Call } from './multicall'
import { createdBy } from './transaction'

/**
 * The init code of a contract creation makes several calls and deploys no code: all calls succeed,
 * or the transaction reverts. The address of the creation belongs to one nonce of one account. So
 * no other account can act under it, and a reader of the chain cannot use a signature for this
 * address. Calls through Multicall3 would come from an address that every account can use.
 */

const op = {
  and: '16',
  isZero: '15',
  codeCopy: '39',
  codeSize: '3b',
  returnSize: '3d',
  returnCopy: '3e',
  jumpIf: '57',
  gas: '5a',
  jumpTarget: '5b',
  call: 'f1',
  revert: 'fd',
  stop: '00',
}
const zero = '6000'

/** Bytes of one call before its calldata. */
const stepBytes = 83

/** The transaction that makes the calls from the address `to`. At most 65,535 bytes. */
export function create(
  sender: { address: Address; nonce: number },
  calls: readonly Call[],
): { to: Address; data: Hex; isCreation: true } {
  const to = createdBy(sender.address, sender.nonce)
  return { to, data: initCode(calls), isCreation: true }
}

/** Init code that makes the calls in order and reverts with the data of the first failure. */
export function initCode(calls: readonly Call[]): Hex {
  let offset = calls.length * stepBytes + 1
  let steps = ''
  let payloads = ''
  for (const [index, { to, data }] of calls.entries()) {
    const payload = data.slice(2).toLowerCase()
    const size = payload.length / 2
    steps += step(index * stepBytes, to, { offset, size })
    payloads += payload
    offset += size
  }
  return `0x${steps}${op.stop}${payloads}`
}

/** A call to an address without code would succeed without effect, so it counts as failed. */
function step(start: number, to: Address, data: { offset: number; size: number }): string {
  const [offset, size] = [push2(data.offset), push2(data.size)]
  const target = `73${to.slice(2).toLowerCase()}`
  const after = push2(start + stepBytes - 1)
  return [
    [size, offset, zero, op.codeCopy],
    [zero, zero, size, zero, zero, target, op.gas, op.call],
    [target, op.codeSize, op.isZero, op.isZero, op.and],
    [after, op.jumpIf],
    [op.returnSize, zero, zero, op.returnCopy, op.returnSize, zero, op.revert],
    [op.jumpTarget],
  ]
    .flat()
    .join('')
}

function push2(value: number): string {
  return `61${Abi.uint(value).slice(-4)}`
}
