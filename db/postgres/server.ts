import type { ServerState, Standby } from '../Database'
import { readStandby, skewReason } from './checks'
import type { Gateways } from './gateways'
import type { Lines } from './line-pool'

const lookMs = 5_000

/** What the server shows of itself, read now and then. */
export function watchServer(
  lines: Pick<Lines, 'run'>,
  gateways: Pick<Gateways, 'skewMs'>,
): ServerState & { close(): void } {
  let standby: Standby = 'unknown'
  let isLooking = false
  const look = async () => {
    if (isLooking) return
    isLooking = true
    // Without a connection the storage reports the fault.
    await lines.run('beat', readStandby).then(
      (seen) => {
        standby = seen
      },
      () => undefined,
    )
    isLooking = false
  }
  const timer = setInterval(() => void look(), lookMs)
  timer.unref()
  void look()
  return {
    aheadMs: () => -gateways.skewMs(),
    reason: () => skewReason(-gateways.skewMs()),
    standby: () => standby,
    close: () => clearInterval(timer),
  }
}
