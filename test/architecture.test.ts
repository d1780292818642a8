import { expect, test } from 'bun:test'
import { existsSync, readdirSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { read, type Source } from './harness/sources'

const root = join(import.meta.dir, '..')
const page = await Bun.file(join(root, 'docs/architecture.md')).text()
const all = await read(root)
const sources = new Map(all.map(({ path, code }) => [path, code]))
/** Most files that contain the stages of a paid request. */
const stageFilesMax = 45

const byUse = '## A request that is charged by its use'

/** `path` or `path#name` in backticks. */
const reference = /`((?:src|db|test)\/[\w./-]+\.ts)(?:#(\w+))?`/g

/** References of a page to files and declarations that do not exist. */
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

/** The lines of the section below a heading, up to the next heading of any level. */
function linesOf(heading: string): string[] {
  const [, section = ''] = page.split(`${heading}\n`)
  return (section.split('\n##')[0] ?? '').split('\n')
}

/** The references in the rows of a table below a heading, row by row. */
function stages(heading: string): string[][] {
  const rows = linesOf(heading).filter((line) => line.startsWith('| ') && !/^\| st/.test(line))
  return rows.map((row) => [...(row.split('|')[2] ?? '').matchAll(reference)].map(([name]) => name))
}

/** The distinct files that a text names. */
function filesIn(text: string): Set<string> {
  return new Set([...text.matchAll(reference)].map(([, path = '']) => path))
}

/** Imports of a stage by a later one; types do not count. */
function upward(order: readonly string[], files: readonly Source[]): string[] {
  const byPath = new Map(files.map((source) => [source.path, source]))
  return order.flatMap((path, position) =>
    (byPath.get(path)?.imports ?? []).flatMap(({ target = '', typeOnly }) => {
      const at = order.indexOf(target)
      return at >= 0 && at < position && !typeOnly ? [`${path} imports ${target}`] : []
    }),
  )
}

test('every file and function that the page names exists', () => {
  expect(missing(page, sources)).toEqual([])
})

test('every stage of a paid request and of the start names a function', () => {
  const headings = ['## The start', '## A paid request', byUse]
  const rows = headings.flatMap(stages)
  expect(rows.length).toBeGreaterThan(25)
  for (const named of rows) {
    expect(named.length).toBeGreaterThan(0)
    for (const each of named) expect(each).toContain('#')
  }
})

test('the stages of a paid request are in few files', () => {
  const files = filesIn(linesOf('## A paid request').join('\n'))
  expect(files.size).toBeGreaterThan(30)
  expect(files.size).toBeLessThanOrEqual(stageFilesMax)
})

for (const [heading, least] of [
  ['## A paid request', 15],
  [byUse, 10],
] as const)
  test(`below "${heading}" no stage imports a stage above it`, () => {
    const first = stages(heading).map(([stage = '']) => [...filesIn(stage)][0] ?? '')
    const order = [...new Set(first)]
    expect(order.length).toBeGreaterThan(least)
    expect(upward(order, all)).toEqual([])
  })

test('the README links every page of docs, and no link of a page is dead', async () => {
  const names = readdirSync(join(root, 'docs')).filter((name) => name.endsWith('.md'))
  const pages = ['README.md', ...names.map((name) => `docs/${name}`)]
  const anchors = new Map<string, Set<string>>()
  for (const page of pages) {
    const headings = (await Bun.file(join(root, page)).text()).matchAll(/^#+ (.+)$/gm)
    anchors.set(page, new Set([...headings].map(([, heading = '']) => anchorOf(heading))))
  }
  for (const from of pages) {
    const text = await Bun.file(join(root, from)).text()
    const links = [...text.matchAll(/\]\(([^)#:\s]*)(#[^)\s]*)?\)/g)]
    const targets = links.map(([, link = '', anchor = '']) => ({
      page: link === '' ? from : join(dirname(from), link),
      anchor: anchor.slice(1),
    }))
    for (const { page, anchor } of targets) {
      expect([from, page, existsSync(join(root, page))]).toEqual([from, page, true])
      const known = anchor === '' || anchors.get(page)?.has(anchor) === true
      expect([from, page, anchor, known]).toEqual([from, page, anchor, true])
    }
    const reached = new Set(targets.map(({ page }) => page))
    if (from === 'README.md')
      expect(pages.slice(1).filter((page) => !reached.has(page))).toEqual([])
  }
})

/** The anchor that a heading has on the usual hosts of Markdown. */
function anchorOf(heading: string): string {
  const plain = heading.toLowerCase().replace(/[^\p{L}\p{N} _-]/gu, '')
  return plain.replaceAll(' ', '-')
}

test('error: an import of a stage above is found, and an import of its types is allowed', async () => {
  const files = await read('', {
    'src/a.ts': "import { b } from './b'\n",
    'src/b.ts': "import type { A } from './a'\nimport { c } from './c'\n",
    'src/c.ts': "import { a } from './a'\n",
  })
  const found = upward(['src/a.ts', 'src/b.ts', 'src/c.ts'], files)
  expect(found).toEqual(['src/c.ts imports src/a.ts'])
})

test('error: a file, a function or a method that does not exist is found', () => {
  const files = new Map([['src/a.ts', 'function b() {}\nconst c = {\n  d(e) {\n  },\n}\nf(g)\n']])
  const found = (text: string) => missing(text, files)
  expect(found('`src/a.ts` `src/a.ts#b`, `src/a.ts#c` and `src/a.ts#d`')).toEqual([])
  expect(found('`src/gone.ts`')).toEqual(['src/gone.ts'])
  expect(found('`src/gone.ts#b`')).toEqual(['src/gone.ts'])
  expect(found('| x | `src/a.ts#f`, `src/a.ts#gone` |')).toEqual(['src/a.ts#f', 'src/a.ts#gone'])
})
