import { BackupError, writeBackup } from '../../../db/sqlite/backup'
import { databaseUrlOf } from '../../config/env'
import { CommandError } from '../Command'
import type { Run } from '../commands'

/** Why a database server is not copied by this program. */
export const ofServer =
  'DATABASE_URL names a PostgreSQL server, which has better tools for it: pg_basebackup with the ' +
  'archive of the log, or pg_dump of the database'

/**
 * Copies the live database while `turnpike serve` may be running, to a path that must not exist.
 * Returns the exit code.
 */
export function backup({ dataDir, env, operand: file, out }: Run<'backup'>): number {
  if (databaseUrlOf(env) !== undefined) throw new CommandError(ofServer)
  try {
    const bytes = writeBackup({ dataDir, file })
    out(`${file}: ${bytes} bytes, checked; the keys of ${dataDir} are not in it`)
    return 0
  } catch (error) {
    throw error instanceof BackupError ? new CommandError(error.message) : error
  }
}
