import type { Hex } from 'viem'
import type { Included } from '../../../db/payment-reads'
import * as Receipt from '../../chain/receipt'
import { type ChainState, type Context, storeInclusion } from '../state/state'

/**
 * Checks that the newest blocks, down to `reorg_depth`, still contain the transactions of payments.
 * What a reorganisation removed goes back to `sent` and `broadcast`, to be driven again with the
 * same bytes. Deliveries stay. True when something went back. Throws RpcFault or RpcError.
 */
export function checkReorg(context: Context, chain: ChainState): Promise<boolean> {
  // The check of a start may meet the first one of the intervals, and both would report the same.
  return chain.watch.turn(() => compare(context, chain))
}

async function compare(context: Context, chain: ChainState): Promise<boolean> {
  const { watch, head, network } = chain
  const lowest = lowestOf(chain)
  const from = watch.from !== undefined && watch.from < lowest ? watch.from : lowest
  const rows = await context.ledger.transactions.includedFrom(network.id, from)
  const canonical = reader(chain)
  let isChanged = false
  let isClear = true
  for (const sequence of sequencesOf(rows)) {
    for (const row of sequence) {
      const state = await readState(chain, row, canonical)
      isClear &&= state !== 'unclear'
      if (state !== 'gone') {
        // Nothing else is signed at its nonce. After a start the count of a node that lost the block is
        // lower, and what is confirmed there would stay confirmed without a transaction.
        const relayer = chain.relayers.find(({ address }) => address === row.relayer)
        if (relayer?.next !== undefined) relayer.next = Math.max(relayer.next, row.nonce + 1)
        // Account nonces are included in order, so those below are included as well.
        break
      }
      await reopen(context, chain, row)
      const block = BigInt(row.blockNumber)
      if (head.number >= block) head.number = block - 1n
      isChanged = true
    }
  }
  // What was deep enough at this check need not be checked again, unless its node had no such block.
  watch.from = isClear ? lowest : from
  for (const [hash, { blockNumber }] of watch.seen) {
    if (blockNumber < watch.from) watch.seen.delete(hash)
  }
  return isChanged
}

/** The lowest block that a reorganisation can reach. */
export function lowestOf({ head, network }: Pick<ChainState, 'head' | 'network'>): bigint {
  const depth = BigInt(network.reorgDepth)
  return head.number > depth ? head.number - depth : 0n
}

/** Rows of one relayer, newest nonce first; each external transaction alone. */
function sequencesOf(rows: readonly Included[]): Included[][] {
  const newestFirst = rows.toSorted((left, right) => right.nonce - left.nonce)
  return [...Map.groupBy(newestFirst, ({ relayer, hash }) => relayer ?? hash).values()]
}

async function readState(
  chain: ChainState,
  row: Included,
  canonical: (block: bigint) => Promise<Hex | undefined>,
): Promise<'there' | 'gone' | 'unclear'> {
  const { seen } = chain.watch
  const block = BigInt(row.blockNumber)
  const known = seen.get(row.hash)
  const hash = await canonical(block)
  if (hash !== undefined && hash === known?.blockHash) return 'there'
  const receipt = await readReceipt(chain, row.hash)
  const isHere =
    receipt?.blockNumber === block &&
    (known?.blockHash === undefined || known.blockHash === receipt.blockHash)
  if (receipt && isHere) {
    storeInclusion(chain, receipt)
    if (row.relayer === undefined) await keepRaw(chain, row.hash)
    return 'there'
  }
  // In another block its logs have other numbers: it is recorded again.
  if (receipt || hash !== undefined) return 'gone'
  // A lagging node has no such block yet, so it counts at the second check.
  const misses = (known?.misses ?? 0) + 1
  const inclusion = known ?? { blockNumber: block, blockHash: undefined, raw: undefined }
  seen.set(row.hash, { ...inclusion, misses })
  return misses < 2 ? 'unclear' : 'gone'
}

/** What an included transaction paid, and the transaction itself, are in progress again. */
export async function reopen(context: Context, chain: ChainState, row: Included): Promise<void> {
  const { network, watch } = chain
  const { payments, job } = await context.ledger.settling.reopen(network.id, row.hash)
  const inclusion = watch.seen.get(row.hash)
  watch.seen.delete(row.hash)
  if (inclusion?.raw !== undefined) watch.lostRaw.set(row.hash, inclusion.raw)
  const block = BigInt(row.blockNumber)
  context.metrics.reorged(network.id, payments.length)
  context.log('transaction-reorganised', {
    network: network.id,
    transaction: row.hash,
    block,
    job,
  })
  for (const payment of payments) {
    context.log('payment-reorganised', {
      payment,
      network: network.id,
      transaction: row.hash,
      block,
    })
  }
}

/** External bytes are not in our database, and a node drops what it evicted. */
async function keepRaw(chain: ChainState, hash: Hex): Promise<void> {
  const inclusion = chain.watch.seen.get(hash)
  if (!inclusion || inclusion.raw !== undefined) return
  try {
    const raw = await chain.client.call('eth_getRawTransactionByHash', [hash])
    if (Receipt.isHex(raw) && raw.length > 2) inclusion.raw = raw
  } catch {
    // Without the bytes, settlement sends the authorization itself.
  }
}

async function readReceipt(chain: ChainState, hash: Hex): Promise<Receipt.Receipt | undefined> {
  const receipt = Receipt.parse(await chain.client.call('eth_getTransactionReceipt', [hash]))
  return receipt?.hash === hash ? receipt : undefined
}

/** Hash of the chain's block at a height, read once each; undefined above the newest block. */
function reader(chain: ChainState): (block: bigint) => Promise<Hex | undefined> {
  const known = new Map<bigint, Promise<Hex | undefined>>()
  return (block) => {
    const asked = known.get(block)
    if (asked) return asked
    const asking = chain.client
      .call('eth_getBlockByNumber', [`0x${block.toString(16)}`, false])
      .then((answer) => Receipt.parseBlock(answer)?.hash)
    known.set(block, asking)
    return asking
  }
}
