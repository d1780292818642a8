import type { Payment } from '../../../db/Payment'
import type { CallOptions, Node } from '../../chain/client'
import { pollMs } from '../../chain/head'
import * as Receipt from '../../chain/receipt'
import { about, type ChainState, type Context } from '../state/state'
import { pause } from '../state/wait'

/** Whether the configured nodes show the transfer of a confirmed payment now. */
export type Observation =
  /** One URL is configured and shows it, or two nodes show it and none contradicts. */
  | 'shown'
  /** Too few nodes show it: they lag behind, do not answer, or the chain has lost it. */
  | 'unseen'
  /** One node shows it, and another one has this transaction without the transfer. */
  | 'disputed'

/** Longest wait of a buyer for a second node that lags behind the first one, ms. */
const waitMs = 10_000

/** Usual lag between nodes of one chain, ms. */
const lagMs = 1_500

/** Longest wait for one answer, where there is another node, ms. */
const answerMs = 2_000

/** Contradictions in a row that count as a dispute; a reorganisation can cause a single one. */
export const disputesMax = 3

/**
 * What the nodes show. Waits briefly for a second node that is only a little behind the first.
 * Throws RpcFault or RpcError when the only URL does not answer.
 */
export async function observationOf(
  context: Context,
  chain: ChainState,
  payment: Payment,
): Promise<Observation> {
  if (chain.client.nodes.length > 1)
    return wait(context, chain, payment, { ms: lagMs, disputes: 1 })
  return (await show(chain.client, payment)) ? 'shown' : 'unseen'
}

/**
 * Whether a second node shows the transfer of a payment, too; waits for one that lags behind.
 * Without this check one malicious node could release every answer unpaid. True with one URL. Never
 * rejects.
 */
export async function confirm(
  context: Context,
  chain: ChainState,
  payment: Payment,
): Promise<boolean> {
  if (chain.client.nodes.length < 2) return true
  const observation = await wait(context, chain, payment, { ms: waitMs, disputes: disputesMax })
  if (observation === 'shown') return true
  context.log(observation === 'disputed' ? 'settlement-disputed' : 'settlement-unconfirmed', {
    ...about(payment),
    network: chain.network.id,
    transaction: payment.transaction,
    hosts: chain.client.hosts,
  })
  return false
}

/** Polls until the transfer is shown, the time is over, or `disputes` polls in a row contradict. */
async function wait(
  context: Context,
  chain: ChainState,
  payment: Payment,
  limit: { ms: number; disputes: number },
): Promise<Observation> {
  let disputes = 0
  for (let waitedMs = 0; ; ) {
    const { observation, isSilent } = await compare(chain, payment)
    disputes = observation === 'disputed' ? disputes + 1 : 0
    const isOver =
      waitedMs >= limit.ms || disputes >= limit.disputes || context.progress.signal.aborted
    if (observation === 'shown' || isOver) return observation
    const pauseMs = pollMs(chain.head) * (disputes > 0 ? 4 : 1)
    await pause(pauseMs, context.progress.signal)
    waitedMs += pauseMs + (isSilent ? answerMs : 0)
  }
}

async function compare(
  chain: ChainState,
  payment: Payment,
): Promise<{ observation: Observation; isSilent: boolean }> {
  const answers = await Promise.all(
    chain.client.nodes.map((node) =>
      show(node, payment, { timeoutMs: answerMs }).catch(() => 'silent' as const),
    ),
  )
  const count = (answer: unknown) => answers.filter((each) => each === answer).length
  const [shown, denied] = [count(true), count(false)]
  const observation = shown > 0 && denied > 0 ? 'disputed' : shown > 1 ? 'shown' : 'unseen'
  return { observation, isSilent: answers.includes('silent') }
}

/** Undefined: the node has no such receipt. Throws RpcFault or RpcError. */
async function show(
  node: Pick<Node, 'call'>,
  { transaction, transfer }: Payment,
  options?: CallOptions,
): Promise<boolean | undefined> {
  const answer = await node.call('eth_getTransactionReceipt', [transaction], options)
  const receipt = Receipt.parse(answer)
  if (receipt?.hash !== transaction) return undefined
  return receipt.success && receipt.logs.some((log) => Receipt.isTransfer(log, transfer))
}
