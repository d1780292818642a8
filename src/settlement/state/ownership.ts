import type { Address } from 'viem'
import type { Payment } from '../../../db/Payment'
import type { ChainState, Context } from './state'

/** Whether this process has the duties of a network that need no account. */
export function keeps({ ledger }: Pick<Context, 'ledger'>, { network }: ChainState): boolean {
  return ledger.lanes.has({ network: network.id, relayer: undefined })
}

/** How often a payment of another process is read, beside its notifications, ms. */
const lookMs = 500

type Waiting = {
  isOver: (payment: Payment) => boolean
  /** Asked while there is no payment: true when there will be none. */
  isGivenUp?: () => Promise<boolean>
  /** Longest wait, ms. */
  waitMs: number
}

/**
 * Waits for a payment that another process drives. Resolves with it as soon as `isOver` accepts it,
 * or after the time as it is then; undefined while it is not written, and when it is given up.
 */
export async function waitForOther(
  { ledger, events, progress }: Pick<Context, 'ledger' | 'events' | 'progress'>,
  id: string,
  { isOver, isGivenUp, waitMs }: Waiting,
): Promise<Payment | undefined> {
  for (let leftMs = waitMs; ; leftMs -= lookMs) {
    const change = events.payments.wait(id, Math.max(0, Math.min(lookMs, leftMs)))
    try {
      const payment = await ledger.payments.findById(id)
      if (payment && isOver(payment)) return payment
      if (leftMs <= 0 || progress.signal.aborted) return payment
      if (payment === undefined && (await isGivenUp?.())) return undefined
      await change.changed
    } finally {
      change.end()
    }
  }
}

/**
 * Whether another process drives a payment: it has the account of the payment's open transaction. A
 * reverted payment has none, so any process may send it again.
 */
export async function isPaymentOfAnother(
  { ledger, chains }: Pick<Context, 'ledger' | 'chains'>,
  { id, state, transaction, transfer }: Pick<Payment, 'id' | 'state' | 'transaction' | 'transfer'>,
): Promise<boolean> {
  if (!ledger.lanes.isShared || state === 'reverted') return false
  const sent = await ledger.transactions.ofPayment(id)
  const current = sent.find(({ hash }) => hash === transaction)
  return current !== undefined && isOthers({ ledger, chains }, transfer.network, current.relayer)
}

/**
 * Whether this process must leave an account's transactions alone. One of ours that no process has is
 * left alone as well: its next holder drives them. An account that is no longer configured gets no
 * holder, so the network's keeper drives what it sent.
 */
export function isOthers(
  { ledger, chains }: Pick<Context, 'ledger' | 'chains'>,
  network: Payment['transfer']['network'],
  relayer: Address,
): boolean {
  const { lanes } = ledger
  const lane = { network, relayer }
  if (!lanes.isShared || lanes.has(lane)) return false
  const isOurs = chains.get(network)?.relayers.some(({ address }) => address === relayer)
  return isOurs === true || lanes.isOfAnother(lane)
}
