import type { Address, Hex } from 'viem'
import type { GrantRow } from '../../db/schema'
import { RpcError, RpcFault } from '../chain/client'
import * as Receipt from '../chain/receipt'
import * as Transaction from '../chain/transaction'
import type { Fault } from '../protocol/Problem'
import { dayStart } from '../protocol/Time'
import type { Transfer } from '../protocol/Transfer'
import { createSemaphore } from '../settlement/read/holdings'
import type { ApprovalRefusal, ApprovalSponsor } from '../settlement/sponsorship'
import type { Meter } from '../settlement/state/metrics'
import * as Approve from './Approve'
import { approvalLimits, approvesMissingMax, createClients } from './clients'
import { estimateApprove, idle, readHolder } from './facts'
import * as Grant from './Grant'
import {
  roomOf,
  type Sponsored,
  type SponsorLedger,
  type SponsorSettlement,
  sendGrant,
} from './ledger'

type ApprovalOptions = {
  ledger: SponsorLedger
  meter: Meter
}

/** A transaction that may be sponsored, and the amount that its payer lacks. */
type Plan = {
  kind: 'good'
  network: Sponsored
  approve: Transaction.Parsed
  /** Zero: the payer can pay for it, and gets nothing. */
  missingWei: bigint
}

/** The approve is on chain already, or the payer needs none. */
type Done = { kind: 'done'; transaction: Hex }

/** First wait (ms) for a receipt; each further one is half as long again, up to the last. */
const pollMs = 100
const pollMaxMs = 2_000
/** Requests that read the chain at once, and those that wait: one takes ten calls to a node. */
const readingMax = 16
const waitingMax = 256
/** Most approves that are sent and not confirmed. */
const underWayMax = 64

type Context = ReturnType<typeof contextOf>

function contextOf({ ledger, meter }: ApprovalOptions) {
  return {
    ledger,
    ...ledger,
    refusals: meter.counter(
      'sponsor_approval_refusals_total',
      'Signed approves that were not sponsored.',
      ['reason'],
    ),
    semaphore: createSemaphore(readingMax, waitingMax),
    /**
     * Running work by payer, because two approves of one payer would compete for one account nonce.
     */
    underWay: new Map<string, { hash: Hex; work: ReturnType<ApprovalSponsor['approve']> }>(),
    /**
     * Which payers were funded for an approve that has not arrived, by network. A payer can use its
     * account nonce otherwise, by a delegation (EIP-7702) that another account sends, and keep the
     * coin. So what is funded without an approve is limited by client, network of clients, and for all.
     */
    arrivals: new Map(
      ledger.networks.map(({ id }) => [
        id,
        { clients: createClients(approvalLimits), readAt: 0, loggedOn: 0 },
      ]),
    ),
  }
}

/** A client of which nothing is known. */
const noClient = 'unknown'

/** Funds the approve that a payer signed and sends it, once per payer. */
export function createApprovalSponsor(options: ApprovalOptions): ApprovalSponsor {
  const context = contextOf(options)
  const { underWay } = context
  return {
    async check(transfer, raw) {
      const planned = await guarded(context, plan(context, transfer, raw))
      return isRefusal(planned) ? planned : { kind: 'good' }
    },
    async approve(transfer, raw, { waitMs, client = noClient }) {
      const id = Grant.idOf(transfer.network, transfer.payer)
      const hash = Transaction.parse(raw)?.hash
      const running = underWay.get(id)
      if (running && running.hash === hash) return running.work
      if (running) return unavailable('Another approve of this payer is under way; try again.', 2)
      if (underWay.size >= underWayMax) return tooMany(1)
      const work = guarded(context, approve(context, transfer, raw, { waitMs, client }))
      if (hash !== undefined) underWay.set(id, { hash, work })
      return work.finally(() => underWay.delete(id))
    },
  }
}

async function plan(
  context: Context,
  transfer: Transfer,
  raw: Hex,
): Promise<Plan | Done | ApprovalRefusal> {
  const judged = context.semaphore.run(() => examine(context, transfer, raw))
  return judged ?? unavailable('Too many approves are being checked; try again.', 1)
}

async function examine(
  context: Context,
  transfer: Transfer,
  raw: Hex,
): Promise<Plan | Done | ApprovalRefusal> {
  const { settlement, grants, networks } = context
  const network = networks.find(({ id }) => id === transfer.network)
  if (network === undefined || transfer.asset !== network.asset.address) {
    return refuse(
      unsponsored,
      'No approves are sponsored for this token: send the approve yourself.',
    )
  }
  if (transfer.method !== 'permit2') {
    return refuse(unsponsored, 'The payment needs no approve: send it without one.')
  }
  const approve = Transaction.parse(raw)
  const fault = Approve.check(approve, transfer)
  if (fault || approve === undefined) return refused(fault)
  const row = await grants.find(network.id, transfer.payer)
  const { hash } = approve
  const isFunded = row?.approveHash === hash
  if (isFunded && (await receiptOf(settlement, network, hash))?.success) {
    return { kind: 'done', transaction: hash }
  }
  // Everything but the allowance must be valid: a payment that cannot succeed gets no funds.
  const verdict = await settlement.verify(transfer)
  if ('ok' in verdict) return { kind: 'done', transaction: hash }
  if (verdict.kind === 'unavailable') return verdict
  if (verdict.kind !== 'refused' || verdict.reason !== 'permit2_allowance_required') {
    return refuse(
      'reason' in verdict ? verdict.reason : 'invalid_payload',
      'The payment fails: send it without an approve for the reason.',
    )
  }
  return judge(context, transfer, { network, approve, row })
}

async function judge(
  { settlement, ledger }: Context,
  { payer }: Transfer,
  // `row`: of a payer that was sponsored before.
  asked: { network: Sponsored; approve: Transaction.Parsed; row: GrantRow | undefined },
): Promise<Plan | ApprovalRefusal> {
  const { network, approve, row } = asked
  const [{ facts, baseFeeWei }, included, pending] = await Promise.all([
    readHolder(settlement, network, payer),
    countOf(settlement, network, payer, 'latest'),
    countOf(settlement, network, payer, 'pending'),
  ])
  const isFree =
    pending === included ||
    (await settlement.rpc(network.id, 'eth_getTransactionByHash', [approve.hash])) !== null
  if (included !== approve.nonce || !isFree) {
    return refuse('erc20_approval_tx_wrong_nonce', `nonce must be ${pending}, and free.`)
  }
  const cost = Approve.worstCostWei(approve)
  const missingWei = cost > facts.balanceWei ? cost - facts.balanceWei : 0n
  const good: Plan = { kind: 'good', network, approve, missingWei }
  // It was checked when it was funded; the price may have changed since.
  if (row?.approveHash === approve.hash) return good
  const gas = await estimateApprove(settlement, network, payer)
  if (gas === undefined)
    return refuse(unsponsored, 'The token refuses the approve: pay from another address.')
  const price = { gas, baseFeeWei, tipWei: settlement.fees(network.id).suggestedTipWei }
  const tooLittle = Approve.checkEnough(approve, price)
  if (tooLittle) return refused(tooLittle)
  if (missingWei === 0n) return good
  if (row) return alreadySponsored
  const refusal = Grant.refusalOf(facts, network.asset, network.sponsor)
  if (refusal) return refuse(codes[refusal.code] ?? unsponsored, refusal.detail)
  const tooMuch = Approve.checkModest(approve, price)
  if (tooMuch) return refused(tooMuch)
  if (missingWei > Grant.capWei(network.sponsor, network.asset.decimals)) {
    return refuse('erc20_approval_tx_fee_too_high', 'It costs more than is sponsored.')
  }
  return (await roomOf(ledger, network)) === 'open' ? good : spent
}

async function approve(
  context: Context,
  transfer: Transfer,
  raw: Hex,
  { waitMs, client }: { waitMs: number; client: string },
): ReturnType<ApprovalSponsor['approve']> {
  const deadline = context.now() + waitMs
  const planned = await plan(context, transfer, raw)
  if (planned.kind === 'done') return { kind: 'approved', transaction: planned.transaction }
  if (planned.kind !== 'good') return planned
  const { network, approve, missingWei } = planned
  const known = await context.grants.find(network.id, transfer.payer)
  const isKnown = known?.approveHash === approve.hash
  if (missingWei > 0n || isKnown) {
    const reserved = isKnown ? undefined : await reserve(context, network, client, transfer.payer)
    if (reserved !== undefined && reserved.kind !== 'reserved') return reserved
    const refusal = await fund(context, planned, transfer, waitMs)
    // Counts only what was sent.
    if (refusal !== undefined && refusal !== underWayYet) reserved?.release()
    if (refusal) return refusal
  }
  const sent = await send(context, network, { hash: approve.hash, raw, deadline })
  if (sent.kind === 'approved') {
    context.arrivals.get(network.id)?.clients.settle([transfer.payer])
  }
  return sent
}

/** Time between two reads of a network, ms. */
const lookMs = 1_000

/**
 * Counts a payer that is to be funded, unless too many that were funded for this client did not arrive.
 * Throws RpcFault or RpcError.
 */
async function reserve(
  { settlement, arrivals, underWay, now, log }: Context,
  network: Sponsored,
  client: string,
  payer: Address,
): Promise<{ kind: 'reserved'; release: () => void } | ApprovalRefusal> {
  const { id } = network
  const known = arrivals.get(id)
  if (known === undefined) throw new Error(`${id} is not sponsored`)
  const { clients } = known
  const day = dayStart(now())
  const missing = clients.unused(client, day)
  if (missing.length > 0 && Math.abs(now() - known.readAt) >= lookMs) {
    known.readAt = now()
    const still = new Set(await idle(settlement, network, missing))
    clients.settle(missing.filter((each) => !still.has(each)))
  }
  if (clients.take(client, day, payer)) {
    return { kind: 'reserved', release: () => clients.releaseReservation(client, day, payer) }
  }
  const left = new Set(clients.unused(client, day))
  if ([...left].some((each) => underWay.has(Grant.idOf(id, each)))) return tooMany(2)
  if (left.size >= approvesMissingMax && known.loggedOn !== day) {
    known.loggedOn = day
    log('approves-missing', { network: id, payers: left.size })
  }
  return closed
}

async function fund(
  { ledger }: Context,
  { network, approve, missingWei }: Plan,
  { payer }: Transfer,
  waitMs: number,
): Promise<ApprovalRefusal | undefined> {
  // The budget does not count these by client: the second half of the day is for requests.
  const funded = await sendGrant(
    ledger,
    {
      network,
      address: payer,
      amountWei: missingWei,
      isSigned: false,
      approveHash: approve.hash,
    },
    waitMs,
  )
  switch (funded.kind) {
    case 'funded':
      return undefined
    case 'pending':
      return underWayYet
    case 'taken':
      return alreadySponsored
    case 'lost':
      return refuse('erc20_approval_broadcast_failed', 'Funding the payer failed.')
    case 'full':
      return spent
    case 'unavailable':
      return funded
  }
}

async function send(
  { settlement, now }: Context,
  network: Sponsored,
  { hash, raw, deadline }: { hash: Hex; raw: Hex; deadline: number },
): Promise<{ kind: 'approved'; transaction: Hex } | ApprovalRefusal> {
  let said = ''
  try {
    await settlement.rpc(network.id, 'eth_sendRawTransaction', [raw])
  } catch (error) {
    if (!(error instanceof RpcError)) throw error
    // The node has it, or it was included or refused: the receipt decides.
    said = error.message
  }
  // Increase the pause: a payer can replace its transaction, and an approve that never comes costs
  // nothing.
  for (let pause = pollMs; ; pause = Math.min(pause * 1.5, pollMaxMs)) {
    const receipt = await receiptOf(settlement, network, hash)
    if (receipt?.success) return { kind: 'approved', transaction: hash }
    if (receipt) return refuse('erc20_approval_broadcast_failed', 'The approve failed on chain.')
    if (said !== '' && !/already|known/i.test(said)) {
      return refuse('erc20_approval_broadcast_failed', 'The network refuses the approve.')
    }
    if (now() >= deadline)
      return unavailable('The approve is not confirmed yet; send the same request again.', 2)
    await Bun.sleep(pause)
  }
}

async function receiptOf(
  settlement: SponsorSettlement,
  { id }: Sponsored,
  hash: Hex,
): Promise<Receipt.Receipt | undefined> {
  return Receipt.parse(await settlement.rpc(id, 'eth_getTransactionReceipt', [hash]))
}

async function countOf(
  settlement: SponsorSettlement,
  { id }: Sponsored,
  payer: string,
  tag: string,
): Promise<number> {
  const count = await settlement.rpc(id, 'eth_getTransactionCount', [payer, tag])
  if (!Receipt.isHex(count)) throw new RpcFault('not a transaction count')
  return Number(count)
}

/** Returns a network fault as an answer, and counts refusals. */
async function guarded<T extends { kind: string }>(
  { refusals }: Context,
  work: Promise<T | ApprovalRefusal>,
) {
  const result = await work.catch((error: unknown): ApprovalRefusal => {
    if (!(error instanceof RpcFault || error instanceof RpcError)) throw error
    return unavailable('The network gives no complete answer; try again.', 5)
  })
  if (isRefusal(result)) {
    refusals.inc({ reason: result.kind === 'refused' ? result.code : 'unavailable' })
  }
  return result
}

/** Not a temporary fault: the payer should choose another way now, and has lost nothing. */
const spent = refuse(
  'erc20_approval_budget_spent',
  'The budget of today for signed approves is spent; a grant may still be requested.',
)

/** Not a temporary fault: the payer should choose another way now. */
const closed = refuse(
  'erc20_approval_budget_spent',
  'Approves that were funded did not arrive, so none is funded now; request a grant.',
)

const alreadySponsored = refuse(
  'erc20_approval_already_sponsored',
  'The payer was sponsored before: send the approve from it.',
)

const underWayYet = unavailable('The payer is being funded; try again.', 2)

const unsponsored = 'erc20_approval_not_sponsored'

/** x402 reasons of the refusals of an address. */
const codes: Readonly<Record<string, string>> = {
  'not-an-eoa': 'erc20_approval_payer_has_code',
  'asset-balance-too-low': 'erc20_approval_balance_too_low',
  'balance-too-young': 'erc20_approval_balance_too_young',
}

function isRefusal(result: { kind: string }): result is ApprovalRefusal {
  return result.kind === 'refused' || result.kind === 'unavailable'
}

function refused(fault: Fault | undefined): ApprovalRefusal {
  return refuse(fault?.code ?? 'erc20_approval_tx_parse_failed', fault?.detail ?? '')
}

function refuse(code: string, detail: string): ApprovalRefusal {
  return { kind: 'refused', code, detail }
}

function unavailable(detail: string, retryAfterSeconds: number): ApprovalRefusal {
  return { kind: 'unavailable', detail, retryAfterSeconds }
}

function tooMany(retryAfterSeconds: number): ApprovalRefusal {
  return unavailable('Too many approves are under way; try again.', retryAfterSeconds)
}
