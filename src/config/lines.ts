/** Where a value stands in a TOML document: table keys and array indices from the root. */
export type Path = readonly (string | number)[]

/** Line of every key, table header and array element, by `keyOf(path)`. */
export type Lines = ReadonlyMap<string, number>

type Scanner = {
  text: string
  at: number
  line: number
  lines: Map<string, number>
  /** Elements seen so far of each array of tables. */
  counts: Map<string, number>
}

/** Key of a path for maps and sets. */
export function keyOf(path: Path): string {
  return path.join('\u0000')
}

/** Line of a path; of its nearest ancestor when the document does not name it; else 1. */
export function lineOf(lines: Lines, path: Path): number {
  for (let length = path.length; length > 0; length--) {
    const line = lines.get(keyOf(path.slice(0, length)))
    if (line !== undefined) return line
  }
  return 1
}

/**
 * Finds the line of everything in a TOML document, which smol-toml does not tell for parsed values.
 * The document must already have been accepted by the parser: nothing is checked here.
 */
export function index(text: string): Lines {
  const s: Scanner = { text, at: 0, line: 1, lines: new Map(), counts: new Map() }
  let table: Path = []
  skipVoid(s)
  while (s.at < text.length) {
    const line = s.line
    if (peek(s) === '[') {
      table = readHeader(s)
    } else {
      const path = [...table, ...readKey(s)]
      record(s, path, line)
      s.at++ // '='
      readValue(s, path)
    }
    skipVoid(s)
  }
  return s.lines
}

function peek(s: Scanner): string {
  return s.text[s.at] ?? ''
}

function record(s: Scanner, path: Path, line: number): void {
  for (let length = 1; length <= path.length; length++) {
    const key = keyOf(path.slice(0, length))
    if (!s.lines.has(key)) s.lines.set(key, line)
  }
}

/** Skips blanks, line ends and comments. */
function skipVoid(s: Scanner): void {
  while (s.at < s.text.length) {
    const char = peek(s)
    if (char === '#') {
      while (s.at < s.text.length && peek(s) !== '\n') s.at++
    } else if (char === '\n') {
      s.line++
      s.at++
    } else if (char === ' ' || char === '\t' || char === '\r' || char === '\ufeff') {
      s.at++
    } else return
  }
}

/** Reads `[a.b]` or `[[a.b]]` and gives the full path of the table that it opens. */
function readHeader(s: Scanner): Path {
  const line = s.line
  const isArray = s.text[s.at + 1] === '['
  s.at += isArray ? 2 : 1
  const keys = readKey(s)
  s.at += isArray ? 2 : 1
  const path: (string | number)[] = []
  keys.forEach((key, i) => {
    path.push(key)
    const name = keyOf(path)
    const count = s.counts.get(name)
    if (isArray && i === keys.length - 1) {
      path.push(count ?? 0)
      s.counts.set(name, (count ?? 0) + 1)
    } else if (count !== undefined) path.push(count - 1)
  })
  record(s, path, line)
  return path
}

/** Reads a bare, quoted or dotted key and stops behind it and its blanks. */
function readKey(s: Scanner): string[] {
  const keys: string[] = []
  for (;;) {
    skipVoid(s)
    const char = peek(s)
    if (char === '"' || char === "'") keys.push(readString(s))
    else {
      const start = s.at
      while (/[A-Za-z0-9_-]/.test(peek(s))) s.at++
      keys.push(s.text.slice(start, s.at))
    }
    skipVoid(s)
    if (peek(s) !== '.') return keys
    s.at++
  }
}

/** Reads a string of any of the four kinds; escapes are decoded only as far as keys need it. */
function readString(s: Scanner): string {
  const quote = peek(s)
  const fence = s.text.startsWith(quote.repeat(3), s.at) ? quote.repeat(3) : quote
  const start = s.at + fence.length
  s.at = start
  while (s.at < s.text.length && !s.text.startsWith(fence, s.at)) {
    if (peek(s) === '\\' && quote === '"') s.at++
    if (peek(s) === '\n') s.line++
    s.at++
  }
  const raw = s.text.slice(start, s.at)
  s.at += fence.length
  // A multi-line string may end with up to two quotes of its own.
  while (fence.length === 3 && peek(s) === quote) s.at++
  if (quote === "'" || fence.length === 3 || !raw.includes('\\')) return raw
  try {
    return String(JSON.parse(`"${raw}"`))
  } catch {
    return raw
  }
}

function readValue(s: Scanner, path: Path): void {
  skipVoid(s)
  const char = peek(s)
  if (char === '"' || char === "'") readString(s)
  else if (char === '[') readItems(s, ']', (i) => readValue(s, recorded(s, [...path, i])))
  else if (char === '{') {
    readItems(s, '}', () => {
      const line = s.line
      const inner = [...path, ...readKey(s)]
      record(s, inner, line)
      s.at++ // '='
      readValue(s, inner)
    })
  } else while (s.at < s.text.length && !/[,\]}#\n]/.test(peek(s))) s.at++
}

function recorded(s: Scanner, path: Path): Path {
  record(s, path, s.line)
  return path
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
