import { RE2JS, RE2JSSyntaxException } from 're2js'

/** Most states of an automaton: `[a-z]{1,1000}` has a thousand. */
const statesMax = 2_000

/**
 * A correct pattern as RE2 reads it, or why it is refused. RE2 reads each character once, but makes the
 * states of its automaton while it reads, which costs up to 40 us for a character. So all states
 * are made here, and a pattern with too many of them is refused.
 */
export function from(source: string): RE2JS | string {
  try {
    const pattern = RE2JS.compile(RE2JS.translateRegExp(withBlanks(source)))
    if (hasFewStates(pattern)) return pattern
    return 'has too many states: write minLength and maxLength in place of a count such as {20}'
  } catch (error) {
    if (!(error instanceof RE2JSSyntaxException)) throw error
    const part = error.getPattern() ?? source
    return `has ${part}, which linear matching lacks: write it without look-around, back-references, counts above 1000 and long names of Unicode classes`
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
