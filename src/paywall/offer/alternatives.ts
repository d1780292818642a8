import type { Settlement } from '../../settlement/settlement'
import type { Presentation } from '../credential'

/**
 * Chooses among the transfers that a credential may mean. Without `accepted`, an EIP-3009 payload
 * names no chain, and only the payer's contract can decide which offer was signed.
 */
export async function chooseAlternative(
  settlement: Settlement,
  presentation: Presentation,
): Promise<Presentation> {
  if (presentation.alternatives.length === 0 || presentation.isKeySigned()) return presentation
  let undecided = presentation
  for (const { transfer, refusal } of [presentation, ...presentation.alternatives]) {
    const candidate = { ...presentation, transfer, refusal }
    const known = await settlement.find(transfer)
    if (known?.transfer.signature === transfer.signature) return candidate
    if (refusal() !== undefined || !settlement.isReady(transfer.network)) continue
    const verdict = await settlement.verify(transfer)
    if ('ok' in verdict) return candidate
    if (verdict.kind === 'unavailable') undecided = candidate
  }
  return undecided
}
