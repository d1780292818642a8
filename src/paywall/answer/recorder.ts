import type { Payment } from '../../../db/Payment'
import type { WriteEvent } from '../../log'
import * as Amount from '../../protocol/Amount'
import type * as Network from '../../protocol/Network'
import type { Settlement } from '../../settlement/settlement'
import type { Reach } from './stream'
import type { createRedeeming } from './undelivered'

/** Records how much of an answer its buyer got; `decide` is called at the write. Never rejects. */
export type RecordEnd = (status: number, decide: () => Reach) => Promise<void>

export type RecorderOptions = {
  settlement: Pick<Settlement, 'endDelivery'>
  redeeming: ReturnType<typeof createRedeeming>
  /** Symbol of the asset of a network. */
  symbolOf?: ((network: Network.Id) => string | undefined) | undefined
  now: () => number
  log: WriteEvent
}

/**
 * `sold api /hello 0.01 USDC from 0x7099...79C8 in 0.2 s`. Undefined where the buyer got nothing. The
 * time begins with the payment.
 */
export function saleOf(
  { transfer, purpose, createdAt }: Pick<Payment, 'transfer' | 'purpose' | 'createdAt'>,
  outcome: Reach,
  { symbolOf, now }: Pick<RecorderOptions, 'symbolOf' | 'now'>,
): string | undefined {
  if (outcome === 'nothing') return undefined
  const { amountAtomic, network, payer } = transfer
  const amount = `${Amount.toDecimal(amountAtomic, 6).replace(/\.?0+$/, '')} ${symbolOf?.(network) ?? 'USD'}`
  const seconds = (Math.max(0, now() - createdAt) / 1000).toFixed(1)
  const cut = outcome === 'truncated' ? '; the answer was cut' : ''
  return `sold ${purpose.merchant} ${purpose.route || '/'} ${amount} from ${payer.slice(0, 6)}\u2026${payer.slice(-4)} in ${seconds} s${cut}`
}

/** Writes the ends of deliveries. */
export function createRecorder(options: RecorderOptions) {
  const { settlement, redeeming, log } = options
  const recording = new Set<Promise<void>>()
  return {
    of({ requestId }: { requestId: string }, payment: Payment): RecordEnd {
      const record: RecordEnd = async (status, decide) => {
        const fields = { requestId, payment: payment.id, status }
        try {
          let outcome = decide()
          await settlement.endDelivery(payment.id, () => {
            outcome = decide()
            if (outcome === 'nothing') return redeeming.undelivered(payment, status)
            return { delivered: true, upstreamStatus: status, truncated: outcome === 'truncated' }
          })
          log('payment-delivery', { ...fields, outcome }, () => saleOf(payment, outcome, options))
        } catch (error) {
          // No caller waits for this result. The buyer has the answer, and could at worst get it
          // again.
          log('payment-delivery-unrecorded', { ...fields, error })
        }
      }
      return (status, decide) => {
        const recorded = record(status, decide).finally(() => recording.delete(recorded))
        recording.add(recorded)
        return recorded
      }
    },
    /** Resolves when the ends of this turn of the event loop are written, or have failed. */
    async idle(): Promise<void> {
      await new Promise((resolve) => setImmediate(resolve))
      await Promise.all(recording)
    },
  }
}
