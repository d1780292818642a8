import type { Log } from '../chain/receipt'
import * as Token from '../chain/token'
import type { Transfer } from '../protocol/Transfer'

type Sought = Pick<Transfer, 'asset' | 'payer' | 'payee' | 'amountAtomic'>

/**
 * For each transfer the index of a Transfer log of exactly this money, undefined when there is none
 * left: no log pays twice, and `taken` pay for others already. Which of several equal logs pays for
 * which of several equal transfers does not matter.
 */
export function assign(
  logs: readonly Log[],
  transfers: readonly Sought[],
  taken: ReadonlySet<number>,
): (number | undefined)[] {
  const free = new Map<string, number[]>()
  for (const log of logs) {
    const [topic, payer, payee] = log.topics
    if (topic !== Token.transferTopic || log.topics.length !== 3 || log.data.length !== 66) continue
    if (taken.has(log.index)) continue
    const key = `${log.address.toLowerCase()} ${payer} ${payee} ${log.data}`
    const indexes = free.get(key)
    if (indexes) indexes.push(log.index)
    else free.set(key, [log.index])
  }
  return transfers.map((transfer) => free.get(keyOf(transfer))?.shift())
}

/** Equal for transfers whose Transfer logs cannot be told apart. */
export function keyOf({ asset, payer, payee, amountAtomic }: Sought): string {
  const data = amountAtomic.toString(16).padStart(64, '0')
  const [from, to] = [Token.addressTopic(payer), Token.addressTopic(payee)]
  return `${asset.toLowerCase()} ${from} ${to} 0x${data}`
}
