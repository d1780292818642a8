import type { Assignment } from '../../../db/Ledger'
import type { Payment, Purpose } from '../../../db/Payment'
import type { CallOptions, Node } from '../../chain/client'
import { pollMs } from '../../chain/head'
import * as Receipt from '../../chain/receipt'
import * as Token from '../../chain/token'
import * as External from '../repair/external'
import * as Reorg from '../repair/reorg'
import { about, type Context } from '../state/context'
import type { ChainState } from '../state/state'
import { pause } from '../state/wait'
import { readMoney } from './eth-call'
import { readReceipt, readTop } from './reads'

type Uses = Pick<Context, 'ledger' | 'progress' | 'policy' | 'now' | 'monotonic' | 'log'>

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

/** Whether a network has a second URL to ask. */
function hasTwo({ client }: Pick<ChainState, 'client'>): boolean {
  return client.nodes.length > 1
}

/** Whether a payment counts only when two nodes show it. */
export function needsSecond(
  { policy }: Pick<Context, 'policy'>,
  chain: Pick<ChainState, 'client'>,
  {
    transfer,
    purpose,
  }: { transfer: Pick<Payment['transfer'], 'amountAtomic'>; purpose: Pick<Purpose, 'product'> },
): boolean {
  if (!hasTwo(chain)) return false
  if (purpose.product === 'desk') return true
  const above = policy.confirmTwiceAbove()
  return above !== undefined && transfer.amountAtomic > above
}

/**
 * What the nodes show. Waits briefly for a second node that is only a little behind the first.
 * Throws RpcFault or RpcError when the only URL does not answer.
 */
export async function observationOf(
  context: Uses,
  chain: ChainState,
  payment: Payment,
): Promise<Observation> {
  if (hasTwo(chain)) return wait(context, chain, payment, { ms: lagMs, disputes: 1 })
  return (await show(chain.client, payment)) ? 'shown' : 'unseen'
}

/**
 * Whether a second node shows the transfer of a payment, too; waits for one that lags behind.
 * Without this check one malicious node could release every answer unpaid. True with one URL. Never
 * rejects.
 */
export async function confirm(
  context: Uses,
  chain: ChainState,
  payment: Payment,
): Promise<boolean> {
  if (!hasTwo(chain)) return true
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
  context: Uses,
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
  return receipt.success && receipt.logs.some((log) => Token.isTransfer(log, transfer))
}

/** The result of the other URLs for a payment that is about to end unpaid. */
export type Answer =
  /** One of them shows the transfer. */
  | { kind: 'paid'; assignment: Assignment }
  /** All of them agree that it is over, or there is none. */
  | { kind: 'over' }
  /** One of them disagrees, or does not answer. */
  | { kind: 'doubtful'; isSilent: boolean }

/**
 * Calls every other URL before a payment ends. The one in use may hide a receipt, because its index
 * lags or because it is malicious. `fromBlock`: first block to search for external settlements.
 * Never rejects.
 */
export async function ask(
  context: Uses,
  chain: ChainState,
  payment: Payment,
  fromBlock: bigint,
): Promise<Answer> {
  const answers = await Promise.all(
    chain.client.others().map((node) =>
      askOne(context, chain, payment, { node, fromBlock }).catch((error: unknown): Answer => {
        context.log('settlement-undecided', { payment: payment.id, host: node.host, error })
        return { kind: 'doubtful', isSilent: true }
      }),
    ),
  )
  const paid = answers.find(({ kind }) => kind === 'paid')
  if (paid) return paid
  const doubtful = answers.filter((answer) => answer.kind === 'doubtful')
  const loud = doubtful.find(({ isSilent }) => !isSilent)
  return loud ?? doubtful[0] ?? { kind: 'over' }
}

async function askOne(
  context: Uses,
  chain: ChainState,
  payment: Payment,
  { node, fromBlock }: { node: Node; fromBlock: bigint },
): Promise<Answer> {
  const { transfer } = payment
  const own = await findOwn(context, { ...chain, client: node }, payment)
  if (own) return settled(chain, node, own)
  const money = await readMoney({ ...chain, client: node }, transfer)
  if (!money.used) return money.isFinal ? { kind: 'over' } : { kind: 'doubtful', isSilent: false }
  const found = await External.find(context, chain, transfer, { fromBlock, node })
  const arrival = await context.ledger.payments.arrivalOf(payment.id)
  if (!found || !External.counts(context, chain, payment, { found, arrival }))
    return { kind: 'over' }
  return settled(chain, node, found)
}

/** A settlement that is not deep enough yet keeps the payment open. */
async function settled(
  { network }: ChainState,
  node: Node,
  { transaction, logIndex, blockNumber }: Assignment,
): Promise<Answer> {
  const top = network.confirmations > 1 ? await readTop({ client: node }) : blockNumber
  const isDeep = top - blockNumber + 1n >= BigInt(network.confirmations)
  return isDeep
    ? { kind: 'paid', assignment: { transaction, logIndex, blockNumber } }
    : { kind: 'doubtful', isSilent: false }
}

/**
 * A transaction of ours that paid after it was abandoned, as a node shows it. Throws RpcFault or
 * RpcError.
 */
export async function findOwn(
  { ledger: { payments, transactions } }: Pick<Context, 'ledger'>,
  chain: Pick<ChainState, 'network' | 'watch'> & { client: Pick<Node, 'call'> },
  payment: Payment,
): Promise<Assignment | undefined> {
  for (const { hash, state } of await transactions.ofPayment(payment.id)) {
    if (state === 'failed') continue
    const receipt = await readReceipt(chain, hash)
    if (!receipt?.success) continue
    const taken = await payments.takenLogs(chain.network.id, hash)
    const [found] = Token.findTransfers(receipt.logs, [payment.transfer])
    const logIndex = found?.find((each) => !taken.has(each))
    if (logIndex === undefined) continue
    Reorg.storeInclusion(chain, receipt)
    return { transaction: hash, logIndex, blockNumber: receipt.blockNumber }
  }
  return undefined
}
