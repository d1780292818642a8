import { Database } from 'bun:sqlite'
import { existsSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { BackupError, copyTo } from './copy'
import { databaseName } from './open'

/**
 * Writes a copy of the data directory's database to `file`, also while a gateway runs. Returns its
 * size in bytes. Throws what `copyTo` throws, and BackupError without a database.
 */
export function backup(options: { dataDir: string; file: string }): number {
  const { dataDir } = options
  const source = join(dataDir, databaseName)
  if (!existsSync(source))
    throw new BackupError(`there is no database in ${dataDir}: name its directory by --data`)
  const from = openSource(source)
  try {
    from.run('PRAGMA busy_timeout = 5000')
    return copyTo(resolve(options.file), from)
  } finally {
    from.close()
  }
}

function openSource(source: string): Database {
  try {
    return new Database(source, { readonly: true })
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : 'unknown'
    throw new BackupError(`${source} cannot be opened: ${reason}`, { cause })
  }
}
