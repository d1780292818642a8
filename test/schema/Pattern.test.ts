import { describe, expect, test } from 'bun:test'
import * as Pattern from '../../src/schema/Pattern'

/** Ordinary patterns, and texts on which engines differ. */
const patterns = [
  '^abc$',
  'b',
  '',
  '^$',
  '^.$',
  '^\\s$',
  '^\\S$',
  '^[^\\s@]$',
  '^\\w+$',
  '\\bfoo\\b',
  '^\\u{1F600}|\\u0041$',
  'x|y$|^z',
  '^0x[0-9a-fA-F]{40}$',
  '^[A-Za-z]{3}(,[A-Za-z]{3})*$',
  '^\\p{L}+$',
  '^(?:a|b)?[^a-c]+?$',
  '^(?<year>\\d{4})-\\d\\d$',
]
const texts = [
  '',
  'a',
  'abc',
  'abc\n',
  '\nabc',
  '\n',
  '\v',
  '\t',
  ' ',
  '\u00a0',
  '\ufeff',
  '\u{1F600}',
  '\ud83d',
  '\u00e9',
  'A',
  'a foo b',
  'afoo',
  'foo-x',
  'ya',
  'za',
  `0x${'aB'.repeat(20)}`,
  'NOK,USD',
  'NOK,',
  'ddd',
  '2024-01',
]

describe('Pattern', () => {
  test('error: groups without end inside each other are refused', () => {
    expect(() => Pattern.compile(`^${'('.repeat(20_000)}a${')'.repeat(20_000)}$`)).toThrow(
      new Pattern.PatternError('has too many groups inside each other'),
    )
  })

  test('ordinary patterns match what JavaScript matches', () => {
    for (const source of patterns) {
      const native = new RegExp(source, 'u')
      const pattern = Pattern.compile(source)
      for (const text of texts)
        expect([source, text, pattern.test(text)]).toEqual([source, text, native.test(text)])
    }
  })

  const refused: [source: string, reason: RegExp][] = [
    ['(', /^is not a regular expression$/],
    ['[[:alpha:]]', /^is not a regular expression$/],
    ['^(?=.*\\d)a', /^has \(\?=, which linear matching lacks/],
    ['(?<!a)b', /^has \(\?<!a\)b, which/],
    ['(a|b)\\1', /^has \\1, which/],
    ['^a{0,2000}$', /^has \{0,2000\}, which/],
    ['^(a{1,100}){1,100}$', /which linear matching lacks/],
    // Each of the last twenty characters may have been an a: a million states.
    ['a.{20}b', /^has too many states: write minLength and maxLength/],
    ['^(a|b)*a(a|b){12}$', /^has too many states/],
  ]
  test.each(refused)('error: the pattern %s is refused', (source, reason) => {
    expect(() => Pattern.compile(source)).toThrow(Pattern.PatternError)
    expect(() => Pattern.compile(source)).toThrow(reason)
  })
})
