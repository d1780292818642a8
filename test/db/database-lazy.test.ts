import { expect, test } from 'bun:test'
import { join } from 'node:path'
import { read, type Source } from '../harness/sources'

/** Without DATABASE_URL nothing of PostgreSQL is loaded: a start must not become slower by it. */

/** Imports of PostgreSQL outside of its folder that a start would evaluate. */
function eager(sources: readonly Source[]): string[] {
  return sources
    .filter(({ path }) => !/^(db\/postgres|test)\//.test(path))
    .flatMap(({ path, imports }) =>
      imports
        .filter(({ specifier, target = '' }) => {
          return specifier === 'pg' || target.startsWith('db/postgres/')
        })
        .filter(({ typeOnly, dynamic }) => !typeOnly && !dynamic)
        .map(({ specifier }) => `${path}: ${specifier}`),
    )
}

test('outside of db/postgres its files are imported as types, or by a call', async () => {
  const sources = await read(join(import.meta.dir, '../..'))
  expect(eager(sources)).toEqual([])
  // The command that serves does import them.
  const serving = sources.find(({ path }) => path === 'src/cli/operate/database.ts')
  const lazy = serving?.imports.filter(({ dynamic }) => dynamic).map(({ target }) => target)
  expect(lazy).toContain('db/postgres/open.ts')
})

test('error: an import that a start would evaluate is found', async () => {
  const found = async (statement: string) =>
    eager(await read('/nowhere', { 'src/cli/a.ts': statement, 'db/postgres/open.ts': 'export {}' }))
  const path = "'../../db/postgres/open'"
  expect(await found(`import { openPostgres } from ${path}`)).toHaveLength(1)
  expect(await found("import { Client } from 'pg'")).toHaveLength(1)
  expect(await found(`import type { A } from ${path}`)).toEqual([])
  expect(await found(`const a = await import(${path})`)).toEqual([])
})

test('a start without DATABASE_URL loads no module of PostgreSQL', () => {
  const program = `
    await import(${JSON.stringify(join(import.meta.dir, '../../src/cli/sell/serve.ts'))})
    await import(${JSON.stringify(join(import.meta.dir, '../../src/cli/operate/orders.ts'))})
    const names = Object.keys(require.cache)
    console.log(names.length > 100)
    console.log(names.filter((name) => /db.postgres|node_modules.pg./.test(name)).join())`
  const run = Bun.spawnSync([process.execPath, '-e', program], {
    cwd: join(import.meta.dir, '../..'),
    env: { PATH: process.env.PATH ?? '' },
  })
  expect([run.stdout.toString(), run.stderr.toString()]).toEqual(['true\n\n', ''])
})
