import * as Automaton from './Automaton'

/**
 * Regular expressions of merchants, for texts of strangers. A backtracking engine takes seconds for
 * 40 letters and a pattern such as `^(a+)+$`. So an automaton reads each character once.
 */
export type Pattern = {
  /** Whether some part of the text matches, in about 10 ns for each character. */
  test(text: string): boolean
}

/** Why a pattern was refused. The message completes "pattern ...". */
export class PatternError extends Error {
  override readonly name = 'PatternError'
}

/** Patterns come from the operator's file only, where the same one often stands at many routes. */
const compiled = new Map<string, Pattern>()

/** Compiles the syntax of JavaScript with the flag u. Throws a PatternError. */
export function compile(source: string): Pattern {
  const known = compiled.get(source)
  if (known !== undefined) return known
  assertSyntax(source)
  const pattern = read(source)
  if (typeof pattern === 'string') throw new PatternError(pattern)
  compiled.set(source, pattern)
  return pattern
}

function read(source: string): Pattern | string {
  try {
    return Automaton.from(source) ?? linear(source)
  } catch (error) {
    if (!(error instanceof RangeError)) throw error
    return 'has too many groups inside each other'
  }
}

/** RE2 is loaded for the first pattern that needs it: a start with other patterns takes 15 ms less. */
function linear(source: string): Pattern | string {
  const { from }: typeof import('./Linear') = require('./Linear')
  return from(source)
}

/** For a pattern that is only published. Throws a PatternError. */
export function assertSyntax(source: string): void {
  try {
    new RegExp(source, 'u')
  } catch {
    throw new PatternError('is not a regular expression')
  }
}
