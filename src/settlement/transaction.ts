import type { Payment } from '../../db/Payment'
import type { TransactionRow } from '../../db/schema'
import type { PaymentRow } from '../../db/sqlite/payments'
import { isDuplicate, write } from '../../db/sqlite/write'
import * as Multicall from '../chain/multicall'
import { launch, slotOf } from './confirm'
import type { Context } from './context'
import * as Gas from './gas'
import type { Underway } from './Outcome'
import { feesNow, freeNonce, type Payload, sign } from './relayer'
import type { ChainState, QueuedPayment, Relayer } from './state'

type Uses = Pick<Context, 'ledger' | 'now'>

/** Payments that share a transaction, and the relayer that sends it. */
export type Batch = {
  relayer: Relayer
  members: readonly QueuedPayment[]
  /** The newest block when their simulation began. */
  knownBlock: bigint
  /** Signed while the node simulated. */
  draft: TransactionRow | undefined
}

/**
 * Signs the transaction of a lone payment before its simulation ends; undefined where there is nothing
 * to gain. Nothing is kept if it does not pass.
 */
export function prepare(
  { now }: Uses,
  chain: ChainState,
  relayer: Relayer,
  [first]: readonly QueuedPayment[],
): TransactionRow | undefined {
  const nonce = freeNonce(relayer)
  if (nonce === undefined || !first || first.code === 'contract') return undefined
  // A simulation that reads the code shows that nearly all payers have none.
  const simulatedCode = chain.abilities.readsCode ? ('eoa' as const) : ('unknown' as const)
  const payload = payloadOf(chain, [{ ...first, simulatedCode }])
  return sign({ now, network: chain.network }, relayer, payload, { nonce, ...feesNow(chain) })
}

/** Whether a draft is still what would be signed now; its fees leave room for the block's change. */
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
 * The write that decides, then the send. Members that were written before, or whose own write throws,
 * are told so; returns those that were sent.
 */
export function writeAndSend(
  context: Context,
  chain: ChainState,
  batch: Batch,
): readonly QueuedPayment[] {
  const { relayer, knownBlock } = batch
  let { members } = batch
  for (;;) {
    const row = signBatch(context, chain, { ...batch, members })
    try {
      const payments = store(context, members, row, knownBlock)
      const underway = members.map(({ requestId, deliverOnConfirm }, index): Underway => {
        const payment = payments[index]
        if (!payment) throw new Error('a member was not written')
        return { payment, requestId, deliverOnConfirm }
      })
      const slot = {
        ...slotOf(relayer, row, underway),
        code: members[0]?.simulatedCode ?? 'unknown',
      }
      const endings = launch(context, chain, slot)
      for (const [index, { done }] of members.entries()) {
        const [member, ending] = [underway[index], endings[index]]
        if (member && ending) done({ kind: 'sent', member, ending })
      }
      return members
    } catch (error) {
      if (!(error instanceof WriteError) && !isDuplicate(error)) throw error
      const left =
        error instanceof WriteError ? dropThrown(members, error) : dropKnown(context, members)
      if (left.length === members.length) throw error
      if (left.length === 0) return []
      members = left
    }
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

/** UNIQUE on the money is the verdict: money that was written before is not sent a second time. */
function dropKnown({ ledger }: Uses, members: readonly QueuedPayment[]): QueuedPayment[] {
  return members.filter(({ payment, transfer, done }) => {
    const known = payment ? undefined : ledger.payments.find(transfer)
    if (known) done({ kind: 'known', payment: known })
    return known === undefined
  })
}

/** The others of the batch are not to blame. */
function dropThrown(members: readonly QueuedPayment[], { id, cause }: WriteError): QueuedPayment[] {
  return members.filter((member) => {
    if (member.id !== id) return true
    member.done({ kind: 'thrown', error: cause })
    return false
  })
}

function payloadOf(chain: ChainState, members: readonly QueuedPayment[]): Payload {
  const [first] = members
  if (!first) throw new Error('nothing to send')
  const { product } = first.purpose
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

/** Payments and transaction in one write. Throws a duplicate when one of the payments is known. */
function store(
  { ledger, now }: Uses,
  members: readonly QueuedPayment[],
  row: TransactionRow,
  knownBlock: bigint,
): Payment[] {
  const { payments: statements, transactions, db } = ledger
  const at = now()
  return write(db, () => {
    const payments = members.map((member): Payment => {
      const { payment, id } = member
      if (payment) {
        if (!statements.rebroadcast(id, row.hash)) {
          throw new Error(`payment ${id} is not to be sent again`)
        }
        return { ...payment, state: 'broadcast', transaction: row.hash }
      }
      statements.insertPayment({
        ...rowOf(member, knownBlock, at),
        state: 'broadcast',
        transactionHash: row.hash,
      })
      alsoWrite(member)
      return paymentOf(member, row.hash, at)
    })
    transactions.insertTransaction(
      row,
      members.map(({ id }) => id),
    )
    return payments
  })
}

/** What a product wanted written beside its payment could not be written. */
export class WriteError extends Error {
  override name = 'WriteError'
  readonly id: string

  constructor(id: string, cause: unknown) {
    super('what was to be written with a payment was refused', { cause })
    this.id = id
  }
}

/** Runs what goes with a payment. Throws WriteError; call after its insert. */
export function alsoWrite({ id, write: also }: Pick<QueuedPayment, 'id' | 'write'>): void {
  try {
    also?.(id)
  } catch (error) {
    throw new WriteError(id, error)
  }
}

/** The row of a payment that nothing has happened to. */
export function rowOf(
  {
    id,
    transfer,
    purpose,
    receivedAt,
  }: Pick<QueuedPayment, 'id' | 'transfer' | 'purpose' | 'receivedAt'>,
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
    createdAt: at,
    confirmedAt: null,
    deliveredAt: null,
  }
}

/** The same without reading it back. */
function paymentOf(
  { id, transfer, purpose }: QueuedPayment,
  transaction: Payment['transaction'],
  createdAt: number,
): Payment {
  return {
    id,
    transfer,
    purpose,
    state: 'broadcast',
    nonceUsed: false,
    transaction,
    logIndex: undefined,
    blockNumber: undefined,
    delivery: 'none',
    attempts: 0,
    upstreamStatus: undefined,
    truncated: false,
    answered: false,
    redeemTokenHash: undefined,
    redeemUntil: undefined,
    createdAt,
    confirmedAt: undefined,
    deliveredAt: undefined,
  }
}
