import type { Address, Hex } from 'viem'
import * as Abi from '../protocol/Abi'
import { type Call, method } from './multicall'

/** EIP-3009: whether the nonce is used or cancelled. */
export const authorizationState = method<[payer: Address, nonce: Hex]>(
  'authorizationState(address,bytes32)',
)

export const balanceOf = method<[holder: Address]>('balanceOf(address)')

export const allowance = method<[owner: Address, spender: Address]>('allowance(address,address)')

export const approve = method<[spender: Address, amountAtomic: bigint]>('approve(address,uint256)')

export const transfer = method<[to: Address, amountAtomic: bigint]>('transfer(address,uint256)')

/** Whether all transfers are stopped, of the tokens that can stop them. */
export const paused = method('paused()')

/** EIP-2612: the nonce of the owner's next permit. */
export const nonces = method<[owner: Address]>('nonces(address)')

export const domainSeparator = method('DOMAIN_SEPARATOR()')

const selectorIsValid = Abi.selector('isValidSignature(bytes32,bytes)')

/** ERC-1271. */
export function isValidSignature(wallet: Address, digest: Uint8Array, signature: Hex): Call {
  const words = digest.toHex() + Abi.uint(64) + Abi.dynamicBytes(signature)
  return { to: wallet, data: `0x${selectorIsValid}${words}` }
}

/** Whether the answer to `isValidSignature` means yes. Code that returns its input has not said so. */
export function isMagic(data: Hex): boolean {
  return data.slice(2, 66) === selectorIsValid.padEnd(64, '0')
}
