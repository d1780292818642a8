import { expect, test } from 'bun:test'
import { join } from 'node:path'
import { read } from './harness/sources'

const root = join(import.meta.dir, '..')
const page = await Bun.file(join(root, 'docs/architecture.md')).text()
const sources = new Map((await read(root)).map(({ path, code }) => [path, code]))

/** `path` or `path#name` in backticks. */
const reference = /`((?:src|db|test)\/[\w./-]+\.ts)(?:#(\w+))?`/g

/** What a page names and the files do not have. */
function missing(text: string, files: ReadonlyMap<string, string>): string[] {
  return [...text.matchAll(reference)].flatMap(([, path = '', name]) => {
    const code = files.get(path)
    if (code === undefined) return [path]
    return name === undefined || declares(code, name) ? [] : [`${path}#${name}`]
  })
}

/** Whether a file declares a name: at any depth, or as a method of an object. */
function declares(code: string, name: string): boolean {
  const declared = `\\b(?:function|const|let|type|class) ${name}\\b`
  const method = `^ +(?:async )?${name}\\([^)]*\\)(?:: [^{]*)? \\{$`
  return new RegExp(`${declared}|${method}`, 'm').test(code)
}

/** The references in the rows of a table below a heading, row by row. */
function stages(heading: string): string[][] {
  const section = page.split(`## ${heading}\n`)[1]?.split('\n## ')[0] ?? ''
  const rows = section.split('\n').filter((line) => line.startsWith('| ') && !/^\| st/.test(line))
  return rows.map((row) => [...(row.split('|')[2] ?? '').matchAll(reference)].map(([all]) => all))
}

test('behavior: every file and function that the page names is there', () => {
  expect(missing(page, sources)).toEqual([])
})

test('behavior: every stage of a paid request and of the start names a function', () => {
  const all = [...stages('The start'), ...stages('A paid request')]
  expect(all.length).toBeGreaterThan(25)
  for (const named of all) {
    expect(named.length).toBeGreaterThan(0)
    for (const each of named) expect(each).toContain('#')
  }
})

test('error: a file, a function or a method that is gone is found', () => {
  const files = new Map([['src/a.ts', 'function b() {}\nconst c = {\n  d(e) {\n  },\n}\nf(g)\n']])
  const found = (text: string) => missing(text, files)
  expect(found('`src/a.ts` `src/a.ts#b`, `src/a.ts#c` and `src/a.ts#d`')).toEqual([])
  expect(found('`src/gone.ts`')).toEqual(['src/gone.ts'])
  expect(found('`src/gone.ts#b`')).toEqual(['src/gone.ts'])
  expect(found('| x | `src/a.ts#f`, `src/a.ts#gone` |')).toEqual(['src/a.ts#f', 'src/a.ts#gone'])
})
