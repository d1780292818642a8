import type { Upgrade } from '../Database'
import { MigrationError } from '../schemas'
import type { Query } from './Line'
import { type MigrationClient, migrate, migrations, noteProgram, schemaOf } from './migrate'
import { DatabaseStartError } from './reach'

export type UpgradeOptions = {
  /** Hosts and name of the database. */
  name: string
  /** Unix ms. */
  now: number
  /** The version of this program, which the database keeps. */
  program: string | undefined
}

/** A line as the migrations use it. */
export function clientOf(query: Query): MigrationClient {
  return {
    async query(text, values = []) {
      // A text of several statements has no rows of its own.
      const rows: readonly unknown[] | undefined = await query(text, values)
      return { rows: [...(rows ?? [])] }
    },
  }
}

/**
 * Brings a database up to date. Returns what was done; undefined when it was new or up to date. Throws
 * `DatabaseStartError` when a newer program, or another one, has made it; then nothing was changed.
 */
export async function upgrade(query: Query, about: UpgradeOptions): Promise<Upgrade | undefined> {
  const client = clientOf(query)
  const { last: from } = await schemaOf(client)
  const applied = await migrateTo(client, about)
  if (about.program !== undefined) await noteProgram(client, about.program)
  if (from === undefined || applied.length === 0) return undefined
  return { from, to: migrations.at(-1)?.name ?? '', applied }
}

async function migrateTo(client: MigrationClient, { name, program, now }: UpgradeOptions) {
  try {
    return await migrate(client, now, { file: `the database ${name}`, program })
  } catch (error) {
    if (error instanceof MigrationError) throw new DatabaseStartError(error.message)
    throw error
  }
}
