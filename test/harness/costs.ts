import { Database } from 'bun:sqlite'
import { readFileSync } from 'node:fs'
import { type Db, open } from '../../db/sqlite/open'

/** Work of the gateway in its database. */
export type SqlCosts = {
  /** Statements by verb and table, such as `insert payments`; without BEGIN, COMMIT and PRAGMA. */
  statements: Record<string, number>
  /** Commits in the log, of any connection, that were waited for. */
  commits: number
  /** Commits that were not waited for. */
  laterCommits: number
}

export type SqlCounter = {
  /** Opens the counted database. */
  openDatabase: typeof open
  /** Statements of one kind since the last `reset`. */
  statements(kind: string): number
  reset(): void
  /** Since the last `reset`. */
  costs(): SqlCosts
}

/** Counts every statement that a connection runs after it was opened, and the commits in its log. */
export function countSql(): SqlCounter {
  const statements = new Map<string, number>()
  let db: Db | undefined
  let laterCommits = 0
  let commitsBefore = 0
  const commits = () => (db === undefined ? 0 : commitsIn(`${db.file}-wal`))
  return {
    openDatabase(options) {
      const opened = withPrepare(
        (sql) => {
          const kind = kindOf(sql)
          statements.set(kind, (statements.get(kind) ?? 0) + 1)
        },
        () => open(options),
      )
      db = {
        ...opened,
        withoutSync(run) {
          laterCommits++
          return opened.withoutSync(run)
        },
        sync() {
          laterCommits--
          return opened.sync()
        },
      }
      return db
    },
    statements: (kind) => statements.get(kind) ?? 0,
    reset() {
      statements.clear()
      laterCommits = 0
      commitsBefore = commits()
    },
    costs: () => ({
      statements: Object.fromEntries([...statements].toSorted(([a], [b]) => (a < b ? -1 : 1))),
      commits: commits() - commitsBefore - laterCommits,
      laterCommits,
    }),
  }
}

const methods = ['run', 'get', 'all', 'values'] as const

/**
 * Connections that are opened within `run` count their prepared statements for their lifetime:
 * `open` keeps the method that it finds.
 */
function withPrepare<T>(count: (sql: string) => void, run: () => T): T {
  const { prototype } = Database
  const { prepare } = prototype
  const counting = function (this: Database, ...input: Parameters<typeof prepare>) {
    const statement = prepare.apply(this, input)
    for (const name of methods) {
      const own = statement[name] as (...values: unknown[]) => unknown
      const value = (...values: unknown[]) => {
        count(input[0])
        return own.apply(statement, values)
      }
      Object.defineProperty(statement, name, { value, configurable: true })
    }
    return statement
  }
  Object.defineProperty(prototype, 'prepare', {
    value: counting,
    configurable: true,
    writable: true,
  })
  try {
    return run()
  } finally {
    Object.defineProperty(prototype, 'prepare', {
      value: prepare,
      configurable: true,
      writable: true,
    })
  }
}

/** `insert payments` of `insert into "payments" (..) ..`. */
function kindOf(sql: string): string {
  const verb = /^\s*(\w+)/.exec(sql)?.[1]?.toLowerCase() ?? ''
  const table = /\b(?:from|into|update)\s+"?(\w+)"?/i.exec(sql)?.[1] ?? ''
  return `${verb} ${table}`
}

const headerBytes = 32
const frameHeaderBytes = 24

/**
 * Commits in a write-ahead log that was not restarted: the frames that have the size of the
 * database. https://sqlite.org/fileformat2.html#the_write_ahead_log
 */
function commitsIn(file: string): number {
  const log = readFileSync(file)
  if (log.length < headerBytes) return 0
  const pageBytes = log.readUInt32BE(8)
  const salts = log.subarray(16, 24)
  let commits = 0
  for (
    let at = headerBytes;
    at + frameHeaderBytes <= log.length;
    at += frameHeaderBytes + pageBytes
  ) {
    if (log.subarray(at + 8, at + 16).equals(salts) && log.readUInt32BE(at + 4) > 0) commits++
  }
  return commits
}
