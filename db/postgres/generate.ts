import { join } from 'node:path'

/**
 * Writes the tables of PostgreSQL from those of SQLite: the same files with the columns of
 * columns.pg.ts. Run `bun db/postgres/generate.ts` after a change of a table, then write the next
 * migration of both databases.
 */
export const tableFiles = [
  'schema',
  'authorizations',
  'jobs',
  'offers',
  'orders',
  'grants',
  'books',
  'webhooks',
] as const

const db = join(import.meta.dir, '..')

/** The file of a table file for PostgreSQL. */
export function pathOf(name: string): string {
  return join(import.meta.dir, 'schema', `${name}.ts`)
}

/** The text that a table file has for PostgreSQL. */
export async function generate(name: string): Promise<string> {
  const text = await Bun.file(join(db, `${name}.ts`)).text()
  const header = `// Written by db/postgres/generate.ts from db/${name}.ts.\n`
  return header + text.replaceAll(/ from '(\.\.?\/[^']+)'/g, (_, from) => ` from '${moved(from)}'`)
}

/** An import of a table file, from the directory of the generated one. */
function moved(specifier: string): string {
  if (specifier === './columns') return '../../columns.pg'
  if (specifier.startsWith('../')) return `../../${specifier}`
  const name = specifier.slice(2)
  return tableFiles.some((each) => each === name) ? specifier : `../../${name}`
}

if (import.meta.main) {
  for (const name of tableFiles) await Bun.write(pathOf(name), await generate(name))
}
