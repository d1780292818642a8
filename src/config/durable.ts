import {
  closeSync,
  fchmodSync,
  fsyncSync,
  mkdirSync,
  openSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { dirname } from 'node:path'

/** Files that are on the disk when a function returns. */

/** Writes a new file that only its owner may read. Its name is not durable yet. */
export function writeNew(path: string, text: string): void {
  const file = openSync(path, 'wx', 0o600)
  try {
    fchmodSync(file, 0o600)
    // Unlike writeSync it writes all, or throws.
    writeFileSync(file, text)
    fsyncSync(file)
  } finally {
    closeSync(file)
  }
}

/** A reader, or a start after a crash, finds the old text or the new one. Only the owner may read it. */
export function replaceFile(path: string, text: string): void {
  const temporary = `${path}.tmp`
  mkdirSync(dirname(path), { recursive: true, mode: 0o700 })
  rmSync(temporary, { force: true })
  writeNew(temporary, text)
  renameSync(temporary, path)
  syncDirectory(dirname(path))
}

/** Makes the new name durable. */
export function syncDirectory(path: string): void {
  if (process.platform === 'win32') return
  const directory = openSync(path, 'r')
  try {
    fsyncSync(directory)
  } finally {
    closeSync(directory)
  }
}
