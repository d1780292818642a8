import {
  closeSync,
  fstatSync,
  fsyncSync,
  mkdirSync,
  openSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { dirname } from 'node:path'
import { EnvironmentError } from '../config/env'

/**
 * The text of a file that only its owner may read; undefined when there is none. Throws
 * `EnvironmentError` when it cannot be read, or when others may read it.
 */
export function readPrivate(path: string): string | undefined {
  let file: number
  try {
    file = openSync(path, 'r')
  } catch (error) {
    const code = codeOf(error)
    if (code === 'ENOENT') return undefined
    throw new EnvironmentError(`${path} cannot be read (${code})`)
  }
  try {
    const mode = fstatSync(file).mode & 0o777
    // Windows has no such bits.
    if (process.platform !== 'win32' && (mode & 0o077) !== 0) {
      const octal = mode.toString(8).padStart(4, '0')
      throw new EnvironmentError(`${path} is open to others (${octal}): run chmod 600 ${path}`)
    }
    return readFileSync(file, 'utf8')
  } finally {
    closeSync(file)
  }
}

/**
 * Writes a file that only its owner may read, durably. A reader, or a start after a crash, finds the
 * old text or the new one. Throws `EnvironmentError`.
 */
export function writePrivate(path: string, text: string): void {
  try {
    replace(path, text)
  } catch (error) {
    throw new EnvironmentError(`${path} cannot be written (${codeOf(error)})`)
  }
}

function replace(path: string, text: string): void {
  const temporary = `${path}.tmp`
  mkdirSync(dirname(path), { recursive: true, mode: 0o700 })
  rmSync(temporary, { force: true })
  const file = openSync(temporary, 'wx', 0o600)
  try {
    // Unlike writeSync it writes all, or throws.
    writeFileSync(file, text)
    fsyncSync(file)
  } finally {
    closeSync(file)
  }
  renameSync(temporary, path)
  if (process.platform === 'win32') return
  const directory = openSync(dirname(path), 'r')
  try {
    fsyncSync(directory)
  } finally {
    closeSync(directory)
  }
}

/** The system's error code, such as ENOSPC. */
export function codeOf(error: unknown): string {
  const code = error instanceof Error && 'code' in error ? error.code : undefined
  return typeof code === 'string' ? code : 'unknown error'
}
