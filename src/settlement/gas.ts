import type { Transfer } from '../protocol/Transfer'
import type { ChainState } from './context'
import * as Verify from './verify'

/** Room for new storage (a payee's first money, a fresh word of nonces) above what was used lately. */
const marginGas = 60_000n

/**
 * Gas of one member of a batch: what such a call used lately with room, never above what a lone one
 * may use. Multicall3 hands all that is left to each call (63/64 of it), so what one does not use is
 * there for the next; only a payer's code could burn it, and such payers are alone.
 */
export function limitOf(chain: ChainState, transfer: Call): bigint {
  const lone = Verify.gasLimit(transfer, false)
  const used = chain.gasUsed.get(keyOf(transfer))
  if (used === undefined) return lone
  const wanted = used + used / 2n + marginGas
  return wanted < lone ? wanted : lone
}

/** Limit of the whole batch: its members, the transaction itself, and the 64th that is held back. */
export function limitOfBatch(members: bigint): bigint {
  const total = members + 50_000n
  return total + total / 32n
}

/** Learns from a transaction that succeeded with members of one kind only. */
export function learn(chain: ChainState, transfers: readonly Call[], gasUsed: bigint): void {
  const [key] = transfers.map(keyOf)
  if (key === undefined || transfers.some((each) => keyOf(each) !== key)) return
  const each = gasUsed / BigInt(transfers.length)
  if (transfers.length === 1) chain.loneGas.set(key, gasUsed)
  const known = chain.gasUsed.get(key) ?? 0n
  // Upwards at once, downwards slowly.
  chain.gasUsed.set(key, each > known ? each : known - (known - each) / 16n)
}

type Call = Pick<Transfer, 'method' | 'permit2612'>

/** Settling calls that cost about the same. */
function keyOf({ method, permit2612 }: Call): string {
  return permit2612 ? `${method} with permit` : method
}
