import { type EventText, events } from '../../src/log/Event'
import * as ProblemMeaning from '../../src/protocol/ProblemMeaning'
import { line } from './api-reference'

/** The tables of docs/troubleshooting.md that the code decides, by the name in its comment. */
const tables: Readonly<Record<string, () => string[]>> = {
  problems: () => [
    '| code | meaning | what to do |',
    '|---|---|---|',
    ...ProblemMeaning.all().map(({ code, meaning, operator = '-' }) =>
      line([`\`${code}\``, meaning, operator]),
    ),
  ],
  events: () => [
    '| event | level | meaning | what to do |',
    '|---|---|---|---|',
    ...Object.entries<EventText>(events)
      .toSorted(([a, one], [b, other]) => (one.level + a < other.level + b ? -1 : 1))
      .flatMap(([name, text]) =>
        text.level === 'info' ? [] : [line([`\`${name}\``, text.level, text.meaning, text.action])],
      ),
  ],
}

/** The page with its tables written again. Throws for a comment that names no table. */
export function renderTroubleshooting(page: string): string {
  return page.replace(
    /(<!-- generated: (\w+) -->\n)[\s\S]*?(<!-- end -->)/g,
    (_, begin: string, name: string, end: string) => {
      const rows = tables[name]
      if (rows === undefined) throw new Error(`no table ${name}`)
      return `${begin}\n${rows().join('\n')}\n\n${end}`
    },
  )
}

/** The names of the tables that a page must have. */
export const tableNames = Object.keys(tables)
