import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

const root = join(import.meta.dir, '../..')

/** A block of code in a document. */
export type Fence = {
  page: string
  line: number
  language: string
  text: string
  /** What a comment above the block says: why it is not run, or the file that runs it. */
  mark: { kind: 'not run' | 'run by'; of: string } | undefined
}

/** Every document, relative to the root. */
export const pages = [
  'README.md',
  'CHANGELOG.md',
  ...readdirSync(join(root, 'docs'), { recursive: true, encoding: 'utf8' })
    .toSorted()
    .map((name) => `docs/${name}`),
].filter((page) => page.endsWith('.md'))

export function readPage(page: string): string {
  return readFileSync(join(root, page), 'utf8')
}

const mark = /^<!-- (not run|run by): (.+) -->$/

/** The blocks of a page in their order. Throws for one without an end. */
export function fencesOf(page: string, text = readPage(page)): Fence[] {
  const found: Fence[] = []
  const lines = text.split('\n')
  for (let index = 0; index < lines.length; index++) {
    const language = /^```(\w*)$/.exec(lines[index] ?? '')?.[1]
    if (language === undefined) continue
    const end = lines.indexOf('```', index + 1)
    if (end < 0) throw new Error(`${page}:${index + 1} has no end`)
    const [, kind, of = ''] = mark.exec(lines[index - 1] ?? '') ?? []
    found.push({
      page,
      line: index + 1,
      language,
      text: lines.slice(index + 1, end).join('\n'),
      mark: kind === undefined ? undefined : { kind: kind as 'not run' | 'run by', of },
    })
    index = end
  }
  return found
}

/** Why a mark is wrong. */
export function markFault({ mark: found }: Fence): string | undefined {
  if (found === undefined) return undefined
  if (found.kind === 'run by')
    return existsSync(join(root, found.of)) ? undefined : `${found.of} does not exist`
  return found.of.length < 12 ? 'no reason' : undefined
}

/** A whole file of the configuration from a block that has only a part of it. `head`: the tables before the merchants. */
export function wholeToml(text: string, head: string): string {
  const merchant =
    '[[merchants]]\nslug = "assistant"\ntitle = "A"\ntag = "A"\ndescription = "A."\nupstream = "https://api.example.com"\n'
  const route =
    '[[merchants.routes]]\npath = "/chat"\nmethods = ["POST"]\nprice = "0.05"\nsummary = "A"\ndescription = "A."\n'
  const first = /^\[\[?[^\]]*\]\]?/m.exec(text)?.[0] ?? ''
  if (first === '[service]') return text
  if (first.startsWith('[networks.')) {
    const [service = ''] = head.split(/^(?=\[networks\.)/m)
    const names = 'networks = ["base", "robinhood"]\n'
    return `${service}${names}\n${text}\n${merchant}${route}`
  }
  if (first === '[[merchants.routes]]') return `${head}\n${merchant}${text}`
  if (first === '[merchants.routes.meter]') return `${head}\n${merchant}${route}${text}`
  return `${head}\n${text}`
}
