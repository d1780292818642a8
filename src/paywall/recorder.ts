import type { Payment } from '../../db/Payment'
import type { WriteEvent } from '../log'
import type { Settlement } from '../settlement/settlement'
import type { Reach } from './stream'
import type { createRedeeming } from './undelivered'

/** Records how much of an answer its buyer got; `decide` is called at the write. Never rejects. */
export type RecordEnd = (status: number, decide: () => Reach) => Promise<void>

/** Writes the ends of deliveries. */
export type Recorder = {
  of(request: { requestId: string }, payment: Payment): RecordEnd
  /** Resolves when the ends of this turn of the event loop are written, or have failed. */
  idle(): Promise<void>
}

export type RecorderOptions = {
  settlement: Pick<Settlement, 'endDelivery'>
  redeeming: ReturnType<typeof createRedeeming>
  log: WriteEvent
}

export function createRecorder({ settlement, redeeming, log }: RecorderOptions): Recorder {
  const recording = new Set<Promise<void>>()
  return {
    of({ requestId }, payment) {
      const record: RecordEnd = async (status, decide) => {
        const fields = { requestId, payment: payment.id, status }
        try {
          let outcome = decide()
          await settlement.endDelivery(payment.id, () => {
            outcome = decide()
            if (outcome === 'nothing') return redeeming.undelivered(payment, status)
            return { delivered: true, upstreamStatus: status, truncated: outcome === 'truncated' }
          })
          log('payment-delivery', { ...fields, outcome })
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
    async idle() {
      await new Promise((resolve) => setImmediate(resolve))
      await Promise.all(recording)
    },
  }
}
