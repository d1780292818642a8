import { backup as copy } from '../../../db/sqlite/backup'
import { BackupError } from '../../../db/sqlite/copy'
import { databaseUrlOf } from '../../config/env'
import { CommandError, type Context, failed } from '../Command'

/** Why a database server is not copied by this program. */
export const ofServer =
  'DATABASE_URL names a PostgreSQL server, which has better tools for it: pg_basebackup with the ' +
  'archive of the log, or pg_dump of the database'

/**
 * Copies the live database while `turnpike serve` may be running, to a path that must not exist.
 * Returns the exit code.
 */
export function backup({ dataDir, env, file, out }: Context): number {
  try {
    if (databaseUrlOf(env) !== undefined) throw new CommandError(ofServer)
    const bytes = copy({ dataDir, file })
    out(`${file}: ${bytes} bytes, checked; the keys of ${dataDir} are not in it`)
    return 0
  } catch (error) {
    return failed(error instanceof BackupError ? new CommandError(error.message) : error, out)
  }
}
