import { RE2JS, RE2JSSyntaxException } from 're2js'

/**
 * Regular expressions of merchants, for texts of strangers. A backtracking engine takes seconds for
 * 40 letters and a pattern such as `^(a+)+$`. RE2 reads each character once, but the states of its
 * automaton are made while it reads, which costs up to 40 us for a character. So all states are
 * made here, and a pattern with too many of them is refused.
 */
export type Pattern = {
  /** Whether some part of the text matches, in about 10 ns for each character. */
  test(text: string): boolean
}

/** Why a pattern was refused. The message completes "pattern ...". */
export class PatternError extends Error {
  override readonly name = 'PatternError'
}

/** Most states of an automaton: `[a-z]{1,1000}` has a thousand. */
const statesMax = 2_000

/** Patterns come from the operator's file only, where the same one often stands at many routes. */
const compiled = new Map<string, Pattern>()

/** Compiles the syntax of JavaScript with the flag u. Throws a PatternError. */
export function compile(source: string): Pattern {
  const known = compiled.get(source)
  if (known !== undefined) return known
  assertSyntax(source)
  const pattern = linear(source)
  if (!hasFewStates(pattern)) {
    throw new PatternError(
      'has too many states: write minLength and maxLength in place of a count such as {20}',
    )
  }
  compiled.set(source, pattern)
  return pattern
}

/** For a pattern that is only published. Throws a PatternError. */
export function assertSyntax(source: string): void {
  try {
    new RegExp(source, 'u')
  } catch {
    throw new PatternError('is not a regular expression')
  }
}

function linear(source: string): RE2JS {
  try {
    return RE2JS.compile(RE2JS.translateRegExp(withBlanks(source)))
  } catch (error) {
    if (!(error instanceof RE2JSSyntaxException)) throw error
    const part = error.getPattern() ?? source
    throw new PatternError(
      `has ${part}, which linear matching lacks: write it without look-around, back-references, counts above 1000 and long names of Unicode classes`,
    )
  }
}

const blanks =
  '\\t-\\r \\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}\\x{feff}'

/** Gives \s its meaning in JavaScript. RE2 knows only those of ASCII, without the vertical tab. */
function withBlanks(source: string): string {
  let isInClass = false
  return source.replace(/\\[\s\S]|[[\]]/g, (token) => {
    if (token === '[') isInClass = true
    else if (token === ']') isInClass = false
    else if (token === '\\s') return isInClass ? blanks : `[${blanks}]`
    else if (token === '\\S' && !isInClass) return `[^${blanks}]`
    return token
  })
}

/**
 * Makes all states of the automaton, so that no text makes one later. A one-pass pattern has none:
 * each character leads to one place in it.
 */
function hasFewStates(pattern: RE2JS): boolean {
  const re2 = pattern.re2()
  if (re2.onepass !== null || re2.prefixComplete) return true
  const { dfa } = re2
  const symbols = [0, ...dfa.classBounds].map((rune, at) => [at, rune] as const)
  symbols.push([dfa.numClasses, endOfText])
  const states = new Set<unknown>([dfa.makeState([dfa.prog.start], startOfText, [])])
  // A set is read to its end, also while it grows.
  for (const state of states) {
    for (const [at, rune] of symbols) {
      // Null: it needs more memory than an automaton may have.
      const next = dfa.step(state, at, rune, anywhere)
      if (next === null || states.add(next).size > statesMax) return false
    }
  }
  return true
}

/** As RE2JS numbers them: the start of a text and of a line, the end of a text, no anchor. */
const startOfText = 5
const endOfText = -1
const anywhere = 0
