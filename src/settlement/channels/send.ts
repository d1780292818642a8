import type { JobRow } from '../../../db/schema'
import { RpcError, RpcFault } from '../../chain/client'
import { fees, priceOf } from '../../chain/head'
import { isHex } from '../../chain/receipt'
import { dayMs, hourMs } from '../../protocol/Time'
import * as Refusals from '../read/refusals'
import type { Job, JobCall, JobEnd } from '../send/Job'
import { runJob } from '../send/jobs'
import { refuseBudget } from '../state/gas-budget'
import type { ChainState, Context } from '../state/state'
import { type ChannelWatch, watchOf } from './state'

/* How jobs of channels are sent, and what those may cost that a payer asks for. */

/** Times that one job is sent again. */
const attemptsMax = 20

/**
 * The id of the attempt that is under way, or of the next one; undefined after too many. `isOver`: whether
 * an attempt that was written has had no effect.
 */
export async function attemptOf(
  { ledger }: Pick<Context, 'ledger'>,
  key: string,
  isOver: (row: JobRow, attempt: number) => boolean,
): Promise<{ id: string; row: JobRow | undefined } | undefined> {
  for (let attempt = 1; attempt <= attemptsMax; attempt++) {
    const id = attempt === 1 ? key : `${key}:${attempt}`
    const row = await ledger.jobs.find(id)
    if (row === undefined || !isOver(row, attempt)) return { id, row }
  }
  return undefined
}

/** Whether an attempt ended without an effect. */
export function hasFailed({ state }: Pick<JobRow, 'state'>): boolean {
  return state === 'failed' || state === 'replaced'
}

/** Sends a job of channels, and waits for its end at most `waitMs`. Its caller then reads the channels. */
export async function runChannelJob(
  context: Context,
  { network }: ChainState,
  job: { id: string } & JobCall & Pick<Job, 'gasLimit' | 'keepsWei' | 'takesLast'>,
  waitMs: number,
): Promise<JobEnd> {
  const { awaited } = watchOf(context, network.id)
  const terms = { kind: 'channel', product: 'gateway', network: network.id } as const
  awaited.add(job.id)
  try {
    return await runJob(context, { ...terms, relayer: undefined, valueWei: 0n, ...job }, { waitMs })
  } finally {
    awaited.delete(job.id)
  }
}

/**
 * The gas of a call that succeeds, or undefined where every node that answers says that it fails: one node may
 * be behind, or hide what is true. Throws RpcFault where no node answers.
 */
export async function estimateGas(
  { client, relayers }: ChainState,
  { to, data }: JobCall,
): Promise<bigint | undefined> {
  let fault: unknown = new RpcFault('no node')
  for (const node of [client, ...client.others()]) {
    try {
      const answer = await node.call('eth_estimateGas', [{ from: relayers[0]?.address, to, data }])
      if (isHex(answer)) return BigInt(answer)
    } catch (error) {
      if (!(fault instanceof RpcError)) fault = error
    }
  }
  if (fault instanceof RpcError) return undefined
  throw fault
}

/** The gas limit for an estimate: other claims may come before, which changes what is written first. */
export function limitOf(estimate: bigint): bigint {
  return estimate + estimate / 4n + 50_000n
}

/** Gas of a transaction with claims, and of each claim in it. */
export const claimBaseGas = 60_000n
export const claimRowGas = 25_000n

/** Claims of this many channels are what an account keeps gas for. */
const reservedRowsMax = 500

/** Native coin that claims of all open channels need, of the account that would send them, wei. */
function claimsWei(chain: ChainState, { open }: ChannelWatch): bigint {
  const rows = BigInt(Math.min(open, reservedRowsMax))
  const { maxFeeWei } = fees(chain.head, chain.network.feeCapWei)
  return (claimBaseGas + rows * claimRowGas) * maxFeeWei
}

/** Deposits of one signer in an hour, and refunds. */
const perHour = 10

const signersMax = 10_000

/**
 * Why a deposit or a refund is not sent now: neither costs its payer anything. Together they may cost half of
 * the gas budget of the gateway. What passes is counted; call it just before the job is sent.
 */
export function takeSponsored(
  context: Context,
  chain: ChainState,
  signer: string,
  gasLimit: bigint,
): Refusals.PaymentRefusal | { keepsWei: bigint } {
  const { network, head } = chain
  const refusal = refuseBudget(context, chain, { product: 'gateway' })
  if (refusal) return refusal
  const watch = watchOf(context, network.id)
  const now = context.now()
  const day = Math.floor(now / dayMs)
  const wei = watch.sponsored.day === day ? watch.sponsored.wei : 0n
  const mostWei = network.gasPerDayWei.gateway / 2n
  const costWei = gasLimit * priceOf(head)
  if (wei + costWei > mostWei) {
    const detail =
      'Deposits and refunds of channels have spent the gas that they may cost today: pay by exact, or ' +
      'tomorrow (UTC).'
    return Refusals.later(detail, 600)
  }
  const fullAt = Math.max(watch.fullAt.get(signer) ?? 0, now) + hourMs / perHour
  if (fullAt - now > hourMs) {
    const detail = `A signer may send ${perHour} deposits or refunds in an hour; try again later.`
    return Refusals.later(detail, Math.ceil((fullAt - now - hourMs) / 1000))
  }
  if (watch.fullAt.size >= signersMax)
    for (const [each, at] of watch.fullAt) if (at <= now) watch.fullAt.delete(each)
  watch.fullAt.set(signer, fullAt)
  watch.sponsored = { day, wei: wei + costWei }
  return { keepsWei: claimsWei(chain, watch) }
}

/** Counts what a job cost in place of what it might have cost. */
export function countSponsored(
  context: Context,
  chain: ChainState,
  { signer, gasLimit }: { signer: string; gasLimit: bigint },
  end: JobEnd,
): void {
  const watch = watchOf(context, chain.network.id)
  const spentWei = 'receipt' in end ? end.receipt.spentWei : undefined
  const isUnsent = end.kind === 'unavailable' || end.kind === 'refused'
  if (spentWei === undefined && !isUnsent) return
  if (isUnsent) watch.fullAt.set(signer, (watch.fullAt.get(signer) ?? 0) - hourMs / perHour)
  const wei = watch.sponsored.wei - gasLimit * priceOf(chain.head) + (spentWei ?? 0n)
  watch.sponsored.wei = wei > 0n ? wei : 0n
}
