import { expect, test } from 'bun:test'
import fc from 'fast-check'
import { RE2JS } from 're2js'
import * as Automaton from '../../src/schema/Automaton'
import { shippedText } from '../bench/shipped'
import { countOf, runs } from '../harness/samples'

/** Characters that the classes below divide, and such that no class has. */
const characters = ['a', 'b', 'c', '1', '_', '-', '.', ' ', '\n', '\u00e9', '\u{1F600}', '\ud83d']

const single = fc.constantFrom(
  ...[
    'a',
    'b',
    '1',
    '-',
    '\\.',
    '\\/',
    '\\n',
    '.',
    '\u00e9',
    '\u{1F600}',
    '\\d',
    '\\W',
    '\\s',
    '\\S',
  ],
  ...[
    '[ab]',
    '[^a]',
    '[a-c1_]',
    '[\\d.-]',
    '[^\\w\\n]',
    '[*+?|)(^$]',
    '[^]',
    '[]',
    '[\\]^-]',
    '[[a]',
  ],
)
const count = fc.constantFrom(
  '',
  '',
  '*',
  '+',
  '?',
  '*?',
  '+?',
  '??',
  '{2}',
  '{0}',
  '{0,2}',
  '{1,}',
  '{2,3}?',
)
const { expression } = fc.letrec<{ expression: string; part: string }>((tie) => ({
  expression: fc
    .array(fc.array(tie('part'), { maxLength: 3 }), { minLength: 1, maxLength: 3 })
    .map((branches) => branches.map((parts) => parts.join('')).join('|')),
  part: fc
    .tuple(
      fc.oneof(
        { depthSize: 'small', withCrossShrink: true },
        single,
        tie('expression').map((inner) => `(${inner})`),
        tie('expression').map((inner) => `(?:${inner})`),
      ),
      count,
    )
    .map((texts) => texts.join('')),
}))
const text = fc.array(fc.constantFrom(...characters), { maxLength: 5 }).map((all) => all.join(''))

test('an automaton matches what JavaScript and RE2 match', () => {
  let automata = 0
  fc.assert(
    fc.property(expression, fc.array(text, { minLength: 8, maxLength: 8 }), (inner, texts) => {
      for (const source of [`^(?:${inner})$`, `^${inner}$`]) {
        const automaton = Automaton.from(source)
        if (automaton === undefined) continue
        automata++
        const native = new RegExp(source, 'u')
        const other = RE2JS.compile(RE2JS.translateRegExp(source))
        for (const each of texts) {
          const found = automaton.test(each)
          expect([source, each, found]).toEqual([source, each, native.test(each)])
          // RE2 gives the blanks of ASCII to `\\s` (Linear.ts).
          if (!/\\s/i.test(source))
            expect([source, each, found]).toEqual([source, each, other.test(each)])
        }
      }
    }),
    runs(1000),
  )
  expect(automata).toBeGreaterThan(countOf(500))
})

test('every pattern of the shipped file has an automaton', () => {
  const patterns = [...shippedText().matchAll(/\bpattern = (?:'(.*?)'|"(.*?)")/g)]
  expect(patterns.length).toBeGreaterThan(20)
  for (const [, literal, basic = ''] of patterns)
    expect(Automaton.from(literal ?? basic.replaceAll('\\\\', '\\'))).toBeDefined()
})

/** What other engines must read, or refuse. */
const others = [
  ...['a', '^a', 'a$', '^a|b$', '^a\\$', '^a$|^b$', '^(^a)$', '^(a$)$', '^a\\b$', '^(?=a)a$'],
  ...['^(?<n>a)$', '^(a)\\1$', '^\\p{L}$', '^\\x41$', '^\\u{41}$', '^\\cA$', '^[\\b]$', '^\\0$'],
  ...['^a{501}$', '^(?:){501}$', '^(a{30}){30}$', '^(a|b)*a(a|b){12}$', '^(?:a?){0,400}a{400}$'],
  ...['^(((){40}){40}){40}$', '^(((a?){40}){40}){40}$', '^\\\u{1f600}$'],
  // A table of all its kinds would have a million entries.
  `^[${Array.from({ length: 300 }, (_, i) => String.fromCodePoint(0x4e00 + 2 * i)).join('')}]{100}$`,
]
test.each(others)('the pattern %s has no automaton', (source) => {
  new RegExp(source, 'u')
  expect(Automaton.from(source)).toBeUndefined()
})
