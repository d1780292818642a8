/**
 * Tells whether a whole text matches. All states are made before the first text, so each character
 * costs two looks into tables, whatever the text.
 */
export type Automaton = {
  test(text: string): boolean
}

/** Code points: the first and the last of each range. */
type Ranges = readonly (readonly [number, number])[]
/** A place of the expression where one character is read, and the places that may follow. */
type Place = { ranges: Ranges; next: Set<number> }
/** A part of the expression: the places that read its first and its last character. */
type Span = { first: readonly number[]; last: readonly number[]; isNullable: boolean }
/** Adds the places of a part. A count adds them several times. */
type Part = () => Span

/**
 * Limits of the places, the copies of repeated parts, the kinds of characters and the states. Ordinary
 * patterns have tens.
 */
const placesMax = 200
const copiesMax = 2_000
const kindsMax = 500
const statesMax = 250
/** The state of a text that cannot match, and that of an empty text. */
const dead = 0
const start = 1
const lastRune = 0x10ffff
const asciiSize = 128

const digit: Ranges = [[48, 57]]
const wordLetter: Ranges = [...digit, [65, 90], [95, 95], [97, 122]]
const lineEnd: Ranges = [one(10), one(13), [0x2028, 0x2029]]
const blank: Ranges = [
  ...([
    [9, 13],
    [0x2000, 0x200a],
    [0x2028, 0x2029],
  ] as const),
  ...[0x20, 0xa0, 0x1680, 0x202f, 0x205f, 0x3000, 0xfeff].map(one),
]
/** What a letter after a backslash means. */
const escapes = new Map<string, Ranges>([
  ...([
    ['d', digit],
    ['w', wordLetter],
    ['s', blank],
  ] as const),
  ...([
    ['D', except(digit)],
    ['W', except(wordLetter)],
    ['S', except(blank)],
  ] as const),
  ...['t', 'n', 'v', 'f', 'r'].map((letter, at) => [letter, [one(9 + at)]] as const),
])

/** The pattern has more than this file reads. */
class Unsupported extends Error {}

/**
 * The automaton of `^...$`, which `new RegExp(source, 'u')` must take. Undefined when it has other
 * anchors, look-around, references, names, escapes by a number or a property, or many states.
 */
export function from(source: string): Automaton | undefined {
  if (!source.startsWith('^') || !source.endsWith('$')) return undefined
  try {
    const places: Place[] = []
    const whole = parse(source.slice(1, -1), places)()
    return determine(places, whole)
  } catch (error) {
    if (error instanceof Unsupported) return undefined
    throw error
  }
}

/** Reads an expression. */
function parse(source: string, places: Place[]): Part {
  const tokens = source.match(tokenPattern) ?? []
  let at = 0
  let copies = 0
  /** A part without places can be repeated for ever: `(((){500}){500}){500}`. */
  const copy = (part: Part): Span => {
    if (++copies > copiesMax) throw new Unsupported()
    return part()
  }
  const choice = (): Part => {
    const branches = [sequence()]
    while (tokens[at] === '|') {
      at++
      branches.push(sequence())
    }
    return () => either(branches.map((branch) => branch()))
  }
  const sequence = (): Part => {
    const parts: Part[] = []
    for (let token = tokens[at]; token !== undefined && !/^[|)]/.test(token); token = tokens[at]) {
      at++
      parts.push(repeated(single(token)))
    }
    return () => parts.reduce((before, part) => follow(places, before, part()), nothing)
  }
  const single = (token: string): Part => {
    if (token === '(' || token === '(?:') {
      const group = choice()
      at++
      return group
    }
    // `?` is also what remains of a group that has a name or looks around.
    if (/^[?^$]/.test(token)) throw new Unsupported()
    const ranges = rangesOf(token)
    return () => {
      const place = places.push({ ranges, next: new Set() }) - 1
      if (place >= placesMax) throw new Unsupported()
      return { first: [place], last: [place], isNullable: false }
    }
  }
  const repeated = (part: Part): Part => {
    const [, sign, count, comma, most] = quantifier.exec(tokens[at] ?? '') ?? []
    if (sign === undefined && count === undefined) return part
    at++
    const min = Number(count ?? (sign === '+' ? 1 : 0))
    const isOpen = sign === undefined ? comma === ',' && most === '' : sign !== '?'
    const max = isOpen ? min : Number(sign === '?' || most || min)
    if (min > placesMax || max > placesMax) throw new Unsupported()
    return () => {
      let whole = isOpen ? copy(part) : nothing
      if (isOpen) follow(places, whole, whole)
      if (isOpen && min === 0) whole = either([nothing, whole])
      for (let times = min; times < max; times++)
        whole = either([nothing, follow(places, copy(part), whole)])
      for (let times = isOpen ? 1 : 0; times < min; times++)
        whole = follow(places, copy(part), whole)
      return whole
    }
  }
  const whole = sequence()
  // The anchors of `^a|b$` belong to one branch each.
  if (at < tokens.length) throw new Unsupported()
  return whole
}

const nothing: Span = { first: [], last: [], isNullable: true }

function either(spans: readonly Span[]): Span {
  return {
    first: spans.flatMap(({ first }) => first),
    last: spans.flatMap(({ last }) => last),
    isNullable: spans.some(({ isNullable }) => isNullable),
  }
}

function follow(places: readonly Place[], a: Span, b: Span): Span {
  for (const last of a.last) for (const first of b.first) places[last]?.next.add(first)
  return {
    first: a.isNullable ? [...a.first, ...b.first] : a.first,
    last: b.isNullable ? [...a.last, ...b.last] : b.last,
    isNullable: a.isNullable && b.isNullable,
  }
}

/** An escape, a class, the start of a group, a quantifier, or a character. */
const tokenPattern = /\\.|\[(?:\\.|[^\]\\])*\]|\(\?:|[*+?]\??|\{\d+(?:,\d*)?\}\??|./gsu
const quantifier = /^(?:([*+?])|\{(\d+)(,?)(\d*)\})/

/** The characters of one token. */
function rangesOf(token: string): Ranges {
  if (token === '.') return except(lineEnd)
  if (token.startsWith('\\')) {
    const letter = token.slice(1)
    const known = escapes.get(letter)
    // Nothing is left of `\\$`, which is no anchor. An engine may take an escape that is none.
    if (known === undefined && !/^[!-/:-@[-^{-~]$/.test(letter)) throw new Unsupported()
    return known ?? [one(runeOf(letter))]
  }
  if (!token.startsWith('[')) return [one(runeOf(token))]
  const isExcept = token.startsWith('[^')
  const letters = token.slice(isExcept ? 2 : 1, -1).match(/\\.|./gsu) ?? []
  const ranges: (readonly [number, number])[] = []
  for (let at = 0; at < letters.length; at++) {
    const first = memberOf(letters[at] ?? '')
    const isRange = letters[at + 1] === '-' && at + 2 < letters.length
    if (isRange) at += 2
    const [last] = memberOf(letters[at] ?? '')
    if (isRange) ranges.push([first[0]?.[0] ?? 0, last?.[1] ?? 0])
    else ranges.push(...first)
  }
  return isExcept ? except(ranges) : ranges
}

/** In a class only the backslash is special. */
function memberOf(letter: string): Ranges {
  return letter.length > 1 && letter.startsWith('\\') ? rangesOf(letter) : [one(runeOf(letter))]
}

function one(rune: number): readonly [number, number] {
  return [rune, rune]
}

function runeOf(letter: string): number {
  return letter.codePointAt(0) ?? 0
}

/** All characters but those of the ranges. */
function except(ranges: Ranges): Ranges {
  const others: (readonly [number, number])[] = []
  let from = 0
  for (const [first, last] of ranges.toSorted(([a], [b]) => a - b)) {
    if (first > from) others.push([from, first - 1])
    from = Math.max(from, last + 1)
  }
  if (from <= lastRune) others.push([from, lastRune])
  return others
}

/** Makes the states, which are sets of places that may have read the last character. */
function determine(places: readonly Place[], { first, last, isNullable }: Span): Automaton {
  // Characters between two bounds are in the same ranges.
  const bounds = [0, ...places.flatMap(({ ranges }) => ranges.flatMap(([a, b]) => [a, b + 1]))]
  const kinds = [...new Set(bounds)].sort((a, b) => a - b)
  const width = kinds.length
  if (width > kindsMax) throw new Unsupported()
  const kindOf = (rune: number) => kinds.findLastIndex((bound) => bound <= rune)
  const kindsOf = new Map<Ranges, readonly number[]>()
  for (const { ranges } of places)
    if (!kindsOf.has(ranges))
      kindsOf.set(
        ranges,
        kinds.flatMap((rune, kind) =>
          ranges.some(([a, b]) => a <= rune && rune <= b) ? kind : [],
        ),
      )
  const states: (readonly number[])[] = [[], []]
  const known = new Map<string, number>()
  const stateOf = (members: number[]) => {
    const key = members.sort((a, b) => a - b).join()
    const state = known.get(key) ?? states.push(members) - 1
    if (state >= statesMax) throw new Unsupported()
    known.set(key, state)
    return state
  }
  const successors: number[] = []
  for (let state = dead; state < states.length; state++) {
    const nexts = (states[state] ?? []).map((place) => places[place]?.next ?? [])
    const reached = new Map<number, number[]>()
    for (const place of state === start ? first : new Set(nexts.flatMap((next) => [...next])))
      for (const kind of kindsOf.get(places[place]?.ranges ?? []) ?? []) {
        const found = reached.get(kind)
        if (found === undefined) reached.set(kind, [place])
        else found.push(place)
      }
    for (const [kind, members] of reached) successors[state * width + kind] = stateOf(members)
  }
  const table = Uint8Array.from(
    { length: states.length * width },
    (_, at) => successors[at] ?? dead,
  )
  const ascii = Uint16Array.from({ length: asciiSize }, (_, rune) => kindOf(rune))
  const ends = new Set(last)
  const accepts = states.map((members) => members.some((place) => ends.has(place)))
  accepts[start] = isNullable
  return {
    test(text) {
      let state = start
      for (let at = 0; at < text.length && state !== dead; at++) {
        const rune = text.codePointAt(at) ?? 0
        if (rune > 0xffff) at++
        const kind = rune < asciiSize ? ascii[rune] : kindOf(rune)
        state = table[state * width + (kind ?? 0)] ?? dead
      }
      return accepts[state] ?? false
    },
  }
}
