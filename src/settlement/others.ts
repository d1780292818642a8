import type { Node } from '../chain/client'
import * as Assign from './assign'
import type { ChainState, Context } from './context'
import * as Elsewhere from './elsewhere'
import type { Payment } from './Payment'
import * as Relayers from './relayer'
import * as Reorg from './reorg'
import type { Assignment } from './store'
import * as Verify from './verify'

/** The verdict of the other URLs on a payment that is about to end unpaid. */
export type Answer =
  /** One of them shows the transfer. */
  | { kind: 'paid'; assignment: Assignment }
  /** All of them agree that it is over, or there is none. */
  | { kind: 'over' }
  /** One sees it otherwise, or does not answer. */
  | { kind: 'doubtful'; isSilent: boolean }

/**
 * Asks every other URL before a payment ends: the one in use may hide a receipt, because its index
 * lags or because it lies. `fromBlock`: first block to search for external settlements. Never
 * rejects.
 */
export async function ask(
  context: Context,
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
  context: Context,
  chain: ChainState,
  payment: Payment,
  { node, fromBlock }: { node: Node; fromBlock: bigint },
): Promise<Answer> {
  const { transfer } = payment
  const own = await findOwn(context, { ...chain, client: node }, payment)
  if (own) return settled(chain, node, own)
  const money = await Verify.readMoney({ ...chain, client: node }, transfer)
  if (!money.used) {
    const isOver = money.timestamp > transfer.validBefore
    return isOver ? { kind: 'over' } : { kind: 'doubtful', isSilent: false }
  }
  const found = await Elsewhere.find(context, chain, transfer, { fromBlock, node })
  const evidence = context.store.evidenceOf(payment.id)
  if (!found || !Elsewhere.counts(context, chain, payment, found, evidence)) return { kind: 'over' }
  return settled(chain, node, found)
}

/** One that is not deep enough yet keeps the payment open. */
async function settled(
  { network }: ChainState,
  node: Node,
  { transaction, logIndex, blockNumber }: Assignment,
): Promise<Answer> {
  const top = network.confirmations > 1 ? await Relayers.readTop({ client: node }) : blockNumber
  const isDeep = top - blockNumber + 1n >= BigInt(network.confirmations)
  return isDeep
    ? { kind: 'paid', assignment: { transaction, logIndex, blockNumber } }
    : { kind: 'doubtful', isSilent: false }
}

/**
 * A transaction of ours that paid after it was given up, as a node shows it. Throws RpcFault or
 * RpcError.
 */
export async function findOwn(
  { store }: Context,
  chain: Pick<ChainState, 'network' | 'watch'> & { client: Pick<Node, 'call'> },
  payment: Payment,
): Promise<Assignment | undefined> {
  for (const { hash, state } of store.transactionsOf(payment.id)) {
    if (state === 'failed') continue
    const receipt = await Relayers.readReceipt(chain, hash)
    if (!receipt?.success) continue
    const taken = store.takenLogs(chain.network.id, hash)
    const logIndex = Assign.assign(receipt.logs, [payment.transfer], taken)[0]
    if (logIndex === undefined) continue
    Reorg.remember(chain, receipt)
    return { transaction: hash, logIndex, blockNumber: receipt.blockNumber }
  }
  return undefined
}
