import type { TomlError } from 'smol-toml'

/** Names of tables that a file may have several of, which are in two brackets. */
const lists: readonly string[] = ['merchants', 'routes', 'params', 'tokens', 'webhooks']

/** Quotes of word processors, which are letters in TOML. */
const typographic = /[\u2018-\u201f\u00ab\u00bb]/

/** A string with its end, a comment, or a quote that has no end in its line. */
const token = /"(?:[^"\\]|\\.)*"|'[^']*'|#.*|(?<open>["'])/g

const header = /^\s*(?<before>\[+)\s*(?<name>[\w"'.:-]+)(?<after>[\]\s]*)(?:#.*)?$/

const meanings: Readonly<Record<string, string>> = {
  'invalid value': 'a value is text in straight quotes, a number, true or false',
  'illegal character in key': 'a key has letters, digits, _ and -, and = follows it',
  'trying to redefine an already defined table or value':
    'this key or table is in the file above, too: remove one of them',
  'expected comma or end of structure': 'write a comma or the closing bracket in front of this',
}

/** What is meant in a text that is not TOML, with the column. Shows nothing but names of tables. */
export function explainSyntax(text: string, error: TomlError): string {
  const { line, column } = error
  const [head = ''] = error.message.split('\n')
  const reason = head.replace('Invalid TOML document: ', '')
  const row = text.split(/\r?\n/)[line - 1] ?? ''
  const char = row[column - 1] ?? ''
  if (reason === 'unfinished string') return openString(row, column - 1)
  if (char === '' && reason.endsWith('not allowed in strings')) {
    const begin = [...row.matchAll(token)].find(({ groups }) => groups?.open !== undefined)
    return openString(row, begin?.index ?? row.length)
  }
  if (typographic.test(char))
    return `column ${column}: ${char} is a typographic quote: write straight ones, such as "text"`
  const { before = '', name = '', after = '' } = header.exec(row)?.groups ?? {}
  if (before.trim() !== after.replaceAll(']', '[').trim())
    return `column ${column}: both ends of a header have the same brackets: write ${headerOf(name)}`
  return `column ${column}: ${meanings[reason] ?? reason}`
}

function openString(row: string, start: number): string {
  const quote = /^("""|'''|["'])/.exec(row.slice(start))?.[0] ?? '"'
  const [other] = typographic.exec(row.slice(start)) ?? []
  const why = other === undefined ? '' : `, because ${other} is no quote of TOML`
  return `column ${start + 1}: this string has no end: write ${quote} behind it${why}`
}

function headerOf(name: string): string {
  return lists.some((list) => new RegExp(`(^|\\.)${list}$`).test(name))
    ? `[[${name}]]`
    : `[${name}]`
}
