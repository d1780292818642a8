import type { Lane, LaneLedger, LaneListener } from '../../db/LaneLedger'

/**
 * Lanes that several settlements of one test process share, given and taken by hand. The database
 * decides nothing here: a test of the fence needs PostgreSQL.
 */
export function createFakeLanes() {
  const holders = new Map<string, string>()
  const epochs = new Map<string, number>()
  const nonces = new Map<string, number>()
  const processes = new Map<string, { lanes: readonly Lane[]; listener: LaneListener }>()
  const keyOf = ({ network, relayer = '0x' }: Lane) => `${network} ${relayer}`

  const give = async (process: string, isGiven: (lane: Lane) => boolean = () => true) => {
    const own = processes.get(process)
    for (const lane of own?.lanes ?? []) {
      if (!isGiven(lane) || holders.has(keyOf(lane))) continue
      holders.set(keyOf(lane), process)
      epochs.set(keyOf(lane), (epochs.get(keyOf(lane)) ?? 0) + 1)
      await own?.listener.taken({ ...lane, nextNonce: nonces.get(keyOf(lane)) ?? 0 })
    }
  }
  return {
    /** The lanes as one process sees them. */
    of: (process: string): LaneLedger => ({
      isShared: true,
      has: (lane) => holders.get(keyOf(lane)) === process,
      epochOf: (lane) =>
        holders.get(keyOf(lane)) === process ? epochs.get(keyOf(lane)) : undefined,
      gateways: () => 2,
      isOfAnother: (lane) => (holders.get(keyOf(lane)) ?? process) !== process,
      isFresh: () => true,
      async start(lanes, listener) {
        processes.set(process, { lanes, listener })
      },
      retire: () => undefined,
    }),
    /** Gives a process the free lanes; resolves when it has taken them. */
    give,
    /** A process has died, or has left. */
    free(process: string) {
      for (const [key, holder] of holders) if (holder === process) holders.delete(key)
    },
    /** Whether the process gives these lanes back when it is asked. They have no holder then. */
    release(process: string, isAsked: (lane: Lane) => boolean = () => true): boolean[] {
      const own = processes.get(process)
      return (own?.lanes ?? []).filter(isAsked).map((lane) => {
        const isGiven = own?.listener.release(lane) ?? true
        if (isGiven) holders.delete(keyOf(lane))
        return isGiven
      })
    },
    /** The process has no more than its part. */
    keep(process: string, network: Lane['network']) {
      processes.get(process)?.listener.keep({ network })
    },
    /** What the database has as the next account nonce of every lane. */
    setNonce(nonce: number) {
      for (const { lanes } of processes.values())
        for (const lane of lanes) nonces.set(keyOf(lane), nonce)
    },
  }
}
