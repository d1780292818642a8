import type { Address, Hex } from 'viem'
import * as Abi from '../protocol/Abi'
import * as Crypto from '../protocol/Crypto'
import type { Transfer } from '../protocol/Transfer'
import type { Call } from './multicall'
import type { Log } from './receipt'

const selectors = {
  authorizationState: Abi.selector('authorizationState(address,bytes32)'),
  balanceOf: Abi.selector('balanceOf(address)'),
  approve: Abi.selector('approve(address,uint256)'),
  allowance: Abi.selector('allowance(address,address)'),
  nonces: Abi.selector('nonces(address)'),
  domainSeparator: Abi.selector('DOMAIN_SEPARATOR()'),
  transfer: Abi.selector('transfer(address,uint256)'),
  paused: Abi.selector('paused()'),
  isValidSignature: Abi.selector('isValidSignature(bytes32,bytes)'),
}

/** Event topics. */
export const transferTopic = topicOf('Transfer(address,address,uint256)')
export const authorizationUsedTopic = topicOf('AuthorizationUsed(address,bytes32)')

/** EIP-3009: whether the nonce is used or cancelled. */
export function authorizationState(token: Address, payer: Address, nonce: Hex): Call {
  return at(token, selectors.authorizationState + Abi.address(payer) + nonce.slice(2))
}

export function balanceOf(token: Address, holder: Address): Call {
  return at(token, selectors.balanceOf + Abi.address(holder))
}

export function allowance(token: Address, owner: Address, spender: Address): Call {
  return at(token, selectors.allowance + Abi.address(owner) + Abi.address(spender))
}

export function approve(token: Address, spender: Address, amountAtomic: bigint): Call {
  return at(token, selectors.approve + Abi.address(spender) + Abi.uint(amountAtomic))
}

export function transfer(token: Address, to: Address, amountAtomic: bigint): Call {
  return at(token, selectors.transfer + Abi.address(to) + Abi.uint(amountAtomic))
}

/** Whether all transfers are stopped, of the tokens that can stop them. */
export function paused(token: Address): Call {
  return at(token, selectors.paused)
}

/** EIP-2612: the nonce of the owner's next permit. */
export function nonces(token: Address, owner: Address): Call {
  return at(token, selectors.nonces + Abi.address(owner))
}

export function domainSeparator(token: Address): Call {
  return at(token, selectors.domainSeparator)
}

/** ERC-1271. */
export function isValidSignature(wallet: Address, digest: Uint8Array, signature: Hex): Call {
  const words = digest.toHex() + Abi.uint(64) + Abi.dynamicBytes(signature)
  return at(wallet, selectors.isValidSignature + words)
}

/** Whether the answer to `isValidSignature` means yes. */
export function isMagic(data: Hex): boolean {
  return data.slice(2, 10) === selectors.isValidSignature
}

/** An indexed address as a topic. */
export function addressTopic(address: Address): Hex {
  return `0x${Abi.address(address)}`
}

/** Whether a log is the token's Transfer of exactly this money. */
export function isTransfer(
  log: Log,
  transfer: Pick<Transfer, 'asset' | 'payer' | 'payee' | 'amountAtomic'>,
): boolean {
  return (
    log.address.toLowerCase() === transfer.asset.toLowerCase() &&
    log.topics.length === 3 &&
    log.topics[0] === transferTopic &&
    log.topics[1] === addressTopic(transfer.payer) &&
    log.topics[2] === addressTopic(transfer.payee) &&
    log.data.length === 66 &&
    BigInt(log.data) === transfer.amountAtomic
  )
}

/** Amounts of the token's Transfers from one account to another, in the order of the logs. */
export function transfersOf(
  logs: readonly Log[],
  { token, from, to }: { token: Address; from: Address; to: Address },
): bigint[] {
  return logs.flatMap((log) => {
    const isOne =
      log.address.toLowerCase() === token.toLowerCase() &&
      log.topics.length === 3 &&
      log.topics[0] === transferTopic &&
      log.topics[1] === addressTopic(from) &&
      log.topics[2] === addressTopic(to) &&
      log.data.length === 66
    return isOne ? [BigInt(log.data)] : []
  })
}

/** A call from a selector and words without prefix. */
export function at(to: Address, words: string): Call {
  return { to, data: `0x${words}` }
}

function topicOf(signature: string): Hex {
  return Crypto.hex(Crypto.keccak256(signature))
}

type Sought = Pick<Transfer, 'asset' | 'payer' | 'payee' | 'amountAtomic'>

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
    const [topic, payer, payee] = log.topics
    if (topic !== transferTopic || log.topics.length !== 3 || log.data.length !== 66) continue
    const key = `${log.address.toLowerCase()} ${payer} ${payee} ${log.data}`
    const indexes = found.get(key)
    if (indexes) indexes.push(log.index)
    else found.set(key, [log.index])
  }
  return transfers.map((transfer) => found.get(transferKey(transfer)) ?? [])
}

/** Key that is equal for transfers whose Transfer logs cannot be distinguished. */
export function transferKey({ asset, payer, payee, amountAtomic }: Sought): string {
  const data = amountAtomic.toString(16).padStart(64, '0')
  const [from, to] = [addressTopic(payer), addressTopic(payee)]
  return `${asset.toLowerCase()} ${from} ${to} 0x${data}`
}
