import type { Address, Hex } from 'viem'
import * as Abi from '../protocol/Abi'
import type { Call } from './multicall'

/** EIP-3009: whether the nonce is used or cancelled. */
export const authorizationState = Abi.method<[payer: Address, nonce: Hex]>(
  'authorizationState(address,bytes32)',
)

export const balanceOf = Abi.method<[holder: Address]>('balanceOf(address)')

export const allowance = Abi.method<[owner: Address, spender: Address]>(
  'allowance(address,address)',
)

export const approve = Abi.method<[spender: Address, amountAtomic: bigint]>(
  'approve(address,uint256)',
)

export const transfer = Abi.method<[to: Address, amountAtomic: bigint]>('transfer(address,uint256)')

/** Whether all transfers are stopped, of the tokens that can stop them. */
export const paused = Abi.method('paused()')

/** EIP-2612: the nonce of the owner's next permit. */
export const nonces = Abi.method<[owner: Address]>('nonces(address)')

export const domainSeparator = Abi.method('DOMAIN_SEPARATOR()')

const isValid = Abi.method<[digest: Hex, signature: Abi.Dynamic]>('isValidSignature(bytes32,bytes)')
/** The answer that means yes is the selector of the function. */
const magic = Abi.selector('isValidSignature(bytes32,bytes)').padEnd(64, '0')

/** ERC-1271. */
export function isValidSignature(wallet: Address, digest: Uint8Array, signature: Hex): Call {
  return isValid(wallet, `0x${digest.toHex()}`, Abi.bytes(signature))
}

/** Whether the answer to `isValidSignature` means yes. Code that returns its input has not said so. */
export function isMagic(data: Hex): boolean {
  return data.slice(2, 66) === magic
}
