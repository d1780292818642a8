import type { Address, Hex } from 'viem'
import * as Abi from '../protocol/Abi'
import { type Client, RpcError } from './client'

/** Multicall3, at the same address on every chain. github.com/mds1/multicall3 */
export const multicallAddress: Address = '0xcA11bde05977b3631167028862bE2a173976CA11'

/** `isRequired`: when it fails, all calls fail. */
export type Call = { to: Address; data: Hex; isRequired?: boolean }
export type Result = { success: boolean; data: Hex }

const aggregateSignature = 'aggregate3((address,bool,bytes)[])'
const selectorAggregate = Abi.selector(aggregateSignature)
const aggregate3 = Abi.method<[calls: Abi.Dynamic]>(aggregateSignature)
const ethBalance = Abi.method<[holder: Address]>('getEthBalance(address)')

/** Timestamp of the block in which the other calls run. */
export const timestampCall = Abi.method('getCurrentBlockTimestamp()')(multicallAddress)

/** Base fee of that block in wei. Some nodes answer 0 to calls without a gas price. */
export const baseFeeCall = Abi.method('getBasefee()')(multicallAddress)

/**
 * Number of the block in which the other calls run. The second call is ArbSys: on Arbitrum chains
 * the EVM's own block number is that of L1. Other chains have no contract there.
 * docs.arbitrum.io/build-decentralized-apps/arbitrum-vs-ethereum/block-numbers-and-time
 */
export const blockNumberCalls: readonly Call[] = [
  Abi.method('getBlockNumber()')(multicallAddress),
  Abi.method('arbBlockNumber()')('0x0000000000000000000000000000000000000064'),
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
  const tuples = calls.map(({ to, data, isRequired }) =>
    Abi.encode(to, isRequired ? 0 : 1, Abi.bytes(data)),
  )
  return aggregate3(multicallAddress, Abi.list(tuples))
}

/**
 * Results of `aggregate3`. Undefined for other bytes, such as those from an address without code.
 */
export function parseResults(data: unknown, count: number): Result[] | undefined {
  return typeof data === 'string' ? decodeResults(data.slice(2), count) : undefined
}

function decodeResults(body: string, count: number): Result[] | undefined {
  if (Abi.numberAt(body, 0) !== 32 || Abi.numberAt(body, 32) !== count) return undefined
  const results: Result[] = []
  for (let index = 0; index < count; index++) {
    const start = 64 + Abi.numberAt(body, 64 + index * 32)
    const success = Abi.numberAt(body, start)
    const content = Abi.bytesAt(body, start + Abi.numberAt(body, start + 32))
    if (content === undefined || (success !== 0 && success !== 1)) return undefined
    results.push({ success: success === 1, data: content })
  }
  return results
}

/** The calls inside an `aggregate3`; undefined for other calldata. */
export function parseCalls(to: Address, data: string): Call[] | undefined {
  if (to.toLowerCase() !== multicallAddress.toLowerCase()) return undefined
  if (data.slice(2, 10).toLowerCase() !== selectorAggregate) return undefined
  const body = data.slice(10)
  const list = Abi.numberAt(body, 0)
  const count = Abi.numberAt(body, list)
  if (!(count <= 1024)) return undefined
  const calls: Call[] = []
  for (let index = 0; index < count; index++) {
    const start = list + 32 + Abi.numberAt(body, list + 32 + index * 32)
    const target = Abi.addressAt(Abi.sliceAt(body, start, 32)?.toLowerCase() ?? '')
    const content = Abi.bytesAt(body, start + Abi.numberAt(body, start + 64))
    if (target === undefined || content === undefined) return undefined
    calls.push({ to: target, data: content })
  }
  return calls
}

/** Creation code is limited to 48 KiB (EIP-3860). */
const askedMax = 1_000

/**
 * The code of an account. `eoa`: no code. `contract`: code that was not identified. `unknown`: not
 * read. An identified code has a `key` that is equal for accounts that run the same code, so that
 * new accounts of one factory are recognised.
 */
export type AccountCode = 'eoa' | 'contract' | 'unknown' | IdentifiedCode

export type IdentifiedCode = { key: string }

export function isIdentified(code: AccountCode): code is IdentifiedCode {
  return typeof code === 'object'
}

/** Whether the account is known to have code. */
export function isContract(code: AccountCode): boolean {
  return code === 'contract' || isIdentified(code)
}

/**
 * Creation code that returns, for each address in the words after it, the size of its code. The
 * return value of a call without receiver is not deployed.
 *
 * size = CODESIZE - 36; CODECOPY(0, 36, size); for (i = 0; i < size; i += 32) MSTORE(i,
 * EXTCODESIZE(MLOAD(i))); RETURN(0, size)
 */
const program = '6024380380602460003960005b81811015601f5780513b8152602001600c565b506000f3'

/**
 * Creation code that returns size, hash and first word of the code of the address behind it, time and
 * base fee of the block, then what Multicall3 returns for the calldata behind that. It reverts with the
 * data of Multicall3.
 *
 * CODECOPY(0, length, 32); a = MLOAD(0); MSTORE(0, EXTCODESIZE(a)); MSTORE(32, EXTCODEHASH(a));
 * EXTCODECOPY(a, 64, 0, 32); MSTORE(96, TIMESTAMP); MSTORE(128, BASEFEE); size = CODESIZE - length - 32;
 * CODECOPY(160, length + 32, size); ok = CALL(GAS, Multicall3, 0, 160, size, 0, 0);
 * RETURNDATACOPY(160, 0, RETURNDATASIZE);
 * if (ok) RETURN(0, 160 + RETURNDATASIZE) else REVERT(160, RETURNDATASIZE)
 */
const codeProgram = [
  '60206064600039600051803b600052803f602052602060006040833c504260605248608052',
  '6084380380608460a039600060008260a0600073',
  multicallAddress.slice(2).toLowerCase(),
  '5af13d600060a03e605c573d60a0fd5b3d60a0016000f3',
].join('')

/** Number of words before the results of Multicall3. */
const codeWords = 5

/**
 * The addresses without code, in one call; undefined when the node does not run creation code, which
 * the code of Multicall3 shows. Throws RpcFault.
 */
export async function findMissing(
  client: Pick<Client, 'call'>,
  addresses: readonly Address[],
): Promise<ReadonlySet<Address> | undefined> {
  const asked = [...addresses, multicallAddress]
  try {
    const missing = emptyOf(asked, await client.call('eth_call', [callOf(asked), 'latest']))
    return missing?.has(multicallAddress) ? undefined : missing
  } catch (error) {
    if (!(error instanceof RpcError)) throw error
    return undefined
  }
}

/** Init code of a call without receiver that reads a payer's code, and then makes the calls. */
export function aggregateWithCode(payer: Address, calls: readonly Call[]): Hex {
  return `0x${codeProgram}${Abi.address(payer)}${aggregate(calls).data.slice(2)}`
}

/**
 * Results of `aggregateWithCode`, the payer's code, and time and base fee of the block; undefined for an
 * invalid answer.
 */
export function parseWithCode(
  answer: unknown,
  count: number,
):
  | { code: 'eoa' | IdentifiedCode; timestamp: bigint; baseFeeWei: bigint; results: Result[] }
  | undefined {
  if (typeof answer !== 'string' || answer.length < 2 + codeWords * 64) return undefined
  const body = answer.slice(2)
  const results = decodeResults(body.slice(codeWords * 64), count)
  const [hash, first] = [body.slice(64, 128), body.slice(128, 192)]
  const code = Abi.uintAt(body) === 0n ? 'eoa' : { key: keyOf(hash, first) }
  const [timestamp, baseFeeWei] = [Abi.uintAt(body, 3), Abi.uintAt(body, 4)]
  if (results === undefined || timestamp === undefined || baseFeeWei === undefined) return undefined
  return { code, timestamp, baseFeeWei, results }
}

/**
 * A delegation (EIP-7702) is 0xef0100 and the address. A minimal proxy (EIP-1167) names its
 * contract after ten bytes. The bytes after that may differ in every wallet.
 */
function keyOf(hash: string, first: string): string {
  const text = first.toLowerCase()
  if (text.startsWith('ef0100')) return `delegate ${text.slice(6, 46)}`
  if (text.startsWith('363d3d373d3d3d363d73')) return `proxy ${text.slice(20, 60)}`
  return `hash ${hash}`
}

/** The addresses without code, in one call; none when the node does not support it. */
export async function findEoas(
  client: Pick<Client, 'call'>,
  addresses: readonly Address[],
): Promise<ReadonlySet<Address>> {
  try {
    const asked = addresses.slice(0, askedMax)
    return emptyOf(asked, await client.call('eth_call', [callOf(asked), 'latest'])) ?? new Set()
  } catch {
    return new Set()
  }
}

/** The call whose answer has the size of the code of each address. */
function callOf(addresses: readonly Address[]): { data: Hex } {
  return { data: `0x${program}${addresses.map(Abi.address).join('')}` }
}

/** The addresses whose size is 0; undefined for another answer. */
function emptyOf(addresses: readonly Address[], answer: unknown): Set<Address> | undefined {
  if (typeof answer !== 'string' || answer.length !== 2 + addresses.length * 64) return undefined
  const sizes = answer.slice(2)
  return new Set(addresses.filter((_, index) => Abi.uintAt(sizes, index) === 0n))
}
