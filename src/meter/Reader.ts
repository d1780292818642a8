import { createBytes, createLines } from './Lines'
import type * as Meter from './Meter'
import * as Override from './Override'
import type { Preset } from './Preset'
import * as Usage from './Usage'

/** Longest event, or JSON answer, that is parsed. A longer one counts as without usage. */
export const eventMaxBytes = 4 * 1024 * 1024

export type Head = { status: number; headers: Headers }

/** Reads the usage of an answer while it passes. It keeps no chunk and changes none. */
export type Reader = {
  add(chunk: Uint8Array): void
  /** The usage, after the last chunk. */
  end(): Usage.Usage
}

/**
 * Reads an answer as it comes from the upstream, unencoded: an event stream, a JSON object, a JSON
 * array of events, or JSON objects one after the other.
 */
export function createReader({ preset, plan }: Meter.Meter, { status, headers }: Head): Reader {
  const isFailure = status < 200 || status > 299
  if (isFailure) return constant({ kind: 'failed', reason: `the status is ${status}` })
  if (preset === 'header') return constant({ kind: 'named', header: headers.get(Override.name) })
  if (plan.counters.length === 0)
    return constant({ kind: 'missing', reason: 'this meter has no units' })
  if (/\S/.test((headers.get('content-encoding') ?? '').replace(/^identity$/i, '')))
    return constant({ kind: 'missing', reason: 'the answer is encoded' })
  const isEvents = /^\s*text\/event-stream\s*(?:;|$)/i.test(headers.get('content-type') ?? '')
  const seen = Usage.nothing()
  const source = isEvents ? createEvents(plan, seen) : createObjects(plan, seen)
  return {
    add: source.add,
    end() {
      source.end()
      return Usage.conclude(seen, plan.counters)
    },
  }
}

function constant(usage: Usage.Usage): Reader {
  return { add: () => {}, end: () => usage }
}

type Source = { add(chunk: Uint8Array): void; end(): void }

/** Parses one JSON text, if it may have usage. */
type Take = (json: Uint8Array | undefined, from: 'answer' | 'event') => void

function createTake(plan: Preset, seen: Usage.Seen): Take {
  const wanted = needlesOf(plan)
  // Parsing all events would cost more than all other steps, so the text is first searched for a
  // name.
  const decoder = new TextDecoder()
  return (json, from) => {
    if (json === undefined || !wanted.some((needle) => includes.call(json, needle))) return
    let value: unknown
    try {
      value = JSON.parse(decoder.decode(json))
    } catch {
      return
    }
    Usage.collect(seen, plan, value, from)
  }
}

/**
 * Called on arrays that are not buffers, too: making a buffer of each event takes longer than the
 * search.
 */
const { includes, indexOf, lastIndexOf } = Buffer.prototype

const byPlan = new WeakMap<Preset, readonly Buffer[]>()

/** Made once for each preset, because the first byte of an answer waits for them. */
function needlesOf(plan: Preset): readonly Buffer[] {
  let known = byPlan.get(plan)
  if (known === undefined) {
    known = makeNeedles(plan)
    byPlan.set(plan, known)
  }
  return known
}

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

/** Server-sent events: the data lines of an event make one text. */
function createEvents(plan: Preset, seen: Usage.Seen): Source {
  const needles = needlesOf(plan)
  const take = createTake(plan, seen)
  const event = createBytes(eventMaxBytes)
  const lineEnd = new Uint8Array([0x0a])
  /** The only data line so far, in the current chunk: most events need no copy. */
  let only: Uint8Array | undefined
  let isFirst = true
  let isDropped = false
  const keep = () => {
    if (only !== undefined) event.add(only, 0, only.byteLength)
    only = undefined
  }
  const dispatch = () => {
    const bytes = only ?? event.take()
    only = undefined
    if (!isDropped) take(bytes, 'event')
    isDropped = false
  }
  const lines = createLines(eventMaxBytes, (whole) => {
    if (whole === undefined) {
      isDropped = true
      return
    }
    const line = isFirst ? withoutMark(whole) : whole
    isFirst = false
    if (line.byteLength === 0) return dispatch()
    if (!isData(line)) return
    const text = line.subarray(line[5] === space ? 6 : 5)
    if (only === undefined && event.isEmpty()) {
      only = text
      return
    }
    keep()
    event.add(lineEnd, 0, 1)
    event.add(text, 0, text.byteLength)
  })
  const read = (chunk: Uint8Array) => {
    lines.add(chunk)
    keep()
  }
  const isBetween = () => lines.isBetween() && only === undefined && event.isEmpty() && !isDropped
  return {
    add(chunk) {
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
        if (start > at) isFirst = false
        const end = found === undefined ? size : endOfEvent(chunk, found)
        if (start < end) read(chunk.subarray(start, end))
        at = end
      }
    },
    end() {
      lines.end()
      // A stream that was cut after its last line is complete.
      dispatch()
    },
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

const space = 0x20

/** Whether a line begins with `data:`. */
function isData(line: Uint8Array): boolean {
  return (
    line[0] === 0x64 && line[1] === 0x61 && line[2] === 0x74 && line[3] === 0x61 && line[4] === 0x3a
  )
}

/** The line without a byte order mark. */
function withoutMark(line: Uint8Array): Uint8Array {
  return line[0] === 0xef && line[1] === 0xbb && line[2] === 0xbf ? line.subarray(3) : line
}

const quote = 0x22
const backslash = 0x5c

/** JSON objects, alone, one after the other, or as the elements of one array. */
function createObjects(plan: Preset, seen: Usage.Seen): Source {
  const take = createTake(plan, seen)
  const object = createBytes(eventMaxBytes)
  let isArray: boolean | undefined
  let depth = 0
  let isString = false
  let isEscaped = false
  const close = (chunk: Uint8Array, start: number, end: number) => {
    const from = isArray ? 'event' : 'answer'
    if (object.isEmpty()) return take(chunk.subarray(start, end), from)
    object.add(chunk, start, end)
    take(object.take(), from)
  }
  /** Skips the rest of a string, and returns the index of its last byte in this chunk. */
  const skipString = (chunk: Uint8Array, from: number) => {
    for (let at = from; at < chunk.byteLength; at++) {
      const code = chunk[at]
      if (isEscaped) isEscaped = false
      else if (code === backslash) isEscaped = true
      else if (code === quote) {
        isString = false
        return at
      }
    }
    return chunk.byteLength
  }
  return {
    add(chunk) {
      let start = depth > 0 ? 0 : -1
      for (let at = isString ? skipString(chunk, 0) + 1 : 0; at < chunk.byteLength; at++) {
        const code = chunk[at]
        if (code === quote) {
          isString = true
          at = skipString(chunk, at + 1)
        } else if (code === 0x7b || code === 0x5b) {
          const isOutermost = isArray === undefined
          isArray ??= code === 0x5b
          if (isOutermost && isArray) continue
          if (depth === 0) start = at
          depth++
        } else if ((code === 0x7d || code === 0x5d) && depth > 0) {
          depth--
          if (depth > 0) continue
          close(chunk, start, at + 1)
          start = -1
        }
      }
      if (start >= 0) object.add(chunk, start, chunk.byteLength)
    },
    end() {},
  }
}
