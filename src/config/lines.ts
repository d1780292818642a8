import { parse as parseToml } from 'smol-toml'

/** Place of a value in a TOML document: table keys and array indices from the root. */
export type Path = readonly (string | number)[]

/** Line of every key, table header and array element, by `keyOf(path)`. */
export type KeyLines = ReadonlyMap<string, number>

type Scanner = {
  text: string
  at: number
  line: number
  lines: Map<string, number>
  /** Number of elements read so far of each array of tables. */
  counts: Map<string, number>
}

/** Key of a table; the root has none. */
type Base = string | undefined

/** Key of a path for maps and sets. */
export function keyOf(path: Path): string {
  return path.join('\u0000')
}

/** Line of a path; of its nearest ancestor when the document does not contain it; else 1. */
export function lineOf(lines: KeyLines, path: Path): number {
  // A built-in network may have no table: its place is the list that names it.
  const list = ['service', 'networks']
  const table = path.slice(0, 2)
  const isListed = path[0] === 'networks' && !lines.has(keyOf(table)) && lines.has(keyOf(list))
  const place = isListed ? list : path
  for (let length = place.length; length > 0; length--) {
    const line = lines.get(keyOf(place.slice(0, length)))
    if (line !== undefined) return line
  }
  return 1
}

/**
 * Finds the line of every key and element in a TOML document, which smol-toml 1.9.1 does not report
 * for values. The parser must already have accepted the document: nothing is checked here.
 *
 * No parser with positions can replace both. With 10,000 routes (4.3 MB), smol-toml takes 0.1 s of
 * CPU and this 0.5 s, at 150 MB of memory. Only `check`, faults and refused reloads call it.
 * - toml-eslint-parser 1.0.3 takes 1.6 s and 550 MB. It rounds integers above 2^53, writes to
 *   Object.prototype for `__proto__.x = 1` below a table, and sets no limit to nesting.
 * - @decimalturn/toml-patch 3.3.0 refuses the merchants.toml that ships; its positions are
 *   internal.
 * - toml-v1 1.0.0 has had one release, takes 0.6 s and 240 MB, and sets no limit to nesting.
 */
export function index(text: string): KeyLines {
  const s: Scanner = { text, at: 0, line: 1, lines: new Map(), counts: new Map() }
  let table: Base
  skipVoid(s)
  while (s.at < text.length) {
    if (peek(s) === '[') table = readHeader(s)
    else readPair(s, table)
    skipVoid(s)
  }
  return s.lines
}

function peek(s: Scanner): string {
  return s.text[s.at] ?? ''
}

/** Records the line of a key or element, unless it is known. Returns its key. */
function record(s: Scanner, base: Base, part: string | number, line: number): string {
  const key = base === undefined ? String(part) : `${base}\u0000${part}`
  if (!s.lines.has(key)) s.lines.set(key, line)
  return key
}

/** Skips a match of the pattern, which must be sticky, and returns it. */
function skip(s: Scanner, pattern: RegExp): string {
  pattern.lastIndex = s.at
  const found = pattern.exec(s.text)?.[0] ?? ''
  s.at += found.length
  return found
}

/** Skips blanks, line ends and comments. */
function skipVoid(s: Scanner): void {
  for (;;) {
    const char = peek(s)
    if (char === '#') {
      const end = s.text.indexOf('\n', s.at)
      s.at = end === -1 ? s.text.length : end
    } else if (char === '\n') {
      s.line++
      s.at++
    } else if (char === ' ' || char === '\t' || char === '\r' || char === '\ufeff') {
      s.at++
    } else return
  }
}

/** Reads `[a.b]` or `[[a.b]]` and returns the key of the table that it opens. */
function readHeader(s: Scanner): Base {
  const line = s.line
  const isArray = s.text[s.at + 1] === '['
  s.at += isArray ? 2 : 1
  const parts = readKey(s)
  s.at += isArray ? 2 : 1
  let key: Base
  parts.forEach((part, i) => {
    key = record(s, key, part, line)
    const count = s.counts.get(key)
    if (isArray && i === parts.length - 1) {
      s.counts.set(key, (count ?? 0) + 1)
      key = record(s, key, count ?? 0, line)
    } else if (count !== undefined) key = record(s, key, count - 1, line)
  })
  return key
}

function readPair(s: Scanner, table: Base): void {
  const line = s.line
  let key = table
  for (const part of readKey(s)) key = record(s, key, part, line)
  s.at++ // '='
  readValue(s, key)
}

/** Reads a bare, quoted or dotted key, and stops after it and its blanks. */
function readKey(s: Scanner): string[] {
  const parts: string[] = []
  for (;;) {
    skipVoid(s)
    const char = peek(s)
    if (char === '"' || char === "'") {
      const start = s.at
      skipString(s)
      parts.push(decoded(s.text.slice(start, s.at)))
    } else parts.push(skip(s, /[\w-]*/y))
    skipVoid(s)
    if (peek(s) !== '.') return parts
    s.at++
  }
}

/** The text of a quoted key. TOML has more escapes than JSON. */
function decoded(quoted: string): string {
  const text = quoted.slice(1, -1)
  if (quoted.startsWith("'") || !text.includes('\\')) return text
  return String(parseToml(`key = ${quoted}`).key)
}

/** Skips a string of any of the four kinds. */
function skipString(s: Scanner): void {
  const quote = peek(s)
  if (!s.text.startsWith(quote.repeat(3), s.at)) {
    skip(s, quote === '"' ? /"[^"\\]*(?:\\.[^"\\]*)*"/y : /'[^']*'/y)
    return
  }
  const fence = quote.repeat(3)
  s.at += fence.length
  while (s.at < s.text.length && !s.text.startsWith(fence, s.at)) {
    if (peek(s) === '\\' && quote === '"') s.at++
    if (peek(s) === '\n') s.line++
    s.at++
  }
  s.at += fence.length
  // A multi-line string may end with up to two quotes of its own.
  while (peek(s) === quote) s.at++
}

function readValue(s: Scanner, key: Base): void {
  skipVoid(s)
  const char = peek(s)
  if (char === '"' || char === "'") skipString(s)
  else if (char === '[') readItems(s, ']', (i) => readValue(s, record(s, key, i, s.line)))
  else if (char === '{') readItems(s, '}', () => readPair(s, key))
  else skip(s, /[^,\]}#\n]*/y)
}

function readItems(s: Scanner, end: string, item: (i: number) => void): void {
  s.at++
  for (let i = 0; ; i++) {
    skipVoid(s)
    if (s.at >= s.text.length) return
    if (peek(s) === end) break
    item(i)
    skipVoid(s)
    if (peek(s) === ',') s.at++
  }
  s.at++
}
