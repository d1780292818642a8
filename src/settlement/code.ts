import type { Address } from 'viem'
import * as Abi from '../protocol/Abi'
import type { Rail } from './context'

/** Only sorts what waits: a payer may delegate at any time (EIP-7702), so a batch asks again. */
export const plainKeptMs = 30_000
const plainMax = 20_000
/** Creation code is limited to 48 KiB (EIP-3860). */
const askedMax = 1_000

/**
 * Creation code that answers, for each address in the words behind it, the size of its code: what a
 * call without receiver returns is not deployed.
 *
 * size = CODESIZE - 36; CODECOPY(0, 36, size); for (i = 0; i < size; i += 32)
 * MSTORE(i, EXTCODESIZE(MLOAD(i))); RETURN(0, size)
 */
const program = '6024380380602460003960005b81811015601f5780513b8152602001600c565b506000f3'

/**
 * Those of the addresses that have no code, in one call; none when the node does not tell. Wallets
 * called by a token can burn all gas of a shared transaction, so who has code is asked before.
 */
export async function findPlain(
  rail: Rail,
  payers: readonly Address[],
): Promise<ReadonlySet<Address>> {
  if (rail.plain.size >= plainMax) rail.plain.clear()
  try {
    const asked = payers.slice(0, askedMax)
    const data = `0x${program}${asked.map(Abi.address).join('')}`
    const answer = await rail.client.call('eth_call', [{ data }, 'latest'])
    if (typeof answer !== 'string' || answer.length !== 2 + asked.length * 64) return new Set()
    return new Set(
      asked.filter((_, index) => Abi.toUint(Abi.wordAt(answer.slice(2), index)) === 0n),
    )
  } catch {
    return new Set()
  }
}
