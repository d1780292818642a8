import { backup as copy } from '../../db/sqlite/backup'
import { BackupError } from '../../db/sqlite/copy'

export type BackupOptions = {
  dataDir: string
  /** Path of the copy; must not exist. */
  file: string
  /** Prints one line. */
  out: (line: string) => void
}

/** Copies the live database while `turnpike serve` may be running. Returns the exit code. */
export function backup({ dataDir, file, out }: BackupOptions): number {
  try {
    const bytes = copy({ dataDir, file })
    out(`${file}: ${bytes} bytes, checked; the keys of ${dataDir} are not in it`)
    return 0
  } catch (error) {
    if (!(error instanceof BackupError)) throw error
    out(`turnpike: ${error.message}`)
    return 1
  }
}
