/**
 * Circuit of one upstream. Closed counts failures in a row; open refuses until `probeAt`; then it is
 * half open: requests pass, and the first result decides.
 */
export type Circuit = {
  readonly failures: number
  /** Unix ms; undefined while closed. */
  readonly probeAt: number | undefined
  readonly coolDownMs: number
}

export type Policy = {
  /** Failures in a row that open the circuit. */
  threshold: number
  /** First wait; doubles with every failed probe, up to `coolDownMaxMs`. */
  coolDownMs: number
  coolDownMaxMs: number
}

export type Breaker = {
  /** Whether nothing should be sold that this upstream must deliver. */
  isOpen(origin: string, now: number): boolean
  /** Ms until requests pass again; 0 when they do. */
  retryAfterMs(origin: string, now: number): number
  success(origin: string): void
  /** A connection that failed, a timeout, a cut or a 5xx. */
  failure(origin: string, now: number): void
}

const standard: Policy = { threshold: 5, coolDownMs: 5_000, coolDownMaxMs: 60_000 }

/** State after a failure at `now`. A failure that arrives while open began before: it changes nothing. */
export function afterFailure(circuit: Circuit, policy: Policy, now: number): Circuit {
  if (circuit.probeAt === undefined) {
    const failures = circuit.failures + 1
    if (failures < policy.threshold) return { ...circuit, failures }
    return { failures, probeAt: now + policy.coolDownMs, coolDownMs: policy.coolDownMs }
  }
  if (now < circuit.probeAt) return circuit
  const coolDownMs = Math.min(circuit.coolDownMs * 2, policy.coolDownMaxMs)
  return { failures: circuit.failures + 1, probeAt: now + coolDownMs, coolDownMs }
}

/**
 * Circuits by upstream origin, in memory; origins come from configuration, so the map is bounded.
 * `now` is unix ms.
 */
export function createBreaker(policy: Partial<Policy> = {}): Breaker {
  const used = { ...standard, ...policy }
  const closed: Circuit = { failures: 0, probeAt: undefined, coolDownMs: used.coolDownMs }
  const circuits = new Map<string, Circuit>()

  const retryAfterMs = (origin: string, now: number): number => {
    const probeAt = circuits.get(origin)?.probeAt
    return probeAt === undefined ? 0 : Math.max(0, probeAt - now)
  }
  return {
    isOpen: (origin, now) => retryAfterMs(origin, now) > 0,
    retryAfterMs,
    success: (origin) => {
      circuits.delete(origin)
    },
    failure: (origin, now) => {
      circuits.set(origin, afterFailure(circuits.get(origin) ?? closed, used, now))
    },
  }
}
