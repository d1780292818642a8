import type { TransactionRow } from '../../../db/schema'
import { type Fees, fees } from '../../chain/head'
import * as Transaction from '../../chain/transaction'
import * as Amount from '../../protocol/Amount'
import { readCount } from '../read/reads'
import type { ChainState, Relayer } from '../state/state'
import type { Job, JobCall } from './Job'

/** What a transaction does, before it has an account nonce and fees. */
export type Payload = JobCall &
  Pick<TransactionRow, 'kind' | 'product' | 'gasLimit'> &
  Pick<Job, 'valueWei'>

/**
 * Transactions of one account that may wait for a block. Nodes keep a limited number of each (16 in
 * geth when its pool is full), and drop the highest nonces first.
 */
export const openMax = 16

/**
 * The same for charges, while no node has refused one as too many: each is a transaction
 * of its own, and only the account that its payer has signed may send it.
 */
const chargesMax = 64

/** Gas limit of the most expensive charge of a payer without code. */
const chargeGas = 400_000n

/** How many transactions of an account may wait for a block before another charge waits for them. */
export function chargesMaxOf(
  { head, network }: Pick<ChainState, 'head' | 'network'>,
  { balanceWei, mayHaveMany }: Pick<Relayer, 'balanceWei' | 'mayHaveMany'>,
): number {
  if (!mayHaveMany || balanceWei === undefined) return openMax
  const { maxFeeWei } = fees(head, network.feeCapWei)
  if (maxFeeWei === 0n) return chargesMax
  // Nodes require the balance for the limits of all together, and open ones count as spent in the budget.
  const wei = Amount.least(balanceWei, network.gasPerDayWei.gateway) / 2n
  return Math.max(openMax, Math.min(chargesMax, Number(wei / (chargeGas * maxFeeWei))))
}

/** Of `openMax`, what settlements for other servers may take, so that they never delay our own for long. */
export const facilitatorMax = openMax / 2

/** Why a relayer is paused when a node refuses its transaction for lack of balance. */
export const withoutGas = 'the relayer cannot pay for gas'

/** Whether a relayer is paused because it has too little native coin. */
export function isUnfunded({ poor, refused }: Relayer): boolean {
  return poor !== undefined || refused === withoutGas
}

/** Why a relayer is paused that another process may use, or that none has yet. */
const notHeld = 'this process does not have its account'

/** Why a relayer sends nothing new; undefined when it does. */
export function pausedBy(relayer: Relayer): string | undefined {
  if (!relayer.isHeld) return notHeld
  const reason = relayer.poor ?? relayer.refused ?? relayer.stuck
  return reason ?? (relayer.next === undefined ? 'not checked yet' : undefined)
}

/**
 * Whether accounts that are leaving take no new payment, so that another process gets them: others here
 * can send meanwhile.
 */
export function canGive(relayers: readonly Relayer[]): boolean {
  return relayers.some((each) => !each.isLeaving && sells(each))
}

function sells(relayer: Relayer): boolean {
  return !relayer.isReserved && pausedBy(relayer) === undefined
}

/** Whether a network can settle: it answers, and one of its relayers sends. */
export function isReady({ health, relayers }: Pick<ChainState, 'health' | 'relayers'>): boolean {
  return health.ready && relayers.some(sells)
}

/** Signs for a nonce without reserving it, by default at the present fees. `at`: now, unix ms. */
export function signForNonce(
  { network, head }: Pick<ChainState, 'network' | 'head'>,
  { address, privateKey }: Relayer,
  payload: Payload,
  { nonce, at, bid }: { nonce: number; at: number; bid?: Fees | undefined },
): TransactionRow {
  const { kind, product, to, gasLimit } = payload
  const price = bid ?? fees(head, network.feeCapWei)
  const { hash, raw } = Transaction.sign(
    { chainId: network.chainId, nonce, ...price, ...payload },
    privateKey,
  )
  return {
    hash,
    network: network.id,
    relayer: address,
    nonce,
    kind,
    product,
    to,
    raw,
    gasLimit,
    ...price,
    // Written before the bytes are sent, which happens as soon as the row is on the disk.
    state: 'sent',
    createdAt: at,
    firstSentAt: at,
    blockNumber: null,
  }
}

/**
 * Skips account nonces that other programs used. Never rejects: the next health check repeats it.
 */
export async function synchronize(chain: ChainState, relayer: Relayer): Promise<void> {
  try {
    const count = await readCount(chain, relayer, 'pending')
    relayer.next = Math.max(relayer.next ?? 0, count)
  } catch {
    // The next transaction meets the same nonce and is signed again.
  }
}

/** A transaction that only uses its nonce up. */
export function cancellation({ address }: Relayer): Payload {
  return {
    kind: 'cancel',
    product: 'gateway',
    to: address,
    data: '0x',
    valueWei: 0n,
    // Chains that include L1 data in gas need more than 21,000.
    gasLimit: 100_000n,
  }
}
