import { backup as copy } from '../../db/sqlite/backup'
import { BackupError } from '../../db/sqlite/copy'
import { databaseUrlOf, type Env, EnvironmentError } from '../config/env'

/** Why a database server is not copied by this program. */
export const ofServer =
  'DATABASE_URL names a PostgreSQL server, which has better tools for it: pg_basebackup with the ' +
  'archive of the log, or pg_dump of the database'

export type BackupOptions = {
  dataDir: string
  env: Env
  /** Path of the copy; must not exist. */
  file: string
  /** Prints one line. */
  out: (line: string) => void
}

/** Copies the live database while `turnpike serve` may be running. Returns the exit code. */
export function backup({ dataDir, env, file, out }: BackupOptions): number {
  try {
    if (databaseUrlOf(env) !== undefined) {
      out(`turnpike: ${ofServer}`)
      return 1
    }
    const bytes = copy({ dataDir, file })
    out(`${file}: ${bytes} bytes, checked; the keys of ${dataDir} are not in it`)
    return 0
  } catch (error) {
    if (!(error instanceof BackupError || error instanceof EnvironmentError)) throw error
    out(`turnpike: ${error.message}`)
    return 1
  }
}
