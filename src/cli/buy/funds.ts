import type { Address } from 'viem'
import type { Client } from '../../chain/client'
import * as Token from '../../chain/token'
import { askChain, readWord } from '../nodes'
import type { KnownAsset, Terms } from './Terms'

/** Which of several offers a wallet has the money for. */

export type Short = { terms: Terms; balanceAtomic: bigint }

/** Longest wait for an answer of a node: an offer whose balance is unknown may be paid, too. */
const timeoutMs = 2_000

/**
 * The first terms that the payer has the money for, else the first ones whose balance is unknown.
 * When each balance is too low, all of them. Reads nothing when all terms are in one asset. `rpc`
 * replaces the public nodes, and answers for its own chain only. Never rejects.
 */
export async function chooseFunded(
  wanted: readonly [Terms, ...Terms[]],
  payer: Address,
  rpc: string | undefined,
): Promise<Terms | readonly Short[]> {
  const assets = [...new Set(wanted.map(({ asset }) => asset))]
  if (assets.length === 1) return wanted[0]
  const reads = new Map(assets.map((asset) => [asset, readBalance(asset, payer, rpc)]))
  const short: Short[] = []
  let unknown: Terms | undefined
  for (const terms of wanted) {
    const balanceAtomic = await reads.get(terms.asset)
    if (balanceAtomic === undefined) unknown ??= terms
    else if (balanceAtomic >= terms.amountAtomic) return terms
    else short.push({ terms, balanceAtomic })
  }
  return unknown ?? short
}

/** Undefined when no node of the asset's network answers in time. */
export function readBalance(
  { network, address }: KnownAsset,
  payer: Address,
  rpc: string | undefined,
): Promise<bigint | undefined> {
  const read = (client: Client) => readWord(client, Token.balanceOf(address, payer))
  return askChain(network, rpc, read, timeoutMs)
}
