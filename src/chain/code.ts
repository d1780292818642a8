import type { Address, Hex } from 'viem'
import * as Abi from '../protocol/Abi'
import { type Client, RpcError } from './client'
import * as Multicall from './multicall'

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
 * Creation code that returns size, hash and first word of the code of the address behind it, then what
 * Multicall3 returns for the calldata behind that. It reverts with the data of Multicall3.
 *
 * CODECOPY(0, length, 32); a = MLOAD(0); MSTORE(0, EXTCODESIZE(a)); MSTORE(32, EXTCODEHASH(a));
 * EXTCODECOPY(a, 64, 0, 32); size = CODESIZE - length - 32; CODECOPY(96, length + 32, size);
 * ok = CALL(GAS, Multicall3, 0, 96, size, 0, 0); RETURNDATACOPY(96, 0, RETURNDATASIZE);
 * if (ok) RETURN(0, 96 + RETURNDATASIZE) else REVERT(96, RETURNDATASIZE)
 */
const codeProgram = [
  '6020605c600039600051803b600052803f602052602060006040833c50',
  '607c380380607c60603960006000826060600073',
  Multicall.multicallAddress.slice(2).toLowerCase(),
  '5af13d600060603e6054573d6060fd5b3d6060016000f3',
].join('')

/** Number of words before the results of Multicall3. */
const codeWords = 3

/**
 * The addresses without code, in one call; undefined when the node does not run creation code, which
 * the code of Multicall3 shows. Throws RpcFault.
 */
export async function findMissing(
  client: Pick<Client, 'call'>,
  addresses: readonly Address[],
): Promise<ReadonlySet<Address> | undefined> {
  const asked = [...addresses, Multicall.multicallAddress]
  try {
    const missing = emptyOf(asked, await client.call('eth_call', [callOf(asked), 'latest']))
    return missing?.has(Multicall.multicallAddress) ? undefined : missing
  } catch (error) {
    if (!(error instanceof RpcError)) throw error
    return undefined
  }
}

/** Calldata of Multicall3, as a call without receiver that also reads a payer's code. */
export function withCode(payer: Address, { data }: Pick<Multicall.Call, 'data'>): Hex {
  return `0x${codeProgram}${Abi.address(payer)}${data.slice(2)}`
}

/**
 * The answer of `withCode`: the payer's code, and the answer of Multicall3. Undefined for an
 * invalid answer.
 */
export function splitCode(
  answer: unknown,
): { code: 'eoa' | IdentifiedCode; data: Hex } | undefined {
  if (typeof answer !== 'string' || answer.length < 2 + codeWords * 64) return undefined
  const [size, hash, first] = [0, 1, 2].map((index) => Abi.wordAt(answer.slice(2), index))
  if (size === undefined || hash === undefined || first === undefined) return undefined
  const data: Hex = `0x${answer.slice(2 + codeWords * 64)}`
  return { code: Abi.uintAt(size) === 0n ? 'eoa' : { key: keyOf(hash, first) }, data }
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
