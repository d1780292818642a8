import type { Arrival } from '../../../db/payment-reads'
import { moneyKey, type Transfer } from '../../protocol/Transfer'
import { assertConfirmed } from '../read/reads'
import * as Refusals from '../read/refusals'
import { type Outcome, RowsRefusedError } from '../send/Outcome'
import * as Resolve from '../send/resolve'
import { externalRow } from '../send/transaction'
import { about, type ChainState, type Context, type Requested } from '../state/state'
import * as External from './external'

const unsettledMax = 10_000

/** Notes a credential that arrived while no network could settle. */
export function noteUnsettled(
  { unsettled }: Pick<Context, 'unsettled'>,
  transfer: Transfer,
  arrival: Arrival,
): void {
  const key = keyOf(transfer)
  // Keep the first time. With a later one, an external settlement in between would not count.
  if (unsettled.has(key)) return
  const [oldest] = unsettled.keys()
  if (unsettled.size >= unsettledMax && oldest !== undefined) unsettled.delete(oldest)
  unsettled.set(key, arrival)
}

function keyOf(transfer: Transfer): string {
  return `${moneyKey(transfer)} ${transfer.payee} ${transfer.amountAtomic}`.toLowerCase()
}

/**
 * Accepts an external settlement: a transaction of another sender used the nonce before we sent
 * anything. It counts for orders of the desk, whose account has the money, and with exclusive
 * payouts. It also counts when this service refused the credential before the settlement. It does
 * not count when one of our accounts sent it, because another database has answered for it.
 */
export async function acceptExternal(
  context: Context,
  chain: ChainState,
  asked: Requested,
): Promise<Outcome> {
  const { id, transfer, purpose } = asked
  const { ledger, now, log } = context
  const before = context.unsettled.get(keyOf(transfer))
  const isTrusted = purpose.bound && (context.policy.payoutExclusive() || before !== undefined)
  if (purpose.product !== 'desk' && !isTrusted) return Refusals.refuseUsed(transfer)
  try {
    const found = await External.find(context, chain, transfer)
    if (!found || !(await isAcceptable(context, chain, asked, { found, before }))) {
      return Refusals.refuseUsed(transfer)
    }
    await assertConfirmed(context, chain, found.transaction)
    const accepted = await ledger.settling.storeExternal({
      row: externalRow(asked, found, chain.head.number, now()),
      rows: asked.rows,
    })
    if (accepted === 'known') return Refusals.refuseUsed(transfer)
    if (accepted !== 'stored' && accepted.refused === 'money-authorized')
      return Refusals.refuseUsed(transfer)
    if (accepted !== 'stored') throw new RowsRefusedError(accepted.refused)
    log('payment-settled-externally', { ...about(asked), transaction: found.transaction })
    return Resolve.current(context, { id })
  } catch (error) {
    if (error instanceof RowsRefusedError) throw error
    log('settlement-undecided', { ...about(asked), error })
    return Refusals.unavailable(error)
  }
}

async function isAcceptable(
  context: Context,
  chain: ChainState,
  asked: Requested,
  { found, before }: { found: External.Found; before: Arrival | undefined },
): Promise<boolean> {
  const isSince = before !== undefined && External.isSince(context, chain, found, before)
  const counts = External.counts(context, chain, asked, { found, arrival: undefined })
  if (!counts && !isSince) return false
  if (asked.purpose.product !== 'desk' && context.policy.payoutExclusive()) return true
  if (!(await External.isSentByUs(chain, found))) return true
  context.log('settlement-without-record', {
    ...about(asked),
    network: chain.network.id,
    transaction: found.transaction,
  })
  return false
}
