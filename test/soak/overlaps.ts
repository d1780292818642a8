import type { Finding } from './finding'
import type { Call } from './upstream'

/** Between these times, unix ms, a gateway could be taken for dead. */
export type Disturbance = { gateway: number; from: number; until: number }

/**
 * The upstream works for one payment at a time. A second call may begin during the first one only when
 * the gateway of the first was taken for dead, or was killed and started again. Calls after a whole answer
 * are uses of what was bought, of which several may run at once; their number is audited with their buyers.
 */
export function auditOverlaps(
  calls: readonly Call[],
  disturbances: readonly Disturbance[],
): readonly Finding[] {
  return [...Map.groupBy(calls, ({ paymentId }) => paymentId)].flatMap(([paymentId, made]) => {
    const sorted = made.toSorted((one, other) => one.at - other.at)
    return sorted.flatMap((first, index) => {
      const second = sorted[index + 1]
      if (second === undefined || second.at >= endOf(first)) return []
      const isWhole = (call: Call) => call.end === 'complete' && endOf(call) <= first.at
      if (sorted.slice(0, index).some(isWhole)) return []
      const isExcused = disturbances.some(
        ({ gateway, from, until }) =>
          gateway === first.gateway && from <= second.at && until >= first.at,
      )
      if (isExcused) return []
      const text = `two calls at once for ${paymentId}: ${JSON.stringify([first, second])}`
      return [{ kind: 'double', text } as const]
    })
  })
}

function endOf({ endedAt = Number.POSITIVE_INFINITY }: Call): number {
  return endedAt
}

/** A gateway that continues sends within this time what it was about to send, ms. */
const wakeMs = 1_000

/**
 * Whether a gateway that was paused has made a call that it was about to make. The buyer could get the
 * answer at another gateway meanwhile, and the call counts as an attempt.
 */
export function isOfPaused(
  { gateway, at }: Pick<Call, 'gateway' | 'at'>,
  answeredAt: number,
  disturbances: readonly Disturbance[],
): boolean {
  return disturbances.some(
    (each) => each.gateway === gateway && each.from <= answeredAt && at <= each.until + wakeMs,
  )
}
