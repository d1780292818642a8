import type { Address, Hex } from 'viem'
import * as Abi from '../protocol/Abi'
import * as Permit from '../protocol/Permit'
import * as Upto from '../protocol/Upto'
import type { Call } from './multicall'

const selectorNonceBitmap = Abi.selector('nonceBitmap(address,uint256)')
const selectorPermit2 = Abi.selector('PERMIT2()')

/** The word of 256 nonces that contains the bit of this nonce. */
export function nonceBitmap(owner: Address, nonce: Hex): Call {
  const words = Abi.address(owner) + Abi.uint(BigInt(nonce) >> 8n)
  return { to: Permit.permit2Address, data: `0x${selectorNonceBitmap}${words}` }
}

/** Whether the word says that the nonce is used or invalidated. */
export function isUsed(word: bigint, nonce: Hex): boolean {
  return ((word >> (BigInt(nonce) & 0xffn)) & 1n) === 1n
}

/** The address of Permit2 in the proxy of a transfer; fails where the proxy is not deployed. */
export function proxyPermit2Of({ upto }: Pick<Permit.Signed, 'upto'>): Call {
  const to = upto === undefined ? Permit.proxyAddress : Upto.proxyAddress
  return { to, data: `0x${selectorPermit2}` }
}
