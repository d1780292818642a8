import type { Launched } from '../../../db/Ledger'
import type { PaymentRow, TransactionRow } from '../../../db/schema'
import { isIdentified } from '../../chain/code'
import * as Multicall from '../../chain/multicall'
import type { PaymentRefusal } from '../read/refusals'
import type { Context } from '../state/context'
import * as Gas from '../state/gas-budget'
import type { ChainState, QueuedPayment, Relayer, Requested, Slot, Verdict } from '../state/state'
import { lastOf, launch, slotOf } from './confirm'
import type { Underway } from './Outcome'
import { feesNow, freeNonce, occupy, type Payload, pausedBy, sign, vacate } from './relayer'

type Uses = Pick<Context, 'now'>

/** Payments that share a transaction, and the relayer that sends it. */
export type Batch = {
  relayer: Relayer
  members: readonly QueuedPayment[]
  /** The newest block at the start of their simulation. */
  knownBlock: bigint
  /** The transaction that was signed while the node simulated. */
  draft: TransactionRow | undefined
}

/**
 * Signs the transaction of a lone payment before its simulation ends; undefined where that saves
 * nothing. The draft is discarded if the simulation fails.
 */
export function prepare(
  { now }: Uses,
  chain: ChainState,
  relayer: Relayer,
  [first]: readonly QueuedPayment[],
): TransactionRow | undefined {
  const nonce = freeNonce(relayer)
  if (nonce === undefined || !first || first.code === 'contract') return undefined
  // Where a simulation reads the code, it shows that nearly all payers have none.
  const simulatedCode = chain.abilities.readsCode ? ('eoa' as const) : ('unknown' as const)
  const payload = payloadOf(chain, [{ ...first, simulatedCode }])
  return sign({ now, network: chain.network }, relayer, payload, { nonce, ...feesNow(chain) })
}

/** Whether a draft is still what would be signed now; its fees allow for the block's change. */
function isCurrent(
  draft: TransactionRow,
  chain: ChainState,
  { nonce, gasLimit }: { nonce: number; gasLimit: bigint },
): boolean {
  const { maxFeeWei, maxTipWei } = feesNow(chain)
  return (
    draft.nonce === nonce &&
    draft.gasLimit === gasLimit &&
    draft.maxTipWei === maxTipWei &&
    draft.maxFeeWei >= maxFeeWei - maxFeeWei / 8n
  )
}

/**
 * Decides by one write, then sends, in one turn of the relayer. Members that were written before,
 * or whose rows are refused, get that verdict. Returns the members that were sent, and those that
 * cannot be sent now, which are not written.
 */
export function writeAndSend(context: Context, chain: ChainState, batch: Batch): Promise<Written> {
  return batch.relayer.turn(async () => {
    let { members } = batch
    while (members.length > 0) {
      if (pausedBy(batch.relayer) !== undefined || context.progress.signal.aborted) {
        return { sent: [], unsent: members }
      }
      const result = await writeOnce(context, chain, { ...batch, members })
      if (result.kind === 'stored') {
        follow(context, chain, result.slot, members)
        return { sent: members, unsent: [] }
      }
      const left = dropRefused(members, result)
      if (left.length === members.length)
        throw new Error('a launch was refused for no member of it')
      members = left
    }
    return { sent: [], unsent: [] }
  })
}

type Written = { sent: readonly QueuedPayment[]; unsent: readonly QueuedPayment[] }

type Result =
  | { kind: 'stored'; slot: Slot }
  | Exclude<Launched, { kind: 'stored' }>
  /** The budget of the first member is spent, so nothing was written. */
  | { kind: 'over-budget'; refusal: PaymentRefusal }

/** Occupies the slot before it is written, so that the budgets count it. */
async function writeOnce(context: Context, chain: ChainState, batch: Batch): Promise<Result> {
  const { relayer, members, knownBlock } = batch
  const { ledger, now } = context
  const code = members[0]?.simulatedCode ?? 'unknown'
  // Others may have used up the budget since it was accepted.
  const refusal =
    members[0] && isIdentified(code) && Gas.refuseCode(context, chain, members[0].request.purpose)
  if (refusal) return { kind: 'over-budget', refusal }
  const row = signBatch(context, chain, batch)
  const slot = { ...slotOf(relayer, row, []), code }
  occupy(slot)
  const at = now()
  // This process knows what its payers have under way here, and not at other processes.
  const isAlone = ledger.lanes.isAlone()
  const input = {
    transaction: row,
    fresh: members
      .filter(({ payment }) => payment === undefined)
      .map((member) => ({
        row: sentRow(member, row, { knownBlock, at }),
        rows: member.request.rows,
        fundsAtomic: isAlone ? undefined : member.fundsAtomic,
      })),
    again: members.flatMap(({ payment }) => payment ?? []),
  }
  const launched = await ledger.settling.launch(input).catch((error: unknown) => {
    vacate(slot)
    throw error
  })
  if (launched.kind !== 'stored') {
    vacate(slot)
    return launched
  }
  const payments = new Map(launched.payments.map((payment) => [payment.id, payment]))
  slot.members = members.map(({ request, deliverOnConfirm }): Underway => {
    const payment = payments.get(request.id)
    if (!payment) throw new Error('a member was not written')
    return { payment, requestId: request.requestId, deliverOnConfirm }
  })
  slot.validBefore = lastOf(slot.members)
  return { kind: 'stored', slot }
}

/** Sends the transaction, and reports to each member that it is sent. */
function follow(
  context: Context,
  chain: ChainState,
  slot: Slot,
  queued: readonly QueuedPayment[],
): void {
  const reservations = queued.flatMap(({ reservation }) => reservation ?? [])
  for (const each of queued) each.reservation = undefined
  const endings = launch(context, chain, slot, reservations)
  for (const [index, { done }] of queued.entries()) {
    const [member, ending] = [slot.members[index], endings[index]]
    if (!member || !ending) continue
    context.ceilings.handOver(member.payment.id)
    done({ kind: 'sent', member, ending })
  }
}

function signBatch({ now }: Uses, chain: ChainState, batch: Batch): TransactionRow {
  const { relayer, members, draft } = batch
  const nonce = freeNonce(relayer)
  if (nonce === undefined) throw new Error('the relayer has no nonce')
  const payload = payloadOf(chain, members)
  const { gasLimit } = payload
  if (draft && isCurrent(draft, chain, { nonce, gasLimit })) return draft
  // The fees that the payer's code was simulated with, or the present ones.
  const price = members[0]?.fees ?? feesNow(chain)
  return sign({ now, network: chain.network }, relayer, payload, { nonce, ...price })
}

/** Reports the refusal to members that cannot be written. The others of the batch stay. */
function dropRefused(
  members: readonly QueuedPayment[],
  result: Exclude<Result, { kind: 'stored' }>,
): QueuedPayment[] {
  return members.filter((member, index) => {
    const verdict = verdictOn(result, member, index)
    if (verdict) member.done(verdict)
    return verdict === undefined
  })
}

function verdictOn(
  result: Exclude<Result, { kind: 'stored' }>,
  { request: { id } }: QueuedPayment,
  index: number,
): Verdict | undefined {
  switch (result.kind) {
    case 'known': {
      // UNIQUE on the money decides: what was written before is not sent a second time.
      const payment = result.payments.get(id)
      return payment && { kind: 'known', payment }
    }
    case 'refused':
      return result.ids.includes(id) ? { kind: 'rows-refused', reason: result.reason } : undefined
    case 'over-budget':
      return index === 0 ? result.refusal : undefined
  }
}

function payloadOf(chain: ChainState, members: readonly QueuedPayment[]): Payload {
  const [first] = members
  if (!first) throw new Error('nothing to send')
  const { product } = first.request.purpose
  if (members.length === 1) {
    const { code, simulatedCode, transfer, call } = first
    // Unless the payer is known to be an EOA, allow the gas of a contract signature.
    const isEoa = (simulatedCode === 'unknown' ? code : simulatedCode) === 'eoa'
    const gasLimit = Gas.limitAlone(transfer, !isEoa)
    return { kind: 'payment', product, ...call, valueWei: 0n, gasLimit }
  }
  const gas = members.reduce((sum, { transfer }) => sum + Gas.limitOfMember(chain, transfer), 0n)
  return {
    kind: 'batch',
    product,
    ...Multicall.aggregate(members.map(({ call }) => call)),
    valueWei: 0n,
    gasLimit: Gas.limitOfBatch(gas),
  }
}

/** The row of a payment that is sent with a transaction. */
function sentRow(
  { request, transfer }: QueuedPayment,
  { hash }: TransactionRow,
  { knownBlock, at }: { knownBlock: bigint; at: number },
): PaymentRow {
  return {
    ...rowOf({ ...request, transfer }, knownBlock, at),
    state: 'broadcast',
    transactionHash: hash,
  }
}

/** The row of a payment for which no transaction of ours was written. */
export function rowOf(
  { id, transfer, purpose, receivedAt }: Requested,
  knownBlock: bigint,
  at: number,
): Omit<PaymentRow, 'state' | 'transactionHash'> {
  return {
    id,
    ...transfer,
    ...purpose,
    idempotencyKey: purpose.idempotencyKey ?? null,
    challengeId: purpose.challengeId ?? null,
    credentialHash: purpose.credentialHash ?? null,
    receivedAt,
    knownBlock,
    logIndex: null,
    blockNumber: null,
    delivery: 'none',
    attempts: 0,
    upstreamStatus: null,
    truncated: false,
    answered: false,
    redeemTokenHash: null,
    redeemUntil: null,
    nonceUsed: false,
    permit2612Value: transfer.permit2612?.valueAtomic ?? null,
    permit2612Deadline: transfer.permit2612?.deadline ?? null,
    permit2612Signature: transfer.permit2612?.signature ?? null,
    ceilingAtomic: transfer.upto?.ceilingAtomic ?? null,
    facilitator: transfer.upto?.facilitator ?? null,
    createdAt: at,
    confirmedAt: null,
    deliveredAt: null,
  }
}
