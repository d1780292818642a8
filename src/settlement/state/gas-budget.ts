import type { Hex } from 'viem'
import type { Product } from '../../../db/Payment'
import type { GasProduct, JobRow } from '../../../db/schema'
import { priceOf } from '../../chain/head'
import { isContract } from '../../chain/multicall'
import * as Amount from '../../protocol/Amount'
import { dayMs } from '../../protocol/Time'
import { type Transfer, wrapperOf } from '../../protocol/Transfer'
import { budgetSpent, later, type Unavailable } from '../read/refusals'
import type { ChainState, Context, Slot } from './state'

/** Margin for new storage (a payee's first money, a new word of nonces) above recent use. */
const marginGas = 60_000n
/** Gas for deploying a wallet, in addition to the transfer. */
const deployGas = 1_000_000n
/**
 * A product's budget of a day has this many parts. Failed payments of payers with code may cost one
 * part, batches that failed and used their gas another.
 */
const budgetParts = 10n

type Call = Pick<Transfer, 'method' | 'permit2612' | 'upto'>

/**
 * Gas limit of a payment that is sent alone. Unused gas costs nothing, and the limit bounds a
 * failure. `isContract`: allow the gas of a contract signature.
 */
export function limitAlone(transfer: Call & { signature?: Hex }, isContract: boolean): bigint {
  const { method, signature } = transfer
  if (isContract) {
    const wrapper = signature && wrapperOf({ method, signature })
    return 600_000n + (wrapper ? deployGas : 0n)
  }
  if (transfer.permit2612) return 400_000n
  // Chains that charge for L1 data include it in gas, so the limit is wide.
  return method === 'permit2' ? 300_000n : 200_000n
}

/**
 * Gas limit of one member of a batch: recent use of such a call with a margin, at most that of a
 * lone payment. Multicall3 passes all remaining gas to each call (63/64 of it), so unused gas is
 * available to the next. Only a payer's code could use it up, and such payers are sent alone.
 */
export function limitOfMember({ gas }: Pick<ChainState, 'gas'>, transfer: Call): bigint {
  const alone = limitAlone(transfer, false)
  const used = gas.used.get(kindOf(transfer))
  if (used === undefined) return alone
  const wanted = used + used / 2n + marginGas
  return wanted < alone ? wanted : alone
}

/**
 * Limit of the whole batch: its members, the transaction itself, and the 64th that a call does not
 * pass on.
 */
export function limitOfBatch(members: bigint): bigint {
  const total = members + 50_000n
  return total + total / 32n
}

/** Updates the gas use from a successful transaction with members of one kind only. */
export function learn(
  { gas }: Pick<ChainState, 'gas'>,
  transfers: readonly Call[],
  gasUsed: bigint,
): void {
  const [kind] = transfers.map(kindOf)
  if (kind === undefined || transfers.some((each) => kindOf(each) !== kind)) return
  const each = gasUsed / BigInt(transfers.length)
  if (transfers.length === 1) gas.lone.set(kind, gasUsed)
  const known = gas.used.get(kind) ?? 0n
  // Raise at once, lower slowly.
  gas.used.set(kind, each > known ? each : known - (known - each) / 16n)
}

/** Settling calls that cost about the same. */
function kindOf({ method, permit2612, upto }: Call): string {
  return `${upto ? 'upto' : method}${permit2612 ? ' with permit' : ''}`
}

/** Native coin of a grant counts as gas, wei. */
export function givenWei({ kind, valueWei }: Pick<JobRow, 'kind' | 'valueWei'>): bigint {
  return kind === 'grant' ? valueWei : 0n
}

/** Whether a product has spent its gas budget of the day of `at` (unix ms). Reads memory only. */
export function isSpent(
  { ledger }: Context,
  { network }: Pick<ChainState, 'network'>,
  product: Product,
  at: number,
): boolean {
  return ledger.gas.spentOn(network.id, product, at) >= network.gasPerDayWei[product]
}

/**
 * Why a product may send nothing more now; undefined when it may. Signed transactions that are not
 * included count as spent, so that concurrent ones cannot exceed the budget together. `sparesHalf`: as of a
 * job.
 */
export function refuseBudget(
  context: Context,
  chain: ChainState,
  { product, sparesHalf }: { product: GasProduct; sparesHalf?: boolean },
): Unavailable | undefined {
  const { network } = chain
  const spentWei = context.ledger.gas.spentOn(network.id, product, context.now())
  const mostWei = network.gasPerDayWei[product] / (sparesHalf ? 2n : 1n)
  if (spentWei >= mostWei) return budgetSpent
  const open = underWayWei(chain, product)
  if (open === 0n || open + spentWei < mostWei) return undefined
  return later('Transactions under way may spend the gas budget of today; try again.', 2)
}

/**
 * Why nothing is sent for a payer with code now; undefined when it may be. Its code may use all gas
 * of the transaction even when its simulation passed. Other payers are not affected.
 */
export function refuseCode(
  { ledger, now }: Context,
  chain: ChainState,
  { product }: { product: GasProduct },
): Unavailable | undefined {
  const { network } = chain
  const most = network.gasPerDayWei[product] / budgetParts
  const wasted = ledger.gas.wastedOn(network.id, product, now())
  const detail =
    'Failed payments of wallets with code have spent the gas that they may cost today: pay from an ' +
    'account without code, or tomorrow (UTC).'
  if (wasted > 0n && wasted >= most) return later(detail, 600)
  const open = underWayWei(chain, product, ({ code }) => isContract(code))
  if (open === 0n || wasted + open < most) return undefined
  return later('Payments of wallets with code are under way; send the same credential again.', 2)
}

/** Cost of a product's transactions under way if each uses its gas limit. */
function underWayWei(
  { relayers, head }: ChainState,
  product: GasProduct,
  filter: (slot: Slot) => boolean = () => true,
): bigint {
  let wei = 0n
  const price = priceOf(head)
  for (const { slots } of relayers) {
    for (const slot of slots.values()) {
      const newest = slot.transactions.at(-1)
      if (newest?.product !== product || !filter(slot)) continue
      wei += newest.gasLimit * Amount.least(newest.maxFeeWei, price)
      if (slot.job) wei += givenWei(slot.job)
    }
  }
  return wei
}

/**
 * Whether payments of a product may share transactions. An account without code can delegate, in
 * the same block, to code that uses all gas, at almost no cost to its owner. Once batches have
 * wasted their part of the budget, payments are sent alone for the rest of the day. Then each uses
 * only its own limit. Kept in memory: a restart resets it.
 */
export function mayShare(
  { now }: Context,
  { network, gas }: Pick<ChainState, 'network' | 'gas'>,
  product: Product,
): boolean {
  const wei = gas.wasted.get(dayKey(product, now())) ?? 0n
  return wei === 0n || wei < network.gasPerDayWei[product] / budgetParts
}

/** Adds the gas of a batch that failed. */
export function addWasted(
  { now }: Context,
  { gas: { wasted } }: Pick<ChainState, 'gas'>,
  product: Product,
  wei: bigint,
): void {
  const key = dayKey(product, now())
  const before = wasted.get(key) ?? 0n
  const today = key.slice(key.indexOf(' '))
  for (const each of wasted.keys()) if (!each.endsWith(today)) wasted.delete(each)
  wasted.set(key, before + wei)
}

function dayKey(product: Product, at: number): string {
  return `${product} ${Math.floor(at / dayMs)}`
}
