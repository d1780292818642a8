/** A function with a body, as it is in a file. */
export type Fn = {
  name: string
  /** Of its first line, from 1. */
  line: number
  lines: number
  parameters: number
}

const closing: Readonly<Record<string, string>> = { '(': ')', '{': '}', '[': ']' }
const statements = /\b(if|for|while|switch|catch|with)\s*$/
/** The callback of `describe` is a list of tests. */
const lists = /\bdescribe(\.\w+)*\s*\((.*,)?\s*(async\s*)?$/
const operators = /^(\||&|\bis\b|\bextends\b|\bkeyof\b|\breadonly\b|\basserts\b|\btypeof\b|\?|:|=>)/

/**
 * Finds all functions of a text by its brackets. TypeScript 7 parses in a separate program, and
 * ESTree parsers are not among our dependencies. Types of functions count as functions of few
 * lines.
 */
export function functionsOf(source: string): Fn[] {
  const text = blank(source)
  const ends = pairs(text)
  const found: Fn[] = []
  const starts = [...text.matchAll(/\n/g)].map(({ index }) => index)
  const lineOf = (at: number) => {
    // The number of line ends before it, by halves.
    let [low, high] = [0, starts.length]
    while (low < high) {
      const middle = (low + high) >> 1
      if ((starts[middle] ?? at) < at) low = middle + 1
      else high = middle
    }
    return low + 1
  }
  for (const [open, close] of ends) {
    if (text[open] !== '(' || statements.test(text.slice(Math.max(0, open - 12), open))) continue
    const body = bodyAfter(text, close + 1, ends)
    if (body === undefined || lists.test(text.slice(text.lastIndexOf('\n', open) + 1, open)))
      continue
    const end = text[body] === '{' ? (ends.get(body) ?? body) : endOf(text, body, ends)
    const head = text.slice(text.lastIndexOf('\n', open) + 1, open)
    found.push({
      name: /([\w$]+)\s*(<[^<>]*>)?\s*(=\s*(async\s*)?)?$/.exec(head)?.[1] ?? '',
      line: lineOf(open),
      lines: lineOf(end) - lineOf(open) + 1,
      parameters: parametersOf(text.slice(open + 1, close)),
    })
  }
  return found
}

/** Start of the body: `{`, or the first character of an expression after `=>`. */
function bodyAfter(text: string, from: number, ends: ReadonlyMap<number, number>) {
  let at = skipSpace(text, from)
  if (text.startsWith('=>', at)) return skipSpace(text, at + 2)
  if (text[at] === '{') return at
  if (text[at] !== ':') return undefined
  // A return type: an operand, then operators with more operands.
  let isComplete = false
  for (at = skipSpace(text, at + 1); at < text.length; at = skipSpace(text, at)) {
    const rest = text.slice(at, at + 12)
    if (isComplete && rest.startsWith('=>')) return skipSpace(text, at + 2)
    if (isComplete && rest.startsWith('{')) return at
    const operator = operators.exec(rest)?.[0]
    if (operator) {
      isComplete = false
      at += operator.length
      continue
    }
    const word = /^[\w$.'"`-]+/.exec(text.slice(at, at + 200))?.[0]
    const isPart = text[at] === '<' || (isComplete && text[at] === '[')
    if (isComplete && !isPart) return undefined
    if (word) at += word.length
    else if (text[at] === '<') at = angleEnd(text, at) + 1
    else if (ends.has(at)) at = (ends.get(at) ?? at) + 1
    else return undefined
    isComplete = true
  }
  return undefined
}

/** The end of an expression: where its enclosing bracket closes, or its line with nothing open. */
function endOf(text: string, from: number, ends: ReadonlyMap<number, number>): number {
  for (let at = from; at < text.length; at++) {
    const end = ends.get(at)
    const isTight = /[\w\]})]/.test(text[at - 1] ?? '')
    if (end !== undefined) at = end
    else if (/[)\]},;]/.test(text[at] ?? '')) return at - 1
    else if (text[at] === '<' && isTight) at = angleEnd(text, at)
    // The end of type arguments: the function was a type among them.
    else if (text[at] === '>' && isTight) return at - 1
    else if (text[at] === '\n') {
      const next = text[skipSpace(text, at)] ?? ''
      const last = text.slice(from, at).trimEnd().at(-1) ?? ''
      if (!/[.?:&|+*/<>=-]/.test(next) && !/[?:&|+*/<>=-]/.test(last)) return at - 1
    }
  }
  return text.length - 1
}

function parametersOf(list: string): number {
  let depth = 0
  let count = 0
  let isEmpty = true
  for (const [at, char] of [...list].entries()) {
    if ('({[<'.includes(char)) depth++
    else if (')}]'.includes(char) || (char === '>' && list[at - 1] !== '=')) depth--
    if (char === ',' && depth === 0) {
      count++
      isEmpty = true
    } else if (char.trim() !== '') isEmpty = false
  }
  return isEmpty ? count : count + 1
}

function angleEnd(text: string, from: number): number {
  let depth = 0
  for (let at = from; at < text.length; at++) {
    if (text[at] === '<') depth++
    else if (text[at] === '>' && text[at - 1] !== '=') depth--
    if (depth === 0) return at
  }
  return from
}

function skipSpace(text: string, from: number): number {
  let at = from
  while (/\s/.test(text[at] ?? '')) at++
  return at
}

/** Every opening bracket and the one that closes it. */
function pairs(text: string): Map<number, number> {
  const ends = new Map<number, number>()
  const open: number[] = []
  for (let at = 0; at < text.length; at++) {
    const char = text[at] ?? ''
    if (char in closing) open.push(at)
    const last = open.at(-1)
    if (last !== undefined && closing[text[last] ?? ''] === char) ends.set(open.pop() ?? at, at)
  }
  return ends
}

/** The same text, with spaces for comments, strings, templates and regular expressions. */
function blank(source: string): string {
  const token =
    /\/\*[\s\S]*?\*\/|\/\/[^\n]*|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"|`(?:\\[\s\S]|\$\{(?:[^{}`]|\{[^{}]*\}|`[^`]*`)*\}|[^`\\])*`|(?<=[=(,:[!&|?{};]\s*|\breturn\s+)\/(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n[])+\/[a-z]*/g
  return source.replace(token, (match) => {
    const quote = /^['"`]/.test(match) ? 'x' : ' '
    return match.replace(/[^\n]/g, quote)
  })
}
