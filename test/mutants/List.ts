import { join } from 'node:path'

/** A small bug in the code, and a test that must fail with it. */
export type Mutant = {
  /** Its line in the list. */
  line: number
  file: string
  /** What the bug does, in one sentence. */
  meaning: string
  /** Occurs exactly once in the file. */
  search: string
  replacement: string
  /** A file, and a part of the names of its tests; undefined where no test fails. */
  test: { file: string; pattern: string } | undefined
  /** Why no test fails. */
  survives: string | undefined
}

export const path = join(import.meta.dir, 'list.diff')

/**
 * `---` begins the mutants of a file, and `#` one mutant with its meaning. The lines with `-` are
 * replaced by those with `+`. `test` names the test that must fail, `survives` says why none does.
 */
export function parse(text: string): Mutant[] {
  const mutants: Mutant[] = []
  let file = ''
  for (const [index, line] of text.split('\n').entries()) {
    const [, mark, rest = ''] = /^(---|#|-|\+|test|survives)(?: (.*))?$/.exec(line) ?? []
    const last = mutants.at(-1)
    const none = { search: '', replacement: '', test: undefined, survives: undefined }
    const joined = (before: string) => (before === '' ? rest : `${before}\n${rest}`)
    if (mark === '---') file = rest
    else if (mark === '#') mutants.push({ line: index + 1, file, meaning: rest, ...none })
    else if (mark === '-' && last) last.search = joined(last.search)
    else if (mark === '+' && last) last.replacement = joined(last.replacement)
    else if (mark === 'survives' && last) last.survives = rest
    else if (mark === 'test' && last) {
      const [name, ...words] = rest.split(': ')
      last.test = { file: `test/${name}.test.ts`, pattern: words.join(': ') }
    } else if (line !== '') throw new Error(`line ${index + 1} of the list is unknown: ${line}`)
  }
  return mutants
}

/** The source with the bug; undefined unless its text occurs exactly once. */
export function apply({ search, replacement }: Mutant, source: string): string | undefined {
  const [before, after, ...more] = search === '' ? [] : source.split(search)
  if (before === undefined || after === undefined || more.length > 0) return undefined
  return before + replacement + after
}

/** What is wrong with the list. */
export async function findFaults(mutants: readonly Mutant[], root: string): Promise<string[]> {
  const faults: string[] = []
  for (const mutant of mutants) {
    const { line, file, test, survives } = mutant
    const source = await Bun.file(join(root, file)).text()
    if (apply(mutant, source) === undefined)
      faults.push(`line ${line} of the list: its text must occur exactly once in ${file}`)
    if ((test === undefined) === (survives === undefined))
      faults.push(`line ${line} of the list: it needs a test that fails, or why none does`)
  }
  return faults
}
