/** What a request showed about its upstream. */
type Result = {
  /** Unix ms. */
  at: number
  /**
   * `answer`: the upstream answered. Otherwise no connection could be made, or it did not answer in
   * time, or it answered 502, 503 or 504.
   */
  kind: 'answer' | Failure['kind']
  payer: string
}

export type Failure = {
  kind: 'connect' | 'silence'
  /** Account that paid for the request. */
  payer: string
}

type BreakerPolicy = {
  /** Least number of failures that opens the circuit. */
  threshold: number
  /** Least number of payers that these failures come from. */
  payersMin: number
  /** First wait; doubles with every failed probe, up to `coolDownMaxMs`. */
  coolDownMs: number
  coolDownMaxMs: number
}

export type Breaker = ReturnType<typeof createBreaker>

/**
 * Closed while `probeAt` is undefined. Until `probeAt` (unix ms) it is open; then it is half open:
 * requests pass, and the first answer closes it.
 */
type Circuit = { results: Result[]; probeAt: number | undefined; coolDownMs: number }

const standard: BreakerPolicy = {
  threshold: 5,
  payersMin: 3,
  coolDownMs: 5_000,
  coolDownMaxMs: 60_000,
}

/** Results of the last seconds, or the newest ones where there were few requests. */
const windowMs = 10_000
const newest = 20
const ageMaxMs = 120_000
const keptMax = 512

/**
 * Stops sales that an upstream cannot deliver. A buyer chooses its request, so one buyer must not
 * open the circuit for all. A 500 does not count. Failures that a request can cause (a timeout,
 * 502, 503, 504) count only from several payers and as half of the newest results. A buyer cannot
 * cause a failed connection, so several in a row are enough.
 *
 * Circuits by upstream origin, in memory. Origins come from configuration, so the map is bounded.
 * `now` is unix ms.
 */
export function createBreaker(policy: Partial<BreakerPolicy> = {}) {
  const used = { ...standard, ...policy }
  const circuits = new Map<string, Circuit>()

  const circuitOf = (origin: string): Circuit => {
    let circuit = circuits.get(origin)
    if (circuit === undefined) {
      circuit = { results: [], probeAt: undefined, coolDownMs: used.coolDownMs }
      circuits.set(origin, circuit)
    }
    return circuit
  }
  /** Ms until requests pass again; 0 when they do. */
  const retryAfterMs = (origin: string, now: number): number => {
    const probeAt = circuits.get(origin)?.probeAt
    return probeAt === undefined ? 0 : Math.max(0, probeAt - now)
  }
  return {
    /** Whether sales that need this upstream must be refused. */
    isOpen: (origin: string, now: number): boolean => retryAfterMs(origin, now) > 0,
    retryAfterMs,
    /** The upstream answered, with any status. */
    success(origin: string, now: number): void {
      const circuit = circuitOf(origin)
      if (circuit.probeAt !== undefined) circuit.results = []
      circuit.probeAt = undefined
      circuit.coolDownMs = used.coolDownMs
      keep(circuit.results, { at: now, kind: 'answer', payer: '' })
    },
    failure(origin: string, { kind, payer }: Failure, now: number): void {
      const circuit = circuitOf(origin)
      const { probeAt } = circuit
      // A result that arrives while the circuit is open belongs to an earlier request.
      if (probeAt !== undefined && now < probeAt) return
      keep(circuit.results, { at: now, kind, payer })
      const isHalfOpen = probeAt !== undefined
      if (isHalfOpen) {
        const payers = new Set(circuit.results.map((result) => result.payer))
        if (kind !== 'connect' && payers.size < Math.min(2, used.payersMin)) return
        circuit.coolDownMs = Math.min(circuit.coolDownMs * 2, used.coolDownMaxMs)
      } else if (!isDown(circuit.results, used, now)) return
      circuit.results = []
      circuit.probeAt = now + circuit.coolDownMs
    },
  }
}

function isDown(results: readonly Result[], policy: BreakerPolicy, now: number): boolean {
  const payers = new Set<string>()
  let count = 0
  let failures = 0
  let unreached = 0
  for (const { at, kind, payer } of results.toReversed()) {
    if (now - at > ageMaxMs || (count >= newest && now - at > windowMs)) break
    if (kind === 'connect' && unreached === count) unreached++
    count++
    if (kind === 'answer') continue
    failures++
    payers.add(payer)
  }
  if (unreached >= policy.threshold) return true
  return failures >= policy.threshold && failures * 2 >= count && payers.size >= policy.payersMin
}

function keep(results: Result[], result: Result): void {
  if (results.length >= keptMax) results.splice(0, keptMax / 2)
  results.push(result)
}
