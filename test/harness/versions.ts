import { cpSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { migrations } from '../../db/postgres/migrate'
import { main } from './program'

/** A process of the program, which ends with the test. */
export type Version = {
  url: string
  /** Sends it a signal. */
  signal(signal: 'SIGSTOP' | 'SIGCONT' | 'SIGTERM' | 'SIGKILL'): void
  /** Its exit code. */
  exited: Promise<number>
  /** Ends it as an operator does; resolves with its exit code. */
  stop(): Promise<number>
}

/**
 * Replaces the shell by the program. A second process reads our end of a pipe, and ends the program
 * when the pipe closes.
 */
const guard = `exec 3<&0
(read -r _ <&3 || kill -9 $$) </dev/null >/dev/null 2>&1 &
exec "$@" 3<&- </dev/null`

const last = migrations.at(-1)?.name ?? ''
/** Name of the migration that the later version has after all of ours. */
export const laterMigration = `${String(migrations.length + 1).padStart(4, '0')}_later`

/** Where the text is in the program, and what a later version has in its place. */
const changes: readonly (readonly [from: string, to: string])[] = [
  // Other sources of the functions have a schema of their own.
  ['CREATE FUNCTION revert(', '-- as the later version has it\nCREATE FUNCTION revert('],
  [
    `{ name: "${last}", sql: _${last}_default }`,
    `{ name: "${last}", sql: _${last}_default },
  { name: "${laterMigration}", sql: "ALTER TABLE payments ADD COLUMN later text DEFAULT 'added';" }`,
  ],
]

/** Path of a later version: it has other functions, and a migration that adds a column. */
export function laterVersion(): string {
  // External packages are found from beside the first version.
  const own = join(dirname(main), '..', `later-${crypto.randomUUID()}`)
  mkdirSync(own)
  cpSync(dirname(main), own, { recursive: true })
  const missing = new Set(changes)
  for (const name of readdirSync(own).filter((each) => each.endsWith('.js'))) {
    const path = join(own, name)
    const text = readFileSync(path, 'utf8')
    const found = changes.filter(([from]) => text.includes(from))
    for (const change of found) missing.delete(change)
    const later = found.reduce((all, [from, to]) => all.replace(from, () => to), text)
    if (found.length > 0) writeFileSync(path, later)
  }
  if (missing.size > 0) throw new Error(`not in the program: ${[...missing].join()}`)
  return join(own, 'main.js')
}

/** Removes a later version. */
export function removeVersion(path: string): void {
  rmSync(dirname(path), { recursive: true, force: true })
}

/** Starts a program; resolves when it listens, and rejects with what it said when it ends. */
export async function startVersion(
  path: string,
  options: {
    directory: string
    text: string
    env: Record<string, string>
    args?: readonly string[]
  },
): Promise<Version> {
  mkdirSync(options.directory, { recursive: true })
  const file = join(options.directory, 'merchants.toml')
  writeFileSync(file, options.text)
  const data = join(options.directory, 'data')
  const serve = ['serve', '--config', file, '--data', data, ...(options.args ?? [])]
  const command = [process.execPath, path, ...serve]
  const child = Bun.spawn(['sh', '-c', guard, 'sh', ...command], {
    env: { PATH: process.env.PATH ?? '', ...options.env },
    stdin: 'pipe',
    stdout: 'ignore',
    stderr: 'pipe',
  })
  const listens = Promise.withResolvers<string>()
  const read = async () => {
    let said = ''
    // Read the pipe to its end: a full pipe would stop the program.
    for await (const chunk of child.stderr) {
      said += new TextDecoder().decode(chunk)
      const url = /listens on (\S+)/.exec(said)?.[1]
      if (url !== undefined) listens.resolve(url)
    }
    listens.reject(new Error(said))
  }
  void read()
  return {
    url: await listens.promise,
    signal: (signal) => child.kill(signal),
    exited: child.exited,
    async stop() {
      child.kill('SIGTERM')
      const code = await child.exited
      child.stdin.write('\n')
      await child.stdin.end()
      return code
    },
  }
}
