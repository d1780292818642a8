import type { Database } from 'bun:sqlite'
import { closeSync, existsSync, fdatasync, fdatasyncSync, openSync } from 'node:fs'
import { promisify } from 'node:util'
import { type Storage, tryWrite } from './storage'

const datasync = promisify(fdatasync)

/** Longest time (ms) that a commit without a sync is only in the system's memory. */
const soonMs = 100

/** Time between two attempts while the disk refuses a sync, ms. */
const retryMs = 250

const logOf = (file: string) => openSync(`${file}-wal`, 'r+')

/** Brings the log of a process that was killed to the disk. Throws as the system. */
export function syncOnce(file: string): void {
  if (!existsSync(`${file}-wal`)) return
  const log = logOf(file)
  try {
    fdatasyncSync(log)
  } finally {
    closeSync(log)
  }
}

/**
 * Brings commits to the disk beside the event loop, and several by one sync of the log. SQLite
 * itself syncs each commit with the loop stopped, by `fsync`, which also writes the times of the
 * file and takes twice as long.
 */
export function createSync(sqlite: Database, storage: Storage) {
  const closed = new AbortController()
  const allSynced = Promise.withResolvers<void>()
  let log: number | undefined
  let running: Promise<void> | undefined
  let next: Promise<void> | undefined
  let soon: ReturnType<typeof setTimeout> | undefined

  /** Resolves when all commits until now are on the disk, however long that takes. */
  const syncLog = async () => {
    clearTimeout(soon)
    soon = undefined
    try {
      log ??= logOf(storage.file)
      await datasync(log)
    } catch (error) {
      storage.note(error)
      await untilWritten()
    }
  }
  const untilWritten = async () => {
    while (!closed.signal.aborted) {
      try {
        await storage.writable(closed.signal)
        return tryWrite(sqlite)
      } catch (error) {
        storage.note(error)
        await Bun.sleep(retryMs)
      }
    }
    return allSynced.promise
  }
  const sync = (): Promise<void> => {
    if (running === undefined) {
      running = syncLog().finally(() => {
        running = undefined
      })
      return running
    }
    // It may have begun before the newest commit. The next one serves all that come during it.
    next ??= running.then(() => {
      next = undefined
      return sync()
    })
    return next
  }
  return {
    sync,
    withoutSync<T>(run: () => T): T {
      sqlite.run('PRAGMA synchronous = NORMAL')
      try {
        return run()
      } finally {
        sqlite.run('PRAGMA synchronous = FULL')
        soon ??= setTimeout(sync, soonMs)
      }
    },
    /** Before the connection is closed. Where the disk refuses, what waits is never answered. */
    close() {
      closed.abort()
      clearTimeout(soon)
      try {
        if (soon !== undefined || running !== undefined) syncOnce(storage.file)
        allSynced.resolve()
      } catch (error) {
        storage.note(error)
      }
      if (log !== undefined) closeSync(log)
    },
  }
}
