import type { Address, Hex } from 'viem'
import * as Abi from '../protocol/Abi'

/** Multicall3, at the same address on every chain. github.com/mds1/multicall3 */
export const multicallAddress: Address = '0xcA11bde05977b3631167028862bE2a173976CA11'

/** `isRequired`: when it fails, all calls fail. */
export type Call = { to: Address; data: Hex; isRequired?: boolean }
export type Result = { success: boolean; data: Hex }

/**
 * A function of contracts by its signature: makes calls of a contract. Arguments are integers,
 * addresses, and words as hex with prefix.
 */
export function method<Args extends readonly (Hex | bigint | number)[] = []>(signature: string) {
  const selector = Abi.selector(signature)
  return (to: Address, ...args: Args): Call => {
    let words = ''
    for (const arg of args) {
      if (typeof arg !== 'string') words += Abi.uint(arg)
      else words += arg.length === addressLength ? Abi.address(arg) : arg.slice(2)
    }
    return { to, data: `0x${selector}${words}` }
  }
}

const addressLength = 42

const selectorAggregate = Abi.selector('aggregate3((address,bool,bytes)[])')
const ethBalance = method<[holder: Address]>('getEthBalance(address)')

/** Timestamp of the block in which the other calls run. */
export const timestampCall = method('getCurrentBlockTimestamp()')(multicallAddress)

/** Base fee of that block in wei. Some nodes answer 0 to calls without a gas price. */
export const baseFeeCall = method('getBasefee()')(multicallAddress)

/**
 * Number of the block in which the other calls run. The second call is ArbSys: on Arbitrum chains
 * the EVM's own block number is that of L1. Other chains have no contract there.
 * docs.arbitrum.io/build-decentralized-apps/arbitrum-vs-ethereum/block-numbers-and-time
 */
export const blockNumberCalls: readonly Call[] = [
  method('getBlockNumber()')(multicallAddress),
  method('arbBlockNumber()')('0x0000000000000000000000000000000000000064'),
]

/**
 * The block number in the results of `blockNumberCalls`, which must come first; undefined without
 * one.
 */
export function blockNumberOf([own, arbitrum]: readonly Result[]): bigint | undefined {
  for (const result of [arbitrum, own]) {
    const number = result?.success ? Abi.uintAt(result.data.slice(2)) : undefined
    if (number !== undefined) return number
  }
  return undefined
}

/** Native coin of an address, in wei. */
export function nativeBalance(holder: Address): Call {
  return ethBalance(multicallAddress, holder)
}

/** `aggregate3` in which each call may fail on its own. */
export function aggregate(calls: readonly Call[]): Call {
  const tuples = calls.map(
    ({ to, data, isRequired }) =>
      Abi.address(to) + Abi.uint(isRequired ? 0 : 1) + Abi.uint(3 * 32) + Abi.dynamicBytes(data),
  )
  let offset = calls.length * 32
  let heads = ''
  for (const tuple of tuples) {
    heads += Abi.uint(offset)
    offset += tuple.length / 2
  }
  const body = Abi.uint(32) + Abi.uint(calls.length) + heads + tuples.join('')
  return { to: multicallAddress, data: `0x${selectorAggregate}${body}` }
}

/**
 * Results of `aggregate3`. Undefined for other bytes, such as those from an address without code.
 */
export function parseResults(data: unknown, count: number): Result[] | undefined {
  if (typeof data !== 'string') return undefined
  const body = data.slice(2)
  if (numberAt(body, 0) !== 32 || numberAt(body, 32) !== count) return undefined
  const results: Result[] = []
  for (let index = 0; index < count; index++) {
    const start = 64 + numberAt(body, 64 + index * 32)
    const success = numberAt(body, start)
    const at = start + numberAt(body, start + 32)
    const content = sliceAt(body, at + 32, numberAt(body, at))
    if (content === undefined || (success !== 0 && success !== 1)) return undefined
    results.push({ success: success === 1, data: `0x${content}` })
  }
  return results
}

/** The calls inside an `aggregate3`; undefined for other calldata. */
export function parseCalls(to: Address, data: string): Call[] | undefined {
  if (to.toLowerCase() !== multicallAddress.toLowerCase()) return undefined
  if (data.slice(2, 10).toLowerCase() !== selectorAggregate) return undefined
  const body = data.slice(10)
  const list = numberAt(body, 0)
  const count = numberAt(body, list)
  if (!(count <= 1024)) return undefined
  const calls: Call[] = []
  for (let index = 0; index < count; index++) {
    const start = list + 32 + numberAt(body, list + 32 + index * 32)
    const target = Abi.addressAt(sliceAt(body, start, 32)?.toLowerCase() ?? '')
    const at = start + numberAt(body, start + 64)
    const content = sliceAt(body, at + 32, numberAt(body, at))
    if (target === undefined || content === undefined) return undefined
    calls.push({ to: target, data: `0x${content}` })
  }
  return calls
}

// Offsets are bytes. NaN, which no comparison accepts, means that a value is missing.

function numberAt(body: string, offset: number): number {
  const word = sliceAt(body, offset, 32)
  const value = word === undefined ? Number.NaN : Number.parseInt(word, 16)
  return value <= body.length ? value : Number.NaN
}

function sliceAt(body: string, offset: number, size: number): string | undefined {
  const content = body.slice(offset * 2, (offset + size) * 2)
  return content.length === size * 2 && offset >= 0 ? content : undefined
}
