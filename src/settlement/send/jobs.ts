import type { JobRider } from '../../../db/Ledger'
import { fees } from '../../chain/head'
import * as Receipt from '../../chain/receipt'
import { budgetSpent, later } from '../read/refusals'
import * as Gas from '../state/gas-budget'
import {
  type ChainState,
  type Context,
  chainOf,
  type JobRefusal,
  type Relayer,
  type WaitingJob,
} from '../state/state'
import type { Job, JobEnd } from './Job'
import { facilitatorMax, openMax, pausedBy } from './relayer'
import { writeAndSendJob } from './transaction'

/** Transactions of our own that carry no payment. */
export function createJobRunner(context: Context) {
  return {
    /**
     * Sends a transaction of our own, exactly once for its id. The rider is written in the database
     * transaction that stores the signed bytes, before they are sent. The same id again, with any
     * content, waits for the running job or returns its end. `waitMs` bounds the wait only: the job
     * continues in the background and after a restart. `refused`: the rider could not be written, and
     * nothing was written or sent. Rejects for an account that is no relayer of the network.
     */
    run: (job: Job, options: RunOptions) => runJob(context, job, options),
    /** Waits for the end of a job that was written before. */
    join: (id: string, waitMs: number) => waitForJob(context, id, waitMs),
    /**
     * The state of a job, from the database, with the included transaction; before, the newest one sent.
     * Undefined when it was never written.
     */
    async job(id: string) {
      const row = await context.ledger.jobs.find(id)
      if (!row) return undefined
      const { state, transactionHash: transaction, blockNumber } = row
      return { state, transaction, blockNumber: blockNumber ?? undefined }
    },
    /**
     * Calls back with the id after every change of a job's state or newest transaction, also when a
     * reorganisation returns it to broadcast. May call without a change, so read the state.
     */
    onJob: context.events.jobs.on,
  }
}

type RunOptions = { waitMs: number; rider?: JobRider }

const tooBusy = later('The relayer has too much under way; try again.', 2)

/** Sends the job unless its id is known, and waits for its end. */
export async function runJob(context: Context, job: Job, options: RunOptions): Promise<JobEnd> {
  const startedAt = context.now()
  if (!(await context.ledger.jobs.find(job.id))) {
    const refusal = await begin(context, job, options)
    if (refusal) return refusal
  }
  const spentMs = Math.max(0, context.now() - startedAt)
  return waitForJob(context, job.id, Math.max(0, options.waitMs - spentMs))
}

/** Queues the job and dispatches; the refusal, or undefined when it is sent. */
function begin(
  context: Context,
  job: Job,
  { waitMs, rider }: RunOptions,
): Promise<JobRefusal | undefined> {
  const chain = chainOf(context, job.network)
  relayersFor(chain, job)
  const { promise, resolve, reject } = Promise.withResolvers<JobRefusal | undefined>()
  const leave = () => {
    clearTimeout(timer)
    chain.queue.jobs = chain.queue.jobs.filter((each) => each !== waiting)
  }
  const waiting: WaitingJob = {
    job,
    rider,
    isOffered: false,
    isOver: false,
    done(refusal) {
      leave()
      resolve(refusal)
    },
    fail(error) {
      leave()
      reject(error)
    },
  }
  const onTime = () => {
    waiting.isOver = true
    if (!waiting.isOffered) waiting.done(tooBusy)
  }
  const timer = setTimeout(onTime, waitMs)
  chain.queue.jobs.push(waiting)
  void dispatchJobs(context, chain)
  return promise
}

/**
 * Sends the jobs that wait for room in a relayer, oldest first. Runs one dispatch of a network at a
 * time, so that one id makes one transaction for any number of callers. Never rejects.
 */
export function dispatchJobs(context: Context, chain: ChainState): Promise<void> {
  const { queue } = chain
  queue.isJobsDue = true
  if (queue.jobs.length > 0) queue.dispatching ??= offerAll(context, chain)
  return queue.dispatching ?? Promise.resolve()
}

async function offerAll(context: Context, chain: ChainState): Promise<void> {
  const { queue } = chain
  while (queue.isJobsDue) {
    queue.isJobsDue = false
    for (const waiting of queue.jobs) {
      if (!queue.jobs.includes(waiting)) continue
      waiting.isOffered = true
      await offer(context, chain, waiting).catch(waiting.fail)
      waiting.isOffered = false
      // Only here: while the job is being written, its caller must not conclude that nothing was
      // sent.
      if (waiting.isOver) waiting.done(tooBusy)
    }
  }
  queue.dispatching = undefined
}

/** Sends a job, refuses it, or leaves it waiting. */
async function offer(context: Context, chain: ChainState, waiting: WaitingJob): Promise<void> {
  const { job, done } = waiting
  if (await context.ledger.jobs.find(job.id)) return done(undefined)
  const relayer = chooseRelayer(context, chain, job)
  if (relayer === undefined) return
  if ('kind' in relayer) return done(relayer)
  // The choice may be outdated after waiting for the turn, so it is made again inside it.
  const refusal = await relayer.turn(async () => {
    const again = chooseRelayer(context, chain, job)
    if (again !== relayer) return again !== undefined && 'kind' in again ? again : 'wait'
    return writeAndSendJob(context, chain, relayer, waiting)
  })
  if (refusal !== 'wait') done(refusal)
}

/** The relayer that sends it now; undefined while it must wait for room. */
function chooseRelayer(
  context: Context,
  chain: ChainState,
  job: Job,
): Relayer | JobRefusal | undefined {
  if (context.progress.isStopping || context.progress.signal.aborted || !chain.health.ready) {
    return later('The network cannot be used now; try again.', 5)
  }
  const spent = refuseCost(context, chain, job)
  if (spent) return spent
  const costWei = job.gasLimit * fees(chain.head, chain.network.feeCapWei).maxFeeWei
  const neededWei = costWei + job.valueWei + (job.keepsWei ?? 0n)
  const able = relayersFor(chain, job).filter((relayer) => {
    const paused = pausedBy(job.takesLast ? { ...relayer, poor: undefined } : relayer)
    return paused === undefined && spareWei(relayer) >= neededWei
  })
  const [first] = able.sort(
    (left, right) => Number(left.isLeaving) - Number(right.isLeaving) || left.open - right.open,
  )
  if (!first) return later('The relayer cannot pay for gas now; try again later.', 30)
  const isOthers = job.product === 'facilitator'
  if (isOthers && facilitatingOf(first) >= facilitatorMax) return undefined
  return first.open - first.charges < openMax ? first : undefined
}

/** Open jobs for other servers. */
function facilitatingOf({ slots }: Relayer): number {
  return [...slots.values()].filter(({ job }) => job?.product === 'facilitator').length
}

/** Throws for an account that is no relayer of the network. */
function relayersFor({ relayers, network }: ChainState, { relayer }: Job): Relayer[] {
  const found = relayers.filter(({ address, isReserved }) =>
    relayer === undefined ? !isReserved : address.toLowerCase() === relayer.toLowerCase(),
  )
  if (found.length === 0) throw new Error(`${relayer} is no relayer of ${network.id}`)
  return found
}

/** Native coin of an account, less what its open transactions send. Wei. */
function spareWei({ balanceWei = 0n, slots }: Relayer): bigint {
  let spare = balanceWei
  for (const { job } of slots.values()) spare -= job?.valueWei ?? 0n
  return spare
}

/** Open transactions count as spent: concurrent ones must not exceed the budget together. */
function refuseCost(context: Context, chain: ChainState, job: Job): JobRefusal | undefined {
  const { kind, product } = job
  // Swaps and refunds move money of buyers and run at any cost, as claims do. The budget is checked when
  // their payment arrives.
  if (product === 'facilitator' || product === 'channels')
    return (
      Gas.refuseBudget(context, chain, job) ??
      (job.runsCode ? Gas.refuseCode(context, chain, job) : undefined)
    )
  if (kind !== 'grant') return undefined
  const { network, relayers } = chain
  let wei = context.ledger.gas.spentOn(network.id, product, context.now())
  for (const { slots } of relayers) {
    for (const { job: open, transactions } of slots.values()) {
      const newest = transactions.at(-1)
      if (!newest || open?.product !== product || open.kind === 'refund') continue
      wei += newest.gasLimit * newest.maxFeeWei + Gas.givenWei(open)
    }
  }
  return wei >= network.gasPerDayWei[product] ? budgetSpent : undefined
}

/** Waits for the end of a job that is written. */
export async function waitForJob(context: Context, id: string, waitMs: number): Promise<JobEnd> {
  const { signal } = context.progress
  const until = context.now() + waitMs
  for (;;) {
    const leftMs = until - context.now()
    if (leftMs <= 0 || signal.aborted) return endOf(context, id)
    const { changed, end } = context.events.jobs.wait(id, leftMs)
    const result = await endOf(context, id).catch((error: unknown) => {
      // After a failover the database may lack the job until its holder has written it again.
      if (!context.ledger.lanes.isShared) throw error
      return undefined
    })
    if (result !== undefined && result.kind !== 'pending') {
      end()
      return result
    }
    if (!(await changed)) return endOf(context, id)
  }
}

async function endOf({ ledger: { jobs } }: Context, id: string): Promise<JobEnd> {
  const row = await jobs.find(id)
  if (!row) throw new Error(`no job ${id}`)
  const { transactionHash: transaction, state } = row
  switch (state) {
    case 'broadcast':
      return { kind: 'pending', transaction }
    case 'replaced':
      return { kind: 'replaced', transaction }
    case 'confirmed':
    case 'failed':
      return { kind: state, transaction, receipt: Receipt.deserialize(row.receipt ?? '') }
  }
}
