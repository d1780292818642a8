import type { Hex } from 'viem'
import { write } from '../../db/write'
import * as Receipt from '../chain/receipt'
import type { Context, Rail } from './context'
import * as Lane from './lane'

/** Keeps which block a transaction was included in, to notice when that block is gone. */
export function remember(rail: Rail, { blockNumber, blockHash, hash }: Receipt.Receipt): void {
  const known = rail.included.get(blockNumber)
  if (known?.blockHash === blockHash) known.hashes.add(hash)
  else rail.included.set(blockNumber, { blockHash, hashes: new Set([hash]), misses: 0 })
}

/**
 * Looks whether the blocks of our transactions are still the chain's, newest first: below one that is,
 * all are. What a reorganisation took away goes back to `sent` and `broadcast`, to be driven again
 * with the same bytes; what was delivered stays delivered. True when something went back. Throws
 * RpcFault or RpcError.
 */
export async function check(context: Context, rail: Rail): Promise<boolean> {
  const { included, head, network } = rail
  const newestFirst = [...included.keys()].sort((left, right) => (left < right ? 1 : -1))
  let isChanged = false
  for (const number of newestFirst) {
    const entry = included.get(number)
    if (!entry) continue
    const hash = await readBlockHash(rail, number)
    if (hash === entry.blockHash) break
    // A node that lags has no block yet: believed at the second look.
    if (hash === undefined && ++entry.misses < 2) break
    included.delete(number)
    head.number = number - 1n
    for (const transaction of entry.hashes) {
      const receipt = await Lane.readReceipt(rail, transaction)
      if (receipt?.blockHash === entry.blockHash) continue
      write(context.db, () => context.store.reopen(network.id, transaction))
      context.log('transaction-reorganised', { network: network.id, transaction, block: number })
      isChanged = true
    }
  }
  for (const number of included.keys()) {
    if (number + BigInt(network.reorgDepth) < head.number) included.delete(number)
  }
  return isChanged
}

async function readBlockHash(rail: Rail, number: bigint): Promise<Hex | undefined> {
  const block = await rail.client.call('eth_getBlockByNumber', [`0x${number.toString(16)}`, false])
  if (typeof block !== 'object' || block === null || !('hash' in block)) return undefined
  return Receipt.isHex(block.hash) ? (block.hash.toLowerCase() as Hex) : undefined
}
