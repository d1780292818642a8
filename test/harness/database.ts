import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { databaseName } from '../../db/sqlite/directory'
import { open } from '../../db/sqlite/open'

let migrated: Uint8Array<ArrayBuffer> | undefined

/**
 * Gives a data directory in which nothing is yet a database with the whole schema and no rows. Making
 * its tables takes longer than opening it, and test/db/db.test.ts is about them.
 */
export function placeDatabase(dataDir: string): void {
  if (!existsSync(dataDir) || readdirSync(dataDir).length > 0) return
  migrated ??= migrate()
  writeFileSync(join(dataDir, databaseName), migrated, { mode: 0o600 })
}

function migrate(): Uint8Array<ArrayBuffer> {
  const dataDir = mkdtempSync(join(tmpdir(), 'turnpike-schema-'))
  try {
    open({ dataDir, now: Date.now }).close()
    return new Uint8Array(readFileSync(join(dataDir, databaseName)))
  } finally {
    rmSync(dataDir, { recursive: true })
  }
}
