import type { Purpose } from '../../../db/Payment'
import type { Transfer } from '../../protocol/Transfer'
import * as Refusals from '../read/refusals'
import { about, type Context, chainOf } from '../state/context'

export type VoidOptions = { id: string; receivedAt: number }

/** `void`: written, and the money is used permanently. A refusal: nothing was written. */
export type Voided = { kind: 'void' } | Refusals.PaymentRefusal

/**
 * Writes a signed ceiling (`amountAtomic`, with `upto`) as void, in one commit. The chain would still
 * take the signature, but only our relayer may settle it, and the ledger refuses its money from now
 * on. Never rejects.
 */
export async function writeVoid(
  context: Context,
  transfer: Transfer,
  purpose: Purpose,
  { id, receivedAt }: VoidOptions,
): Promise<Voided> {
  const { ledger, progress, log, now } = context
  if (progress.isStopping) return Refusals.unavailable(undefined)
  if (ledger.fault() !== undefined) return Refusals.unrecordable
  try {
    const written = await ledger.authorizations.insert({
      id,
      transfer,
      purpose,
      state: 'void',
      charge: { amountAtomic: 0n, units: {} },
      delivered: undefined,
      failedAt: undefined,
      receivedAt,
      knownBlock: chainOf(context, transfer.network).head.number,
      createdAt: now(),
    })
    return written === 'stored' ? { kind: 'void' } : Refusals.refuseUsed(transfer)
  } catch (error) {
    log('settlement-fault', { ...about({ id }), error })
    return Refusals.unavailable(error)
  }
}
