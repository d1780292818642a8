import type { CallOptions, Node } from '../chain/client'
import { pollMs } from '../chain/head'
import * as Receipt from '../chain/receipt'
import * as Token from '../chain/token'
import { about, type ChainState, type Context, pause } from './context'
import type { Payment } from './Payment'

/** Whether the configured nodes show the transfer of a confirmed payment now. */
export type Sight =
  /** One URL is configured and shows it, or two nodes show it and none denies it. */
  | 'shown'
  /** Too few nodes show it: they lag behind, do not answer, or the chain has lost it. */
  | 'unseen'
  /** One node shows it, and another one has this transaction without the transfer. */
  | 'disputed'

/** Longest wait of a buyer for a second node that lags behind the first one. */
const waitMs = 10_000
/** Nodes of one chain are usually apart by less. */
const lagMs = 1_500
/** Longest wait for one answer, where there is another node. */
const answerMs = 2_000
/** Contradictions in a row that count as a dispute; a reorganisation can cause a single one. */
export const disputesMax = 3

/** Whether a network has a second URL to ask. */
export function hasTwo({ client }: Pick<ChainState, 'client'>): boolean {
  return client.nodes.length > 1
}

/**
 * What the nodes show; waits a moment for a second one that is only a little behind the first. Throws
 * RpcFault or RpcError with one URL only, when that does not answer.
 */
export async function sightOf(
  context: Context,
  chain: ChainState,
  payment: Payment,
): Promise<Sight> {
  if (hasTwo(chain)) return wait(context, chain, payment, { ms: lagMs, disputes: 1 })
  return (await show(chain.client, payment)) ? 'shown' : 'unseen'
}

/**
 * Whether a second node shows the transfer of a payment, too; waits for one that lags behind.
 * Without this check one lying node could give every answer away. True with one URL. Never rejects.
 */
export async function confirm(
  context: Context,
  chain: ChainState,
  payment: Payment,
): Promise<boolean> {
  if (!hasTwo(chain)) return true
  const sight = await wait(context, chain, payment, { ms: waitMs, disputes: disputesMax })
  if (sight === 'shown') return true
  context.log(sight === 'disputed' ? 'settlement-disputed' : 'settlement-unconfirmed', {
    ...about(context, payment.id),
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
): Promise<Sight> {
  let disputes = 0
  for (let waitedMs = 0; ; ) {
    const { sight, isSilent } = await look(chain, payment)
    disputes = sight === 'disputed' ? disputes + 1 : 0
    const isOver = waitedMs >= limit.ms || disputes >= limit.disputes || context.signal.aborted
    if (sight === 'shown' || isOver) return sight
    const pauseMs = pollMs(chain.head) * (disputes > 0 ? 4 : 1)
    await pause(pauseMs, context.signal)
    waitedMs += pauseMs + (isSilent ? answerMs : 0)
  }
}

async function look(
  chain: ChainState,
  payment: Payment,
): Promise<{ sight: Sight; isSilent: boolean }> {
  const answers = await Promise.all(
    chain.client.nodes.map((node) =>
      show(node, payment, { timeoutMs: answerMs }).catch(() => 'silent' as const),
    ),
  )
  const count = (answer: unknown) => answers.filter((each) => each === answer).length
  const [shown, denied] = [count(true), count(false)]
  const sight = shown > 0 && denied > 0 ? 'disputed' : shown > 1 ? 'shown' : 'unseen'
  return { sight, isSilent: answers.includes('silent') }
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
  return receipt.success && receipt.logs.some((log) => Token.isTransfer(log, transfer))
}
