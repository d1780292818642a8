import type { Hex } from 'viem'
import type { ErrandRow } from '../../db/errands'
import type { TransactionRow } from '../../db/schema'
import { write } from '../../db/write'
import { fees } from '../chain/head'
import * as Receipt from '../chain/receipt'
import * as Crypto from '../protocol/Crypto'
import {
  type Context,
  type Lane as LaneState,
  type Rail,
  railOf,
  type WaitingErrand,
} from './context'
import type { Errand, ErrandEnd } from './Errand'
import * as Lane from './lane'
import * as Work from './work'

/** Chains that fold L1 data into gas refuse less, and a refused nonce holds up all above it. */
const gasLimitMin = 100_000n

type Unavailable = Extract<ErrandEnd, { kind: 'unavailable' }>

/** How an errand stands, from the database. */
export type ErrandStatus = {
  state: ErrandRow['state']
  /** The included transaction; before, the newest one sent. */
  transaction: Hex
  blockNumber: bigint | undefined
}

const kinds: Readonly<Record<Errand['kind'], TransactionRow['kind']>> = {
  swap: 'swap',
  refund: 'refund',
  grant: 'grant',
  allowance: 'approve',
}

/** Sends it unless its id is known, and waits for its end. Rejects with what `write` throws. */
export async function run(
  context: Context,
  errand: Errand,
  options: { waitMs: number; write?: (transaction: Hex) => void },
): Promise<ErrandEnd> {
  const begunAt = context.now()
  if (!context.errands.find(errand.id)) {
    const refusal = await begin(context, errand, options)
    if (refusal) return refusal
  }
  const spentMs = Math.max(0, context.now() - begunAt)
  return wait(context, errand.id, Math.max(0, options.waitMs - spentMs))
}

/** Undefined when nothing was ever written of it. */
export function statusOf({ errands }: Context, id: string): ErrandStatus | undefined {
  const row = errands.find(id)
  if (!row) return undefined
  const { state, transactionHash: transaction, blockNumber } = row
  return { state, transaction, blockNumber: blockNumber ?? undefined }
}

/** Why it cannot be sent now; undefined when it is on its way. */
function begin(
  context: Context,
  errand: Errand,
  { waitMs, write }: { waitMs: number; write?: (transaction: Hex) => void },
): Promise<Unavailable | undefined> {
  const rail = railOf(context, errand.network)
  lanesFor(rail, errand)
  return new Promise((resolve, reject) => {
    const leave = () => {
      clearTimeout(timer)
      rail.errands = rail.errands.filter((each) => each !== waiting)
    }
    const waiting: WaitingErrand = {
      errand,
      write,
      done(refusal) {
        leave()
        resolve(refusal)
      },
      fail(error) {
        leave()
        reject(error)
      },
    }
    const timer = setTimeout(
      () => waiting.done(unavailable('The relayer has too much under way.', 2)),
      waitMs,
    )
    rail.errands.push(waiting)
    dispatch(context, rail)
  })
}

/**
 * Sends the errands that wait for room in a lane, oldest first. From the look at the database to the
 * first send nothing waits: one id makes one transaction, however many ask for it.
 */
export function dispatch(context: Context, rail: Rail): void {
  for (const waiting of rail.errands) {
    const { errand, done, fail } = waiting
    try {
      if (context.errands.find(errand.id)) {
        done(undefined)
        continue
      }
      const lane = chooseLane(context, rail, errand)
      if (lane === undefined) continue
      if ('kind' in lane) {
        done(lane)
        continue
      }
      launch(context, rail, lane, waiting)
      done(undefined)
    } catch (error) {
      fail(error)
    }
  }
}

/** The lane that sends it now; undefined while it must wait for room. */
function chooseLane(
  context: Context,
  rail: Rail,
  errand: Errand,
): LaneState | Unavailable | undefined {
  if (context.isStopping || context.signal.aborted || !rail.health.ready) {
    return unavailable('The network cannot be used now.', 5)
  }
  if (isOverBudget(context, rail, errand)) {
    return unavailable('The gas budget of today is spent.', 600)
  }
  const costWei = gasLimitOf(errand) * fees(rail.head, rail.network.feeCapWei).maxFeeWei
  const able = lanesFor(rail, errand).filter(
    (lane) => Lane.pausedBy(lane) === undefined && spareWei(lane) >= costWei + errand.valueWei,
  )
  const [first] = able.sort((left, right) => left.open - right.open)
  if (!first) return unavailable('The relayer cannot pay for gas now.', 30)
  return first.open < Lane.openMax ? first : undefined
}

/** Throws for an account that has no lane on the network. */
function lanesFor({ lanes, network }: Rail, { relayer }: Errand): LaneState[] {
  const found = lanes.filter((lane) =>
    relayer === undefined ? !lane.isReserved : lane.address.toLowerCase() === relayer.toLowerCase(),
  )
  if (found.length === 0) throw new Error(`${relayer} has no lane on ${network.id}`)
  return found
}

/** What an account holds beyond the native money that is on its way out. */
function spareWei({ balanceWei = 0n, slots }: LaneState): bigint {
  let spare = balanceWei
  for (const { errand } of slots.values()) spare -= errand?.valueWei ?? 0n
  return spare
}

/** What is under way counts as spent: many at once must not pass the budget together. */
function isOverBudget(context: Context, rail: Rail, { kind, product }: Errand): boolean {
  // Somebody else's money goes on its way, or back, whatever it costs: the budget is asked when a
  // payment comes in.
  if (kind !== 'grant') return false
  const { network, lanes } = rail
  let wei = context.store.gasSpentOn(network.id, product, context.now())
  for (const { slots } of lanes) {
    for (const { errand, transactions } of slots.values()) {
      const newest = transactions.at(-1)
      if (!newest || errand?.product !== product || errand.kind === 'refund') continue
      wei += newest.gasLimit * newest.maxFeeWei + Work.givenWei(errand)
    }
  }
  return wei >= network.gasPerDayWei[product]
}

function gasLimitOf({ gasLimit }: Errand): bigint {
  return gasLimit > gasLimitMin ? gasLimit : gasLimitMin
}

/** The write that decides, then the send. */
function launch(
  context: Context,
  rail: Rail,
  lane: LaneState,
  { errand, write: also }: WaitingErrand,
): void {
  const { store, errands, db, now } = context
  const { id, kind, product, network, valueWei } = errand
  const nonce = Lane.freeNonce(lane)
  if (nonce === undefined) throw new Error('the lane has no nonce')
  const { address, privateKey } = lane
  const sign = (digest: Uint8Array) => Crypto.sign(digest, privateKey)
  const sent = 'compose' in errand ? errand.compose({ address, nonce, sign }) : errand
  const { to, data, isCreation = false } = sent
  const gasLimit = gasLimitOf(errand)
  const payload = { kind: kinds[kind], product, to, data, isCreation, valueWei, gasLimit }
  const transaction = Lane.sign(context, rail, lane, payload, nonce)
  const row: ErrandRow = {
    id,
    kind,
    product,
    network,
    relayer: lane.address,
    nonce,
    to,
    valueWei,
    state: 'broadcast',
    transactionHash: transaction.hash,
    blockNumber: null,
    receipt: null,
    createdAt: now(),
    endedAt: null,
  }
  write(db, () => {
    store.insertTransaction(transaction, [])
    errands.insert(row)
    also?.(transaction.hash)
  })
  context.log('errand-sent', { errand: id, network, transaction: transaction.hash })
  Work.launch(context, rail, lane, Work.slotOf(transaction, [], row), [])
}

async function wait(context: Context, id: string, waitMs: number): Promise<ErrandEnd> {
  const until = context.now() + waitMs
  for (;;) {
    const end = endOf(context, id)
    const leftMs = until - context.now()
    if (end.kind !== 'pending' || leftMs <= 0 || context.signal.aborted) return end
    if (!(await context.errandBell.wait(id, leftMs))) return endOf(context, id)
  }
}

function endOf({ errands }: Context, id: string): ErrandEnd {
  const row = errands.find(id)
  if (!row) throw new Error(`no errand ${id}`)
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

function unavailable(detail: string, retryAfterSeconds: number): Unavailable {
  return { kind: 'unavailable', detail, retryAfterSeconds }
}
