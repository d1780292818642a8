import type { TransactionRow } from '../../db/schema'
import { isDuplicate, write } from '../../db/write'
import { type Fees, fees } from '../chain/head'
import * as Multicall from '../chain/multicall'
import { accept } from './accept'
import * as ChainClock from './clock'
import { findPlain } from './code'
import { type ChainState, type Context, type Order, payerKey, type Relayer } from './context'
import * as Gas from './gas'
import type { Payment } from './Payment'
import * as Relayers from './relayer'
import { simulate } from './simulate'
import type { PaymentRow } from './store'
import * as Verify from './verify'
import * as Work from './work'

/**
 * Simulates orders together and sends those that pass in one transaction: directly when it is one,
 * else inside Multicall3. Every order is `done`, unless it is returned: the relayer cannot send any
 * more, and nothing was written. The relayer is preparing meanwhile. Never rejects.
 */
export async function dispatch(
  context: Context,
  chain: ChainState,
  relayer: Relayer,
  queued: readonly Order[],
): Promise<readonly Order[]> {
  const knownBlock = chain.head.number
  const orders = dropUnsigned(context, queued)
  if (orders.length === 0) return []
  try {
    const simulating = simulate(chain, relayer.address, orders, ChainClock.chainNow(context, chain))
    context.simulating.add(simulating)
    // While the node works: its answer is waited for anyway.
    const draft = orders.length === 1 ? prepare(context, chain, relayer, orders) : undefined
    const [simulations, plain] = await Promise.all([
      simulating.finally(() => context.simulating.delete(simulating)),
      findPlainAgain(chain, orders),
    ])
    // From here to `launch` nothing waits: what was simulated is written, then sent.
    if (Relayers.pausedBy(relayer) !== undefined || context.signal.aborted) return orders
    const accepted = accept(context, chain, orders, { simulations, plain })
    const coded = plain && accepted.filter(({ transfer }) => !plain.has(transfer.payer))
    for (const order of coded ?? []) {
      chain.plain.delete(order.transfer.payer)
      order.isAlone = true
      order.isUrgent = true
    }
    const shared = accepted.filter((order) => !coded?.includes(order))
    if (shared.length > 0) send(context, chain, relayer, shared, knownBlock, draft)
    return coded ?? []
  } catch (error) {
    context.log('settlement-fault', {
      network: chain.network.id,
      requestIds: orders.flatMap(({ requestId }) => requestId ?? []),
      error,
    })
    for (const order of orders) order.done(Verify.unavailable(error))
  }
  return []
}

/** Who may share a transaction was found out earlier: a payer can delegate to code at any time. */
async function findPlainAgain(chain: ChainState, orders: readonly Order[]) {
  if (orders.length < 2) return undefined
  return findPlain(chain, [...new Set(orders.map(({ transfer }) => transfer.payer))])
}

/** Those whose signer is known, or need not be known before a node is asked. */
function dropUnsigned({ trust }: Context, orders: readonly Order[]): readonly Order[] {
  const isOne = orders.length === 1
  return orders.filter((order) => {
    const { transfer, isAlone, isProven } = order
    if (isProven === undefined) return true
    // Who is sent alone for its code is told apart from who signs.
    if (!isAlone && trust.isGiven(payerKey(transfer), isOne)) return true
    if (isProven()) order.isProven = undefined
    else order.done({ kind: 'unsigned' })
    return order.isProven === undefined
  })
}

/** The transaction of a lone order, for when it passes; nothing is kept if it does not. */
function prepare(
  context: Context,
  chain: ChainState,
  relayer: Relayer,
  orders: readonly Order[],
): TransactionRow | undefined {
  const nonce = Relayers.freeNonce(relayer)
  const [first] = orders
  if (nonce === undefined || !first || first.hasCode === true) return undefined
  // A simulation that reads the code shows that nearly all payers have none.
  const code = chain.readsCode ? 'none' : undefined
  return Relayers.sign(context, chain, relayer, payloadOf(chain, [{ ...first, code }]), nonce)
}

/** Whether a draft is still what would be signed now; its fees leave room for the block's change. */
function isCurrent(
  draft: TransactionRow,
  { head, network }: ChainState,
  nonce: number,
  gasLimit: bigint,
): boolean {
  const { maxFeeWei, maxTipWei } = fees(head, network.feeCapWei)
  return (
    draft.nonce === nonce &&
    draft.gasLimit === gasLimit &&
    draft.maxTipWei === maxTipWei &&
    draft.maxFeeWei >= maxFeeWei - maxFeeWei / 8n
  )
}

/** The write that decides, then the send. */
function send(
  context: Context,
  chain: ChainState,
  relayer: Relayer,
  orders: readonly Order[],
  knownBlock: bigint,
  draft: TransactionRow | undefined,
): void {
  let members = orders
  for (;;) {
    const nonce = Relayers.freeNonce(relayer)
    if (nonce === undefined) throw new Error('the relayer has no nonce')
    const payload = payloadOf(chain, members)
    const row =
      draft && isCurrent(draft, chain, nonce, payload.gasLimit)
        ? draft
        : Relayers.sign(context, chain, relayer, payload, nonce, feesOf(chain, members))
    try {
      const payments = store(context, members, row, knownBlock)
      const slot = { ...Work.slotOf(row, payments), code: members[0]?.code }
      const outcomes = Work.launch(context, chain, relayer, slot, payments)
      for (const [index, order] of members.entries()) {
        const [payment, outcome] = [payments[index], outcomes[index]]
        if (payment && outcome) order.done({ kind: 'sent', payment, outcome })
        noteSigner(context, order, members.length === 1)
      }
      return
    } catch (error) {
      if (!(error instanceof WriteError) && !isDuplicate(error)) throw error
      const left =
        error instanceof WriteError ? dropThrown(members, error) : dropKnown(context, members)
      if (left.length === members.length) throw error
      if (left.length === 0) return
      members = left
    }
  }
}

/** Whose key signs may be believed next time. Recovering it now takes no time: the bytes have left. */
function noteSigner({ trust }: Context, order: Order, isOne: boolean): void {
  const { transfer, hasCode, isProven } = order
  // Of several, those with code were told apart.
  const isSigner = isProven === undefined ? hasCode !== true : !isOne || isProven()
  if (isSigner) trust.earn(payerKey(transfer))
  else trust.withdraw(payerKey(transfer))
}

/** UNIQUE on the money is the verdict: whatever was written before goes no second time. */
function dropKnown(context: Context, orders: readonly Order[]): Order[] {
  return orders.filter((order) => {
    const known = order.payment ? undefined : context.store.find(order.transfer)
    if (known) order.done({ kind: 'known', payment: known })
    return known === undefined
  })
}

/** The others of the batch are not to blame. */
function dropThrown(orders: readonly Order[], { id, cause }: WriteError): Order[] {
  return orders.filter((order) => {
    if (order.id !== id) return true
    order.done({ kind: 'thrown', error: cause })
    return false
  })
}

/** The fees that the payer's code was simulated with, or the present ones. */
function feesOf({ head, network }: ChainState, [first]: readonly Order[]): Fees {
  return first?.fees ?? fees(head, network.feeCapWei)
}

function payloadOf(chain: ChainState, orders: readonly Order[]): Relayers.Payload {
  const [first] = orders
  if (!first) throw new Error('nothing to send')
  const { product } = first.purpose
  if (orders.length === 1) {
    // Unless the payer is known to have no code, allow the gas of a contract signature.
    const mayHaveCode = first.code === undefined ? first.hasCode !== false : first.code !== 'none'
    const gasLimit = Verify.gasLimit(first.transfer, mayHaveCode)
    return { kind: 'payment', product, ...first.call, valueWei: 0n, gasLimit }
  }
  const members = orders.reduce((sum, { transfer }) => sum + Gas.limitOf(chain, transfer), 0n)
  return {
    kind: 'batch',
    product,
    ...Multicall.aggregate(orders.map(({ call }) => call)),
    valueWei: 0n,
    gasLimit: Gas.limitOfBatch(members),
  }
}

/** Payments and transaction in one write. Throws a duplicate when one of the payments is known. */
function store(
  context: Context,
  orders: readonly Order[],
  row: Parameters<Context['store']['insertTransaction']>[0],
  knownBlock: bigint,
): Payment[] {
  const { store: statements, db, now } = context
  const at = now()
  return write(db, () => {
    const payments = orders.map((order): Payment => {
      const { payment, id } = order
      if (payment) {
        if (!statements.rebroadcast(id, row.hash)) {
          throw new Error(`payment ${id} is not to be sent again`)
        }
        return { ...payment, state: 'broadcast', transaction: row.hash }
      }
      statements.insertPayment({
        ...rowOf(order, knownBlock, at),
        state: 'broadcast',
        transactionHash: row.hash,
      })
      alsoWrite(order)
      return paymentOf(order, row.hash, at)
    })
    statements.insertTransaction(
      row,
      orders.map(({ id }) => id),
    )
    return payments
  })
}

/** What an order wanted written beside its payment could not be written. */
export class WriteError extends Error {
  override name = 'WriteError'
  readonly id: string

  constructor(id: string, cause: unknown) {
    super('what was to be written with a payment was refused', { cause })
    this.id = id
  }
}

/** Runs what goes with a payment. Throws WriteError; call after its insert. */
export function alsoWrite({ id, write: also }: Pick<Order, 'id' | 'write'>): void {
  try {
    also?.(id)
  } catch (error) {
    throw new WriteError(id, error)
  }
}

/** The row of a payment that nothing has happened to. */
export function rowOf(
  { id, transfer, purpose, receivedAt }: Pick<Order, 'id' | 'transfer' | 'purpose' | 'receivedAt'>,
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
  { id, transfer, purpose }: Order,
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
