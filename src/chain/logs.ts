import type { Hex } from 'viem'
import { type Node, RpcError, RpcFault } from './client'
import * as Receipt from './receipt'

/** Blocks from the first to the last, both included; undefined: up to the newest. */
export type Range = { from: bigint; to: bigint | undefined }

type Log = ReturnType<typeof Receipt.parseLogs>[number]

/** A list in place of a topic: any of them. */
type Topics = readonly (Hex | readonly Hex[])[]

type Query = {
  address: Hex
  topics: Topics
  range: Range
  /** The end of the range to search first, when the range is split. */
  first: 'oldest' | 'newest'
}

/**
 * Most calls of one search. With a provider's limit of a hundred blocks they search 5,000 blocks,
 * with a limit of ten 640.
 */
const callsMax = 64

/** Number of blocks that a node searched in one call after it had refused more. By host. */
export type Spans = Map<string, bigint>

/**
 * Logs of a range, piece by piece. Providers limit how many blocks one `eth_getLogs` may search,
 * each with a different error. So a range that is refused is halved until it is small enough. The
 * caller may stop at any piece. Throws what the node throws for a single block, and RpcError when
 * the range would take too many calls: then the remaining range is unknown.
 */
export async function* search(node: Node, spans: Spans, query: Query): AsyncGenerator<Log[]> {
  const { address, topics, first } = query
  const known = spans.get(node.host)
  let span = known
  let newest: bigint | undefined
  let calls = 0
  const pieces: Range[] = [query.range]
  for (let piece = pieces.shift(); piece; piece = pieces.shift()) {
    if (span !== undefined) {
      newest ??= await readTop(node)
      if (blocksOf(piece, newest) > span) {
        pieces.unshift(...cut(piece, newest, span, first))
        continue
      }
    }
    if (++calls > callsMax) {
      widen(spans, node, { known, span })
      throw tooMany()
    }
    try {
      const logs = await ask(node, { address, topics, piece })
      // Store the span only after a success, because other errors must not shrink it.
      if (span !== undefined && span !== known) spans.set(node.host, span)
      yield logs
    } catch (error) {
      if (!(error instanceof RpcError)) throw error
      newest ??= await readTop(node)
      const blocks = blocksOf(piece, newest)
      if (blocks <= 1n) throw error
      span = blocks / 2n
      pieces.unshift(piece)
    }
  }
  widen(spans, node, { known, span })
}

/**
 * Doubles the stored span, so that the next search tries a larger one. Errors that shrank it may
 * have ended, and a search that needs too many calls would never end with the old span.
 */
function widen(
  spans: Spans,
  { host }: Node,
  { known, span }: { known: bigint | undefined; span: bigint | undefined },
): void {
  if (known !== undefined && span === known) spans.set(host, known * 2n)
}

/** A fault of the call, not of the node: repeating it soon does not help. */
function tooMany(): RpcError {
  return new RpcError(-32602, 'the logs take too many calls', undefined)
}

function blocksOf({ from, to }: Range, newest: bigint): bigint {
  return (to ?? newest) - from + 1n
}

/** A piece of `span` blocks at the end that is searched first, and the remaining range. */
function cut({ from, to }: Range, newest: bigint, span: bigint, first: Query['first']): Range[] {
  if (first === 'oldest') {
    return [
      { from, to: from + span - 1n },
      { from: from + span, to },
    ]
  }
  const start = (to ?? newest) - span + 1n
  return [
    { from: start, to },
    { from, to: start - 1n },
  ]
}

async function ask(
  node: Node,
  { address, topics, piece }: { address: Hex; topics: Topics; piece: Range },
): Promise<Log[]> {
  const answer = await node.call('eth_getLogs', [
    {
      address,
      topics,
      fromBlock: toHex(piece.from),
      toBlock: piece.to === undefined ? 'latest' : toHex(piece.to),
    },
  ])
  return Receipt.parseLogs(answer)
}

async function readTop(node: Node): Promise<bigint> {
  const answer = await node.call('eth_blockNumber', [])
  if (!Receipt.isHex(answer)) throw new RpcFault('not a block number')
  return BigInt(answer)
}

function toHex(value: bigint): Hex {
  return `0x${value.toString(16)}`
}
