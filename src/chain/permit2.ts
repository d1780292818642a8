import type { Address, Hex } from 'viem'
import * as Abi from '../protocol/Abi'
import * as Permit from '../protocol/Permit'
import * as Upto from '../protocol/Upto'
import type { Call } from './multicall'

const bitmapOf = Abi.method<[owner: Address, position: bigint]>('nonceBitmap(address,uint256)')
const permit2Of = Abi.method('PERMIT2()')

/** The word of 256 nonces that contains the bit of this nonce. */
export function nonceBitmap(owner: Address, nonce: Hex): Call {
  return bitmapOf(Permit.permit2Address, owner, BigInt(nonce) >> 8n)
}

/** Whether the word says that the nonce is used or invalidated. */
export function isUsed(word: bigint, nonce: Hex): boolean {
  return ((word >> (BigInt(nonce) & 0xffn)) & 1n) === 1n
}

/** The address of Permit2 in the proxy of a transfer; fails where the proxy is not deployed. */
export function proxyPermit2Of({ upto }: Pick<Permit.Signed, 'upto'>): Call {
  return permit2Of(upto === undefined ? Permit.proxyAddress : Upto.proxyAddress)
}
