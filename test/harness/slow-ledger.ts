import type { Ledger } from '../../db/Ledger'

/**
 * The ledger as one on another host would answer: turns of the event loop pass before a call is made and
 * before its answer is there. `turns`: how many of each.
 */
export function slowLedger(ledger: Ledger, turns: () => number): Ledger {
  const late = async (call: () => unknown) => {
    for (let left = turns(); left > 0; left--) await new Promise(setImmediate)
    const answer = await call()
    for (let left = turns(); left > 0; left--) await new Promise(setImmediate)
    return answer
  }
  const slow = (group: object): object =>
    Object.fromEntries(
      Object.entries(group).map(([name, value]) => [
        name,
        typeof value === 'function' ? (...args: unknown[]) => late(() => value(...args)) : value,
      ]),
    )
  // These answer from memory, also when the database is on another host.
  const { gas, failures, lanes, fault, writable, onChange, flush, ...groups } = ledger
  const slowed = Object.entries(groups).map(([name, group]) => [name, slow(group)])
  return { gas, failures, lanes, fault, writable, onChange, flush, ...Object.fromEntries(slowed) }
}
