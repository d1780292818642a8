import { endOfString, fold } from '../protocol/Json'
import { format, type Pointer } from './Pointer'

/** A member of a JSON object, at its place in the text. */
export type Member = {
  /** The pointer to it, as written. */
  pointer: string
  /** The pointer for parsers that ignore case, as Go's does. */
  folded: string
  nameStart: number
  nameEnd: number
  start: number
  end: number
}

/** The members to find with their right spellings, and the objects that lead to them. */
export type Wanted = {
  members: ReadonlyMap<string, readonly string[]>
  parents: ReadonlySet<string>
}

export function wantedOf(pointers: readonly Pointer[]): Wanted {
  const members = new Map<string, string[]>()
  const parents = new Set<string>()
  for (const pointer of pointers)
    for (let length = 1; length <= pointer.length; length++) {
      const written = format(pointer.slice(0, length))
      const folded = fold(written)
      const spellings = members.get(folded) ?? []
      if (!spellings.includes(written)) members.set(folded, [...spellings, written])
      if (length < pointer.length) parents.add(folded)
    }
  return { members, parents }
}

/** All wanted members of the text of a JSON object, repeated ones included. */
export function find(text: string, wanted: Wanted): Member[] {
  const found: Member[] = []
  scanObject({ text, wanted, found }, skipBlank(text, 0), '')
  return found
}

type Scan = { text: string; wanted: Wanted; found: Member[] }

/**
 * Reads the object at an index and returns the index after it. Descends as far as the longest
 * pointer.
 */
function scanObject(scan: Scan, open: number, path: string): number {
  const { text, wanted, found } = scan
  let at = skipBlank(text, open + 1)
  if (text[at] === '}') return at + 1
  for (;;) {
    const nameStart = at
    const nameEnd = endOfString(text, at)
    const name: string = JSON.parse(text.slice(nameStart, nameEnd))
    const start = skipBlank(text, skipBlank(text, nameEnd) + 1)
    const pointer = path + format([name])
    const folded = fold(pointer)
    const isInside = text[start] === '{' && wanted.parents.has(folded)
    const member = { pointer, folded, nameStart, nameEnd, start, end: start }
    if (wanted.members.has(folded)) found.push(member)
    member.end = isInside ? scanObject(scan, start, pointer) : endOfValue(text, start)
    at = skipBlank(text, member.end)
    if (text[at] !== ',') return at + 1
    at = skipBlank(text, at + 1)
  }
}

export function skipBlank(text: string, from: number): number {
  let at = from
  for (;;) {
    const code = text.charCodeAt(at)
    if (code !== 0x20 && code !== 0x0a && code !== 0x0d && code !== 0x09) return at
    at++
  }
}

function endOfValue(text: string, from: number): number {
  const first = text[from]
  if (first === '"') return endOfString(text, from)
  let at = from
  if (first !== '{' && first !== '[') {
    while (at < text.length && !isEndOfScalar(text.charCodeAt(at))) at++
    return at
  }
  let depth = 0
  for (; at < text.length; at++) {
    const code = text.charCodeAt(at)
    if (code === 0x22) at = endOfString(text, at) - 1
    else if (code === 0x7b || code === 0x5b) depth++
    else if ((code === 0x7d || code === 0x5d) && --depth === 0) return at + 1
  }
  return at
}

/** A comma, a closing bracket or brace, or white space. */
function isEndOfScalar(code: number): boolean {
  return code === 0x2c || code === 0x5d || code === 0x7d || code <= 0x20
}

/** The parts of a request that its length does not limit. */
export type Bounds = {
  textTypes: ReadonlySet<string>
  unboundNames: ReadonlySet<string>
  hasReferences?: boolean
}

/**
 * Whether the length of a JSON text limits all of its input. It must have no member of
 * `unboundNames`, no member `type` with a text outside of `textTypes`, and no reference to a stored
 * item. Every member counts, at any depth and also when it is repeated, because parsers differ on
 * which one they take.
 */
export function isText(text: string, bounds: Bounds): boolean {
  const { textTypes, unboundNames, hasReferences = false } = bounds
  const objects: Named[] = []
  let isType = false
  let from = 0
  for (let at = text.indexOf('"'); at >= 0; at = text.indexOf('"', from)) {
    if (hasReferences && !closes(text.slice(from, at), objects)) return false
    const end = endOfString(text, at)
    const next = skipBlank(text, end)
    const isName = text[next] === ':'
    if (isName || isType) {
      const word = unquote(text.slice(at, end))
      if (!isName && !textTypes.has(word)) return false
      const folded = isName ? fold(word) : ''
      if (unboundNames.has(folded)) return false
      const isOfText = text[skipBlank(text, next + 1)] === '"'
      isType = folded === 'type' && isOfText
      const object = objects.at(-1)
      if (object !== undefined && folded === 'id' && isOfText) object.hasId = true
      if (object !== undefined && folded === 'type') object.types.push(isOfText)
    }
    from = end
  }
  return !hasReferences || closes(text.slice(from), objects)
}

/** What was read of an object so far. */
type Named = { hasId: boolean; types: boolean[] }

/** Reads the braces between two strings. False when an object that is a reference ends. */
function closes(between: string, objects: Named[]): boolean {
  for (let at = 0; at < between.length; at++) {
    const code = between.charCodeAt(at)
    if (code === 0x7b) objects.push({ hasId: false, types: [] })
    if (code !== 0x7d) continue
    const object = objects.pop()
    const isTyped = object?.types.length !== 0 && object?.types.every((isOfText) => isOfText)
    if (object?.hasId === true && isTyped !== true) return false
  }
  return true
}

function unquote(quoted: string): string {
  return quoted.includes('\\') ? String(JSON.parse(quoted)) : quoted.slice(1, -1)
}

/** A part of a text, and its replacement. */
export type Edit = { start: number; end: number; text: string }

/** Applies edits, which must not overlap. All other bytes stay the same. */
export function apply(text: string, edits: readonly Edit[]): string {
  let result = ''
  let from = 0
  for (const edit of edits.toSorted((a, b) => a.start - b.start)) {
    result += text.slice(from, edit.start) + edit.text
    from = edit.end
  }
  return result + text.slice(from)
}

/** The edit that inserts members into the object that opens at an index, before its first one. */
export function insert(
  text: string,
  open: number,
  members: readonly (readonly [name: string, json: string])[],
): Edit {
  const own = members.map(([name, json]) => `${JSON.stringify(name)}:${json}`).join(',')
  const isEmpty = text[skipBlank(text, open + 1)] === '}'
  return { start: open + 1, end: open + 1, text: isEmpty ? own : `${own},` }
}
