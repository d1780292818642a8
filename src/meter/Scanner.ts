import type { Pointer } from './Pointer'

export type Scanner = ReturnType<typeof createScanner>

/** The names on the way to the wanted members. */
export type Node = { name: string; bytes: Uint8Array; children: readonly Node[] }

export function compile(pointers: readonly Pointer[], name = ''): Node {
  const inner = Map.groupBy(
    pointers.filter(({ length }) => length > 0),
    ([first = '']) => first,
  )
  const children = [...inner].map(([first, own]) =>
    compile(
      own.map((pointer) => pointer.slice(1)),
      first,
    ),
  )
  return { name, bytes: new TextEncoder().encode(name), children }
}

/** The wanted members of an object, and the key '' when it has any. */
type Found = Record<string, unknown>

/** An object or array on the way to a wanted member. */
type Frame = { node: Node; found: Found; isArray: boolean; index: number; isValue: boolean }

const quote = 0x22
const backslash = 0x5c
const comma = 0x2c
const colon = 0x3a
const bracket = 0x5b
/** A space; the other blanks are below it. */
const blankMax = 0x20

/** Longest name, number or text that is read. */
const tokenMaxBytes = 512

type State = ReturnType<typeof createState>

function createState(
  root: Node,
  take: (found: Found, isElement: boolean) => void,
  mayBeArray: boolean,
) {
  return {
    root,
    take,
    frames: [] as Frame[],
    frame: undefined as Frame | undefined,
    /** Containers around this place that have no wanted member. */
    skipped: 0,
    /** Whether the outermost objects are elements of an array; undefined before the first one. */
    isArray: mayBeArray ? undefined : (false as boolean | undefined),
    /** The member whose value comes next, when it is wanted. */
    child: undefined as Node | undefined,
    isString: false,
    isPrimitive: false,
    isEscaped: false,
    hasEscape: false,
    /** The part of a token that came with earlier chunks, and the length of all of that part. */
    held: new Uint8Array(tokenMaxBytes),
    heldBytes: 0,
  }
}

/**
 * Finds members of JSON objects in bytes that come in pieces. `take` gets the wanted members of
 * each outermost object when it ends. Such an object may have any length, because nothing else of
 * it is kept. With `mayBeArray` the elements of an outermost array are outermost objects.
 */
export function createScanner(root: Node, take: State['take'], { mayBeArray = false } = {}) {
  const state = createState(root, take, mayBeArray)
  return {
    /** Reads a piece, which may be written over afterwards. */
    add: (chunk: Uint8Array): void => scan(state, chunk),
    /** Drops an object that has not ended, as at the end of an event. */
    reset: (): void => reset(state),
  }
}

function reset(state: State): void {
  state.frames.length = 0
  state.frame = undefined
  state.skipped = 0
  state.child = undefined
  state.isString = false
  state.isPrimitive = false
  state.isEscaped = false
  state.heldBytes = 0
}

function scan(state: State, chunk: Uint8Array): void {
  const size = chunk.byteLength
  let start = 0
  for (let at = 0; at < size; at++) {
    if (state.isString) {
      at = endOfString(state, chunk, at)
      if (at === size) break
      state.isString = false
      endString(state, chunk, start, at)
      continue
    }
    const code = chunk[at] ?? 0
    const isStructure = code === comma || code === colon || isOpen(code) || isClose(code)
    if (state.isPrimitive) {
      if (!isStructure && code !== quote && code > blankMax) continue
      endPrimitive(state, chunk, start, at)
    }
    if (code <= blankMax) continue
    if (isStructure) {
      step(state, code)
      continue
    }
    const isInside = state.skipped === 0 && state.frame !== undefined
    if (isInside && state.frame?.isArray) state.frame.found[''] = true
    state.isString = code === quote
    state.isPrimitive = code !== quote && isInside && state.child !== undefined
    state.hasEscape = false
    start = code === quote ? at + 1 : at
  }
  if (state.isString || state.isPrimitive) hold(state, chunk, start, size)
}

const isOpen = (code: number) => (code | 0x20) === 0x7b
const isClose = (code: number) => (code | 0x20) === 0x7d

/** Reads a comma, a colon, a bracket or a brace. */
function step(state: State, code: number): void {
  const { frame, skipped } = state
  if (isOpen(code)) open(state, code === bracket)
  else if (isClose(code)) close(state)
  else if (frame === undefined || skipped > 0) return
  else if (code === colon) frame.isValue = true
  else {
    frame.isValue = frame.isArray
    frame.index++
    state.child = frame.isArray ? elementOf(frame) : undefined
  }
}

function open(state: State, isList: boolean): void {
  const { frame, child, root } = state
  if (state.skipped > 0) state.skipped++
  else if (frame !== undefined) {
    if (frame.isArray) frame.found[''] = true
    if (child !== undefined) enter(state, child, isList)
    else state.skipped++
  } else if (isList && state.isArray === undefined) state.isArray = true
  else {
    state.isArray ??= false
    if (isList) state.skipped++
    else enter(state, root, false)
  }
}

function enter(state: State, node: Node, isList: boolean): void {
  const found: Found = {}
  if (state.frame !== undefined) state.frame.found[node.name] = found
  const frame = { node, found, isArray: isList, index: 0, isValue: isList }
  state.frame = frame
  state.frames.push(frame)
  state.child = isList ? elementOf(frame) : undefined
}

function close(state: State): void {
  if (state.skipped > 0) {
    state.skipped--
    return
  }
  const ended = state.frames.pop()
  if (ended === undefined) return
  state.frame = state.frames.at(-1)
  state.child = undefined
  if (state.frame === undefined) state.take(ended.found, state.isArray === true)
}

/** The place of the closing quote, or the end of the chunk. */
function endOfString(state: State, chunk: Uint8Array, from: number): number {
  const size = chunk.byteLength
  let at = state.isEscaped ? from + 1 : from
  state.isEscaped = false
  for (; at < size; at++) {
    const code = chunk[at]
    if (code === quote) return at
    if (code !== backslash) continue
    state.hasEscape = true
    at++
  }
  state.isEscaped = at > size
  return size
}

function endString(state: State, chunk: Uint8Array, start: number, end: number): void {
  const { frame, child, skipped } = state
  if (frame !== undefined && skipped === 0 && !frame.isValue) {
    frame.found[''] = true
    const isPlain = state.heldBytes === 0 && !state.hasEscape
    const name = isPlain ? chunk : nameOf(state, chunk, start, end)
    const length = isPlain ? end - start : (name?.byteLength ?? 0)
    state.child = name && childOf(frame.node, name, isPlain ? start : 0, length)
  } else if (child !== undefined) {
    const token = tokenOf(state, chunk, start, end)
    give(state, token === undefined ? tooLong : parse(`"${token}"`))
  }
  state.heldBytes = 0
}

function endPrimitive(state: State, chunk: Uint8Array, start: number, end: number): void {
  const token = tokenOf(state, chunk, start, end)
  give(state, token === undefined ? tooLong : parse(token))
  state.isPrimitive = false
  state.heldBytes = 0
}

function give(state: State, value: unknown): void {
  const { frame, child } = state
  if (frame !== undefined && child !== undefined) frame.found[child.name] = value
  state.child = undefined
}

function hold(state: State, chunk: Uint8Array, start: number, end: number): void {
  const { held, heldBytes } = state
  if (heldBytes + end - start <= tokenMaxBytes) held.set(chunk.subarray(start, end), heldBytes)
  state.heldBytes += end - start
}

/** The token, as written; undefined when it is too long. */
function tokenOf(state: State, chunk: Uint8Array, start: number, end: number): string | undefined {
  if (state.heldBytes + end - start > tokenMaxBytes) return undefined
  if (state.heldBytes === 0) return decoder.decode(chunk.subarray(start, end))
  hold(state, chunk, start, end)
  return decoder.decode(state.held.subarray(0, state.heldBytes))
}

/** The bytes of a name that is in several chunks or has escapes. */
function nameOf(
  state: State,
  chunk: Uint8Array,
  start: number,
  end: number,
): Uint8Array | undefined {
  const token = tokenOf(state, chunk, start, end)
  const text = token === undefined ? undefined : parse(`"${token}"`)
  return typeof text === 'string' ? encoder.encode(text) : undefined
}

/** Whether a chunk has these bytes at a place. */
function isEqual(chunk: Uint8Array, from: number, bytes: Uint8Array): boolean {
  const size = bytes.byteLength
  for (let at = 0; at < size; at++) if (chunk[from + at] !== bytes[at]) return false
  return true
}

function childOf({ children }: Node, bytes: Uint8Array, from: number, length: number) {
  // Loops without iterators: this runs for each name of each event.
  for (let i = 0; i < children.length; i++) {
    const each = children[i]
    if (each && each.bytes.byteLength === length && isEqual(bytes, from, each.bytes)) return each
  }
  return undefined
}

function elementOf({ node, index }: Frame): Node | undefined {
  return node.children.find(({ name }) => name === `${index}`)
}

const decoder = new TextDecoder()
const encoder = new TextEncoder()

/** Stands for a value that is no number and not empty. */
const tooLong = '...'

function parse(json: string): unknown {
  try {
    return JSON.parse(json)
  } catch {
    return undefined
  }
}
