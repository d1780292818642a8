import { mkdirSync, rmSync, type Stats, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

/** File that is written and removed to see whether the directory can be written. */
const probeName = '.turnpike-probe'

/** The data directory cannot be used. The message says why, and what to do. */
export class DataDirectoryError extends Error {
  override readonly name = 'DataDirectoryError'
}

/**
 * Creates the data directory when it is missing, for its owner only. Returns warnings about its
 * owner and mode. Throws DataDirectoryError when this process cannot write in it.
 */
export function openDirectory(path: string): string[] {
  try {
    mkdirSync(path, { recursive: true, mode: 0o700 })
  } catch (cause) {
    throw new DataDirectoryError(refusal(path, codeOf(cause)), { cause })
  }
  const stats = statSync(path)
  try {
    // Only a write shows that the file system, the owner and the mode permit one.
    const probe = join(path, probeName)
    writeFileSync(probe, '', { mode: 0o600 })
    rmSync(probe, { force: true })
  } catch (cause) {
    throw new DataDirectoryError(refusal(path, codeOf(cause), stats), { cause })
  }
  return warningsOf(path, stats, process.geteuid?.())
}

/** Warnings about the owner and the mode of a directory that user `uid` can write. */
export function warningsOf(
  path: string,
  { uid, mode }: Pick<Stats, 'uid' | 'mode'>,
  user: number | undefined,
): string[] {
  // Windows has neither users by number nor such bits.
  if (user === undefined) return []
  const found: string[] = []
  // Others than root use volumes of another owner by their group.
  if (user === 0 && uid !== 0)
    found.push(
      `the data directory ${path} belongs to user ${uid} and this process runs as root: user ` +
        `${uid} will not be able to read its files. Run turnpike as user ${uid}, or chown -R 0 ${path}`,
    )
  if ((mode & 0o002) !== 0)
    found.push(
      `every user of this machine can replace files in the data directory ${path}, keys too: ` +
        `run chmod 700 ${path}`,
    )
  return found
}

function refusal(path: string, code: string, stats?: Stats): string {
  const what = `the data directory ${path}`
  if (code === 'ENOSPC') return `${what} cannot be written: the disk is full: free space on it`
  if (code === 'EROFS')
    return `${what} is on a read-only file system: mount it writable, or name another with --data`
  if (code === 'EEXIST' || code === 'ENOTDIR')
    return `${what} is no directory: remove the file of that name, or name another with --data`
  const user = process.geteuid?.()
  if (stats === undefined || user === undefined)
    return `${what} cannot be created (${code}): create it for this user, or name another with --data`
  const mode = (stats.mode & 0o777).toString(8).padStart(4, '0')
  const owner = stats.uid === user ? '' : ` belongs to user ${stats.uid} and`
  const remedy = stats.uid === user ? `chmod 700 ${path}` : `chown -R ${user} ${path} as root`
  return (
    `${what}${owner} cannot be written by user ${user}, who runs turnpike (mode ${mode}): ` +
    `run ${remedy}, or name another with --data`
  )
}

function codeOf(error: unknown): string {
  return error instanceof Error && 'code' in error ? String(error.code) : 'unknown'
}
