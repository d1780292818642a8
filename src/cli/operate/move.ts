import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { DataDirectoryError, databaseName } from '../../../db/sqlite/directory'
import { databaseUrlOf, type Env, loadSecrets } from '../../config/env'
import { CommandError } from '../Command'
import type { Run } from '../commands'
import { ownVersion } from '../version'
import { findTarget } from './database'

/**
 * Copies the database of a data directory into the empty one that DATABASE_URL names. Returns the
 * exit code: 1 with a message, and the directory is in use as before.
 */
export async function move({ dataDir, env, now, out }: Run<'move'>): Promise<number> {
  try {
    const target = await findTarget(env)
    const file = join(dataDir, databaseName)
    const fault = faultOf(env, file)
    if (target === undefined || fault !== undefined) throw new CommandError(fault)
    // Before a row is written: the service that comes after needs the same secrets.
    const secrets = loadSecrets({ dataDir, env, isShared: true })
    const { copyToServer } = await import('../../../db/postgres/move')
    const program = ownVersion().version
    const copied = await copyToServer({ target, secrets, dataDir, now, program })
    for (const { name, rows } of copied) out(`${name.padEnd(24)}${rows}`)
    const rows = copied.reduce((sum, table) => sum + table.rows, 0)
    out(`${rows} rows are in PostgreSQL and equal; ${file} is no longer used: keep it as a backup`)
    return 0
  } catch (error) {
    throw error instanceof Error && isExpected(error) ? new CommandError(error.message) : error
  }
}

function faultOf(env: Env, file: string): string | undefined {
  if (databaseUrlOf(env) === undefined)
    return 'DATABASE_URL is not set: name the empty PostgreSQL database that takes the rows'
  if (existsSync(file)) return undefined
  return `there is no database at ${file}: name its directory by --data`
}

/** Errors whose message says what to do. Their modules are not loaded without need. */
function isExpected(error: Error): boolean {
  if (error instanceof DataDirectoryError) return true
  return /^(DatabaseStart|DatabaseLocked|DatabaseFile|DatabaseLost|Migration|Upgrade|Url)Error$/.test(
    error.name,
  )
}
