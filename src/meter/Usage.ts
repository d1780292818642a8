import { first, format, get, type Pointer } from './Pointer'
import type { Counter, Preset } from './Preset'

/** The usage that an answer reports, from its one object or from the events so far. */
export type Seen = {
  /** Numbers by unit, unchecked. The last one counts, because services report running totals. */
  numbers: Map<string, unknown>
  model: string | undefined
  /** The pointer to the error that the answer reports. */
  failure: Pointer | undefined
}

/** Numbers by unit. */
export type Counts = Readonly<Record<string, number>>

/** What an answer used. */
export type Usage =
  | { kind: 'used'; counts: Counts; model: string | undefined }
  /** The answer reports no usage, or an impossible one. `reason` is for the operator. */
  | { kind: 'missing'; reason: string }
  /** The answer failed. `isUsed`: it reports its usage all the same. */
  | { kind: 'failed'; reason: string; isUsed: boolean }
  /** The upstream names the charge in a header. */
  | { kind: 'named'; header: string | null }

export function nothing(): Seen {
  return { numbers: new Map(), model: undefined, failure: undefined }
}

/** Reads a whole answer, or one event of a stream. */
export function collect(
  seen: Seen,
  { counters, failures, answeredBy }: Preset,
  value: unknown,
  from: 'answer' | 'event',
): void {
  seen.failure ??= failures.find((pointer) => isError(get(value, pointer)))
  const model = first(value, answeredBy)
  if (typeof model === 'string') seen.model = model
  for (const counter of counters) {
    const number = first(value, counter[from])
    if (number !== undefined) seen.numbers.set(counter.unit, number)
  }
}

/** Services that always send the member leave it empty in an answer without an error. */
function isError(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) return Boolean(value)
  return Object.keys(value).length > 0
}

/** The usage after the last event. */
export function conclude(seen: Seen, counters: readonly Counter[]): Usage {
  const usage = read(seen, counters)
  if (seen.failure === undefined) return usage
  const reason = `the answer has an error at ${format(seen.failure)}`
  return { kind: 'failed', reason, isUsed: usage.kind === 'used' }
}

function read(
  { numbers, model }: Seen,
  counters: readonly Counter[],
): Extract<Usage, { kind: 'used' | 'missing' }> {
  if (numbers.size === 0) return { kind: 'missing', reason: 'the answer has no usage' }
  const counts: Record<string, number> = {}
  for (const { unit, isRequired } of counters) {
    const number = numbers.get(unit)
    if (number === undefined) {
      if (isRequired) return { kind: 'missing', reason: `the usage lacks ${unit}` }
    } else if (Number.isSafeInteger(number) && Number(number) >= 0) counts[unit] = Number(number)
    else return { kind: 'missing', reason: `${unit} is no count: ${shown(number)}` }
  }
  for (const { unit, partOf, isIncluded } of counters) {
    // An impossible number shows that the upstream counts differently from the preset.
    if (isIncluded && (counts[unit] ?? 0) > (counts[partOf ?? ''] ?? 0))
      return { kind: 'missing', reason: `${unit} is more than ${partOf}, which contains it` }
  }
  return { kind: 'used', counts, model }
}

/**
 * The usage of an answer that was not read to its end: the numbers that it reported, and never less
 * output than was counted. `estimate` are tokens.
 */
export function soFar(
  { numbers, model, failure }: Seen,
  counters: readonly Counter[],
  estimate: { input: number; output: number },
): Usage {
  if (failure !== undefined) return conclude({ numbers, model, failure }, counters)
  const counts: Record<string, number> = {}
  for (const { unit } of counters) {
    const number = numbers.get(unit)
    if (Number.isSafeInteger(number) && Number(number) >= 0) counts[unit] = Number(number)
  }
  counts.input ??= estimate.input
  counts.output = Math.max(counts.output ?? 0, estimate.output)
  return { kind: 'used', counts, model }
}

function shown(value: unknown): string {
  // Of an object or a list only its wanted members were read.
  if (typeof value === 'object') return 'an object or a list'
  return (JSON.stringify(value) ?? String(value)).slice(0, 40)
}
