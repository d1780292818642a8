/** What the migrations of both databases have in common. */

export type Migration = { name: string; sql: string }

/** A migration that a database has. */
export type Applied = { name: string; hash: string }

/** The database was written by a newer program, or a migration was changed after it ran. */
export class MigrationError extends Error {
  override name = 'MigrationError'
}

/** What the messages say of the database and of this program. */
export type About = { file?: string | undefined; program?: string | undefined }

/** Key of the version of the program that opened the database last, in the table `meta`. */
export const programKey = 'program'

/** The last migration of a database, and the program that opened it last, as far as it is known. */
export type Schema = { last: string | undefined; program: string | undefined }

/**
 * The migrations that a database does not have, of `list`. Throws `MigrationError` when it has one
 * that is not the same in `list`.
 */
export function pendingOf<Each extends Migration>(
  known: readonly Applied[],
  list: readonly Each[],
  schema: Schema,
  about: About,
): readonly Each[] {
  for (const [index, row] of known.entries()) {
    const migration = list[index]
    if (migration?.name !== row.name) throw new MigrationError(unknownTo(schema, list, about))
    if (hashOf(migration.sql) !== row.hash) {
      throw new MigrationError(
        `the migration ${row.name} of ${nameOf(about)} is not the one that was applied: ` +
          `${useOther(schema)}`,
      )
    }
  }
  return list.slice(known.length)
}

/**
 * Why a command cannot use a database as it is, because a program of another version made it;
 * undefined when its schema is that of this program.
 */
export function misfit(
  schema: Schema,
  list: readonly Migration[],
  about: About,
): string | undefined {
  const { last } = schema
  const own = list.at(-1)?.name ?? ''
  if (last === own) return undefined
  if (last === undefined)
    return `${nameOf(about)} has no tables of turnpike: start serve once, which makes them`
  if (last > own) return unknownTo(schema, list, about)
  return (
    `${nameOf(about)} is of an older version (schema ${last}, this program needs ${own}): ` +
    'start serve once, which brings it up to date'
  )
}

/** The message for migrations after which a row of a table names a missing one. */
export function leavesOrphans(table: string, about: About): string {
  return (
    `the migrations would leave rows of ${table} in ${nameOf(about)} without what they name: ` +
    'start the turnpike that you ran before, and report this'
  )
}

/** The message for a database that has migrations which this program does not know. */
function unknownTo(schema: Schema, list: readonly Migration[], about: About): string {
  const maker = schema.program === undefined ? 'a newer turnpike' : `turnpike ${schema.program}`
  const own =
    about.program === undefined ? 'this turnpike' : `this is turnpike ${about.program} and`
  return (
    `${nameOf(about)} was made by ${maker} (schema ${schema.last}); ${own} knows ` +
    `schema ${list.at(-1)?.name}: ${useOther(schema)}`
  )
}

function useOther({ program }: Schema): string {
  const other = program === undefined ? 'the turnpike that made it' : `turnpike ${program}`
  return `start ${other} or a newer one, or restore a copy from before the upgrade`
}

function nameOf({ file = 'the database' }: About): string {
  return file
}

export function hashOf(text: string): string {
  return new Bun.CryptoHasher('sha256').update(text).digest('hex')
}
