import type { Hex } from 'viem'
import type { Included } from '../../db/recent'
import { write } from '../../db/write'
import * as Receipt from '../chain/receipt'
import type { Context, Rail } from './context'

/**
 * Where transactions were seen. Only a memory: what has to be watched is in the database, and what
 * is not remembered is read again.
 */
export type Watch = {
  seen: Map<Hex, Sight>
  /** Lowest block whose transactions the next look must see; undefined before the first one. */
  from: bigint | undefined
  /** Bytes of somebody else's transactions that a reorganisation took away. */
  lostRaw: Map<Hex, Hex>
  /** Looks since then, by payment, and the newest block at the first of them. */
  revivals: Map<string, { looks: number; since: bigint }>
}

type Sight = {
  blockNumber: bigint
  /** Undefined while the chain's answer to it is not understood. */
  blockHash: Hex | undefined
  /** Looks at which the node had no such block. */
  misses: number
  /** Bytes of somebody else's transaction: a node forgets what it dropped. */
  raw: Hex | undefined
}

export function createWatch(): Watch {
  return { seen: new Map(), from: undefined, lostRaw: new Map(), revivals: new Map() }
}

/** Keeps which block a transaction was included in, which saves reading it again. */
export function remember(
  rail: Pick<Rail, 'watch'>,
  { blockNumber, blockHash, hash }: Receipt.Receipt,
): void {
  rail.watch.seen.set(hash, { blockNumber, blockHash, misses: 0, raw: undefined })
}

/**
 * Looks whether the newest blocks, down to `reorg_depth`, still hold the transactions that payments
 * rest on. What a reorganisation took away goes back to `sent` and `broadcast`, to be driven again
 * with the same bytes; what was delivered stays delivered. True when something went back. Throws
 * RpcFault or RpcError.
 */
export async function check(context: Context, rail: Rail): Promise<boolean> {
  const { watch, head, network } = rail
  const top = head.number
  const depth = BigInt(network.reorgDepth)
  const lowest = top > depth ? top - depth : 0n
  const from = watch.from !== undefined && watch.from < lowest ? watch.from : lowest
  const rows = context.recent.includedFrom(network.id, from)
  const canonical = reader(rail)
  let isChanged = false
  for (const chain of chainsOf(rows)) {
    for (const row of chain) {
      const state = await look(rail, row, canonical)
      // Account nonces are included in their order: those below are there as well.
      if (state !== 'gone') break
      reopen(context, rail, row)
      isChanged = true
    }
  }
  // What was deep enough at this look was seen there, and need not be seen again.
  watch.from = lowest
  for (const [hash, { blockNumber }] of watch.seen) {
    if (blockNumber < lowest) watch.seen.delete(hash)
  }
  return isChanged
}

/** Rows of one relayer, newest nonce first; each transaction of somebody else stands alone. */
function chainsOf(rows: readonly Included[]): Included[][] {
  const chains = new Map<string, Included[]>()
  for (const row of rows) {
    const key = row.relayer ?? row.hash
    const chain = chains.get(key)
    if (chain) chain.push(row)
    else chains.set(key, [row])
  }
  return [...chains.values()].map((chain) => chain.sort((left, right) => right.nonce - left.nonce))
}

async function look(
  rail: Rail,
  row: Included,
  canonical: (block: bigint) => Promise<Hex | undefined>,
): Promise<'there' | 'gone' | 'unclear'> {
  const { seen } = rail.watch
  const block = BigInt(row.blockNumber)
  const known = seen.get(row.hash)
  const hash = await canonical(block)
  if (hash !== undefined && hash === known?.blockHash) return 'there'
  const receipt = await readReceipt(rail, row.hash)
  const isHere =
    receipt?.blockNumber === block &&
    (known?.blockHash === undefined || known.blockHash === receipt.blockHash)
  if (receipt && isHere) {
    remember(rail, receipt)
    if (row.relayer === undefined) await keepRaw(rail, row.hash)
    return 'there'
  }
  // In another block its logs have other numbers: it is recorded again.
  if (receipt || hash !== undefined) return 'gone'
  // A node that lags has no such block yet: believed at the second look.
  const misses = (known?.misses ?? 0) + 1
  const sight = known ?? { blockNumber: block, blockHash: undefined, raw: undefined }
  seen.set(row.hash, { ...sight, misses })
  return misses < 2 ? 'unclear' : 'gone'
}

function reopen(context: Context, rail: Rail, row: Included): void {
  const { network, watch, head } = rail
  const payments = context.recent.paidBy(network.id, row.hash)
  const errand = write(context.db, () => {
    context.store.reopen(network.id, row.hash)
    return context.errands.reopen(row.hash)
  })
  const sight = watch.seen.get(row.hash)
  watch.seen.delete(row.hash)
  if (sight?.raw !== undefined) watch.lostRaw.set(row.hash, sight.raw)
  const block = BigInt(row.blockNumber)
  if (head.number >= block) head.number = block - 1n
  context.metrics.reorged(network.id, payments.length)
  context.log('transaction-reorganised', {
    network: network.id,
    transaction: row.hash,
    block,
    errand,
  })
  for (const payment of payments) {
    context.paymentBell.ring(payment)
    context.log('payment.reorged', {
      payment,
      network: network.id,
      transaction: row.hash,
      block,
    })
  }
}

/** Somebody else's bytes are not in our database, and a node forgets what it dropped. */
async function keepRaw(rail: Rail, hash: Hex): Promise<void> {
  const sight = rail.watch.seen.get(hash)
  if (!sight || sight.raw !== undefined) return
  try {
    const raw = await rail.client.call('eth_getRawTransactionByHash', [hash])
    if (Receipt.isHex(raw) && raw.length > 2) sight.raw = raw
  } catch {
    // Then the authorization is settled by ourselves.
  }
}

async function readReceipt(rail: Rail, hash: Hex): Promise<Receipt.Receipt | undefined> {
  const receipt = Receipt.parse(await rail.client.call('eth_getTransactionReceipt', [hash]))
  return receipt?.hash === hash ? receipt : undefined
}

/** Hash of the chain's block at a height, each asked for once; undefined above the newest block. */
function reader(rail: Rail): (block: bigint) => Promise<Hex | undefined> {
  const known = new Map<bigint, Promise<Hex | undefined>>()
  return (block) => {
    const asked = known.get(block)
    if (asked) return asked
    const asking = rail.client
      .call('eth_getBlockByNumber', [`0x${block.toString(16)}`, false])
      .then((answer) => Receipt.parseBlock(answer)?.hash)
    known.set(block, asking)
    return asking
  }
}
