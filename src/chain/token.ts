import type { Address, Hex } from 'viem'
import * as Abi from '../protocol/Abi'
import * as Crypto from '../protocol/Crypto'
import type { Transfer } from '../protocol/Transfer'
import { type Call, method } from './multicall'
import type { Log } from './receipt'

/** Event topics. */
export const transferTopic = topicOf('Transfer(address,address,uint256)')
export const authorizationUsedTopic = topicOf('AuthorizationUsed(address,bytes32)')

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

/** Whether the answer to `isValidSignature` means yes. */
export function isMagic(data: Hex): boolean {
  return data.slice(2, 10) === selectorIsValid
}

/** An indexed address as a topic. */
export function addressTopic(address: Address): Hex {
  return `0x${Abi.address(address)}`
}

type Sought = Pick<Transfer, 'asset' | 'payer' | 'payee' | 'amountAtomic'>

/** Whether a log is the token's Transfer of exactly this money. */
export function isTransfer(log: Log, transfer: Sought): boolean {
  return keyOf(log) === transferKey(transfer)
}

/** Amounts of the token's Transfers from one account to another, in the order of the logs. */
export function transfersOf(
  logs: readonly Log[],
  { token, from, to }: { token: Address; from: Address; to: Address },
): bigint[] {
  const parties = partiesOf(token, from, to)
  return logs.flatMap((log) => (keyOf(log)?.startsWith(parties) ? [BigInt(log.data)] : []))
}

/**
 * For each transfer the indexes of the Transfer logs of exactly this money. Equal transfers have the
 * same indexes: which of several equal logs is assigned to which of them does not matter.
 */
export function findTransfers(
  logs: readonly Log[],
  transfers: readonly Sought[],
): (readonly number[])[] {
  const found = new Map<string, number[]>()
  for (const log of logs) {
    const key = keyOf(log)
    if (key === undefined) continue
    const indexes = found.get(key)
    if (indexes) indexes.push(log.index)
    else found.set(key, [log.index])
  }
  return transfers.map((transfer) => found.get(transferKey(transfer)) ?? [])
}

/** Key that is equal for transfers whose Transfer logs cannot be distinguished. */
export function transferKey({ asset, payer, payee, amountAtomic }: Sought): string {
  return `${partiesOf(asset, payer, payee)}0x${Abi.uint(amountAtomic)}`
}

function partiesOf(token: Address, from: Address, to: Address): string {
  return `${token.toLowerCase()} 0x${Abi.address(from)} 0x${Abi.address(to)} `
}

/** The `transferKey` of a log; undefined for one that is not a Transfer. */
function keyOf({ address, topics, data }: Log): string | undefined {
  const [topic, from, to] = topics
  const isTransfer = topic === transferTopic && topics.length === 3 && data.length === 66
  return isTransfer ? `${address.toLowerCase()} ${from} ${to} ${data}` : undefined
}

function topicOf(signature: string): Hex {
  return Crypto.hex(Crypto.keccak256(signature))
}
