import type { Address } from 'viem'
import type { JobRow } from '../../../db/schema'
import { RpcError, RpcFault } from '../../chain/client'
import { isHex } from '../../chain/receipt'
import type { Job, JobCall, JobEnd } from '../send/Job'
import { runJob } from '../send/jobs'
import type { ChainState, Context } from '../state/state'

/* How jobs of channels are sent. */

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

/** A call of channels; `product`: whose gas budget pays, which is that of sales unless it says otherwise. */
type ChannelJob = { id: string } & JobCall &
  Pick<Job, 'gasLimit' | 'keepsWei' | 'sparesHalf' | 'runsCode' | 'takesLast'> &
  Partial<Pick<Job, 'product'>>

/** Sends a job of channels, and waits for its end. Its caller then reads the channels. */
export async function runChannelJob(
  context: Context,
  { network, channels: { awaited } }: ChainState,
  job: ChannelJob,
  options: Parameters<typeof runJob>[2],
): Promise<JobEnd> {
  const terms = { kind: 'channel', product: 'gateway', network: network.id } as const
  awaited.add(job.id)
  try {
    return await runJob(context, { ...terms, relayer: undefined, valueWei: 0n, ...job }, options)
  } finally {
    awaited.delete(job.id)
  }
}

/**
 * The gas limit of a call that succeeds, or undefined where every node that answers says that it fails: one node
 * may be behind, or hide what is true. Throws RpcFault where no node answers.
 */
export async function gasLimitOf(
  { client, relayers }: ChainState,
  { to, data, from = relayers[0]?.address }: JobCall & { from?: Address },
): Promise<bigint | undefined> {
  let fault: unknown = new RpcFault('no node')
  for (const node of [client, ...client.others()]) {
    try {
      const answer = await node.call('eth_estimateGas', [{ from, to, data }])
      // Other claims may come before, which changes what is written first.
      if (isHex(answer)) return (BigInt(answer) * 5n) / 4n + 50_000n
    } catch (error) {
      if (!(fault instanceof RpcError)) fault = error
    }
  }
  if (fault instanceof RpcError) return undefined
  throw fault
}

/** Gas of a transaction with claims, and of each claim in it. */
export const claimBaseGas = 60_000n
export const claimRowGas = 25_000n
