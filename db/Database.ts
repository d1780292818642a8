import type { Ledger } from './Ledger'

/** An open database of either kind: a file of SQLite, or a PostgreSQL server. */
export type Database = {
  ledger: Ledger
  storage: StorageFaults
  /** What the opening changed in a database of an earlier schema. */
  upgrade: Upgrade | undefined
  /** State of the server; undefined for a file. */
  server?: ServerState | undefined
  /** Prepares the log of a file for a process that runs for long. Called before `unused`. */
  reserveLog?: (() => void) | undefined
  /** Functions that prepare statements before their first use. A call is optional. */
  unused(): readonly (() => unknown)[]
  /** Writes back what is open, and releases the database. Idempotent. */
  close(): void | Promise<void>
}

/** Whether the database can be read and written, according to the last attempts. */
export type StorageFaults = {
  /** Path of the file, or host and name of the database. Without credentials. */
  file: string
  /** The same for the public: without directories and hosts. */
  name: string
  /** Code of the current fault, e.g. `SQLITE_FULL`; undefined while it can be written. */
  fault(): string | undefined
  /** Faults since the start, by code. */
  counts(): ReadonlyMap<string, number>
  /** Calls back with the code when a fault begins, and with undefined when it ends. */
  onChange(listener: (code: string | undefined) => void): void
}

/** What an opening changed in a database of an earlier schema. */
export type Upgrade = {
  /** The last migration before and after, e.g. `0001_ledger`. */
  from: string
  to: string
  /** Names of the migrations that were applied. */
  applied: readonly string[]
  /** Path of the copy from before; a server's database is copied by its own tools. */
  backup?: string | undefined
}

/** A database server, as it was last seen. */
export type ServerState = {
  /** How far its clock is ahead of ours, ms. */
  aheadMs(): number
  /** Why this service must not sell because of it; undefined when it may. */
  reason(): string | undefined
  /**
   * What keeps acknowledged commits when the primary is lost: `sync` waits for a standby, `async`
   * may lose the last ones. `unknown` without the right to see it.
   */
  standby(): Standby
}

export type Standby = 'none' | 'async' | 'sync' | 'unknown'
