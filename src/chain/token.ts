import type { Address, Hex } from 'viem'
import * as Abi from '../protocol/Abi'
import type { Transfer } from '../protocol/Transfer'
import type { Call } from './multicall'
import * as Permit2 from './permit2'

/** EIP-3009: whether the nonce is used or cancelled. */
export const authorizationState = Abi.method<[payer: Address, nonce: Hex]>(
  'authorizationState(address,bytes32)',
)

type Signed = Pick<Transfer, 'method' | 'asset' | 'payer' | 'nonce'>

/** The read that tells whether the nonce of a transfer is used. */
export function nonceCall({ method, asset, payer, nonce }: Signed): Call {
  return method === 'permit2'
    ? Permit2.nonceBitmap(payer, nonce)
    : authorizationState(asset, payer, nonce)
}

/** Decodes the read of the nonce; undefined without a word. */
export function isNonceUsed(
  { method, nonce }: Pick<Signed, 'method' | 'nonce'>,
  word: bigint | undefined,
): boolean | undefined {
  if (word === undefined) return undefined
  return method === 'permit2' ? Permit2.isUsed(word, nonce) : word !== 0n
}

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
