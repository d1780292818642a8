import { isEventStream } from '../protocol/Header'
import { overrideHeader } from './Charge'
import type * as Meter from './Meter'
import type { Preset } from './Preset'
import * as Scanner from './Scanner'
import * as Text from './Text'
import * as Usage from './Usage'

export type Head = { status: number; headers: Headers }

/** Reads the usage of an answer while it passes. It keeps no chunk and changes none. */
export type Reader = {
  add(chunk: Uint8Array): void
  /** The usage, after the last chunk. */
  end(): Usage.Usage
  /** The same of an answer that was not read to its end: what it reports, and what it contains. */
  soFar(inputTokens: number): Usage.Usage
}

/**
 * Reads an answer as it comes from the upstream, unencoded: an event stream, a JSON object, a JSON
 * array of events, or JSON objects one after the other.
 */
export function createReader({ preset, plan }: Meter.Meter, { status, headers }: Head): Reader {
  const isFailure = status < 200 || status > 299
  if (isFailure)
    return constant({ kind: 'failed', reason: `the status is ${status}`, isUsed: false })
  if (preset === 'header') return constant({ kind: 'named', header: headers.get(overrideHeader) })
  if (plan.counters.length === 0)
    return constant({ kind: 'missing', reason: 'this meter has no units' })
  if (/\S/.test((headers.get('content-encoding') ?? '').replace(/^identity$/i, '')))
    return constant({ kind: 'missing', reason: 'the answer is encoded' })
  const isEvents = isEventStream(headers)
  const seen = Usage.nothing()
  const { root, needles } = planOf(plan)
  const scanner = Scanner.createScanner(
    root,
    (found, isElement) =>
      Usage.collect(seen, plan, found, isEvents || isElement ? 'event' : 'answer'),
    { mayBeArray: !isEvents },
  )
  const read = isEvents ? createEvents(scanner, needles) : scanner.add
  const estimate = Text.createEstimate(plan.texts)
  const add = (chunk: Uint8Array) => {
    read(chunk)
    estimate.add(chunk)
  }
  return {
    add: plan.texts.length === 0 ? read : add,
    end: () => Usage.conclude(seen, plan.counters),
    soFar: (input) => Usage.soFar(seen, plan.counters, { input, output: estimate.tokens() }),
  }
}

function constant(usage: Usage.Usage): Reader {
  return { add: () => {}, end: () => usage, soFar: () => usage }
}

/** What is looked for in the answers of a preset. */
type Plan = { root: Scanner.Node; needles: readonly Buffer[] }

const plans = new WeakMap<Preset, Plan>()

/** Made once for each preset, because the first byte of an answer waits for it. */
function planOf(preset: Preset): Plan {
  const known = plans.get(preset)
  if (known !== undefined) return known
  const { counters, failures, answeredBy } = preset
  const pointers = counters.flatMap(({ event, answer }) => [...event, ...answer])
  const root = Scanner.compile([...pointers, ...failures, ...answeredBy])
  const plan = { root, needles: makeNeedles(preset) }
  plans.set(preset, plan)
  return plan
}

/** Called on arrays that are not buffers, too: making buffers takes longer than the search. */
const { indexOf, lastIndexOf } = Buffer.prototype

/** The common ends of the last names of all pointers: `_tokens"` instead of nine names. */
function makeNeedles({ counters, failures }: Preset): readonly Buffer[] {
  const pointers = counters.flatMap(({ event, answer }) => [...event, ...answer])
  const ends = pointers.map((pointer) => JSON.stringify(pointer.at(-1) ?? ''))
  const common = ends.reduce(commonEnd)
  const names = common.length >= endMin ? [common] : ends
  const all = [...names, ...failures.map((pointer) => JSON.stringify(pointer.at(-1) ?? ''))]
  return [...new Set(all)].map((needle) => Buffer.from(needle))
}

/** Shorter ends would match in every event. */
const endMin = 5

function commonEnd(a: string, b: string): string {
  let length = 0
  while (length < Math.min(a.length, b.length) && a.at(-length - 1) === b.at(-length - 1)) length++
  return a.slice(a.length - length)
}

const newline = 0x0a
const carriage = 0x0d
const lineEnd = new Uint8Array([newline])
const mark = new Uint8Array([0xef, 0xbb, 0xbf])
const field = new TextEncoder().encode('data:')

/**
 * Server-sent events: the data lines of an event make one text. Lines end with LF, CRLF or CR. They
 * may have any length.
 */
function createEvents(scanner: Scanner.Scanner, needles: readonly Buffer[]) {
  /** The part of `field` that the line begins with; -1 in a line of another field. */
  let matched = 0
  /** The part of the byte order mark that the stream begins with; -1 after it. */
  let marked = 0
  let isAfterCarriage = false
  let hasData = false
  const endLine = (code: number) => {
    if (matched === field.byteLength) {
      scanner.add(lineEnd)
      hasData = true
    } else if (matched === 0) {
      scanner.reset()
      hasData = false
    }
    matched = 0
    marked = -1
    isAfterCarriage = code === carriage
  }
  const read = (chunk: Uint8Array) => {
    const size = chunk.byteLength
    for (let at = 0; at < size; at++) {
      if (matched < 0 || matched === field.byteLength) {
        const start = at
        while (at < size && chunk[at] !== newline && chunk[at] !== carriage) at++
        if (matched > 0) scanner.add(chunk.subarray(start, at))
        if (at === size) return
      }
      const code = chunk[at] ?? 0
      const isSecond = code === newline && isAfterCarriage
      isAfterCarriage = false
      if (isSecond) continue
      if (code === newline || code === carriage) endLine(code)
      else if (code === mark[marked]) marked = marked === 2 ? -1 : marked + 1
      else {
        matched = code === field[matched] ? matched + 1 : -1
        marked = -1
      }
    }
  }
  const isBetween = () => matched === 0 && !hasData && !isAfterCarriage && marked <= 0
  return (chunk: Uint8Array) => {
    const size = chunk.byteLength
    let at = 0
    if (!isBetween()) {
      at = size < searchMinBytes ? size : endOfEvent(chunk, 0)
      read(at === size ? chunk : chunk.subarray(0, at))
    }
    if (at === size) return
    // Skips whole events without such a name, which leave no state behind.
    const next = createSearch(chunk, needles)
    while (at < size) {
      const found = next(at)
      const start = startOfEvent(chunk, at, found ?? size)
      if (start > at) marked = -1
      const end = found === undefined ? size : endOfEvent(chunk, found)
      if (start < end) read(chunk.subarray(start, end))
      at = end
    }
  }
}

/** A shorter rest of an event is read at once, because searching for its end takes longer. */
const searchMinBytes = 512

/** An empty line, with which most services end an event. Events with another end are all read. */
const emptyLine = Buffer.from('\n\n')

/** The index after the first event that ends at a place or later; the length without one. */
function endOfEvent(chunk: Uint8Array, from: number): number {
  const at = indexOf.call(chunk, emptyLine, from)
  return at < 0 ? chunk.byteLength : at + emptyLine.byteLength
}

/** The index after the last event that ends between the two places; the first place without one. */
function startOfEvent(chunk: Uint8Array, from: number, to: number): number {
  const last = to - emptyLine.byteLength
  const at = last < from ? -1 : lastIndexOf.call(chunk, emptyLine, last)
  return at < from ? from : at + emptyLine.byteLength
}

/** Finds the next of the needles. Call it with increasing places. */
function createSearch(chunk: Uint8Array, needles: readonly Buffer[]) {
  /** The next place of each needle; undefined when there is none. */
  const places: (number | undefined)[] = needles.map(() => -1)
  return (from: number): number | undefined => {
    let least: number | undefined
    for (const [index, needle] of needles.entries()) {
      let place = places[index]
      if (place !== undefined && place < from) {
        const at = indexOf.call(chunk, needle, from)
        place = at < 0 ? undefined : at
        places[index] = place
      }
      if (place !== undefined && (least === undefined || place < least)) least = place
    }
    return least
  }
}
