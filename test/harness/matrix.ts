import './tmpfs'
import { join } from 'node:path'
import { onBoth, onBothByAll, paths } from './money-files'
import { hasPostgres, startForAll } from './postgres'

/**
 * Runs the tests of money, delivery, jobs, orders, grants, keys, redemption and recovery once more, with
 * PostgreSQL in place of SQLite; with `--all` those files too whose functions of the ledger others call
 * as well. A test within these files that is about SQLite itself skips itself, and says why.
 * Other arguments are parts of names: then only the files with one of them run.
 */
if (!hasPostgres) {
  process.stderr.write('there is no PostgreSQL: install it, or name its programs by POSTGRES\n')
  process.exit(1)
}
const parts = process.argv.slice(2).filter((argument) => argument !== '--all')
const all = process.argv.includes('--all') ? [...onBoth, ...onBothByAll] : onBoth
const files = all.filter((name) => parts.length === 0 || parts.some((part) => name.includes(part)))
if (files.length === 0)
  throw new Error(`no file of these tests has ${parts.join(' or ')} in its name`)
const directory = join(import.meta.dir, '..')
const cluster = await startForAll()
const child = Bun.spawn(
  [
    // More processes than cores, because a test waits more than it works.
    ...[process.execPath, 'test', '--parallel=4', '--no-isolate'],
    `--timings=${join(directory, 'timings.json')}`,
    ...files.map((name) => paths.get(name) ?? name),
  ],
  {
    env: { ...process.env, ...cluster.env, TURNPIKE_TEST_LEDGER: 'postgres' },
    stdout: 'inherit',
    stderr: 'inherit',
  },
)
const code = await child.exited
await cluster.stop()
process.exit(code)
