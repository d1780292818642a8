import {
  closeSync,
  fsyncSync,
  mkdirSync,
  openSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { dirname } from 'node:path'
import { codeOf, EnvironmentError, syncDirectory } from '../config/env'

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
  syncDirectory(dirname(path))
}
