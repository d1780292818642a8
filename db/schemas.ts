import * as Crypto from '../src/protocol/Crypto'

/** What the migrations of both databases have in common. */

export type Migration = { name: string; sql: string }

/** A migration that a database has. */
export type Applied = { name: string; hash: string }

/** The database was written by another program, or a migration was changed after it ran. */
export class MigrationError extends Error {
  override name = 'MigrationError'
}

/** What the messages say of the database and of this program. */
export type About = { file?: string | undefined; program?: string | undefined }

/** Key of the version of the program that opened the database last, in the table `meta`. */
export const programKey = 'program'

/** The migrations that a database has, and the program that opened it last if it is known. */
export type Schema = { applied: readonly Applied[]; program: string | undefined }

/** The last migration of a database; undefined for one without tables. */
export function lastMigrationOf({ applied }: Schema): string | undefined {
  return applied.at(-1)?.name
}

/**
 * The migrations of `list` that a database does not have. Throws `MigrationError` when it has one
 * that is not the same in `list`.
 */
export function pendingOf<Each extends Migration>(
  schema: Schema,
  list: readonly Each[],
  about: About,
): readonly Each[] {
  const refusal = refusalOf(schema, list, about)
  if (refusal !== undefined) throw new MigrationError(refusal)
  return list.slice(schema.applied.length)
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
  const refusal = refusalOf(schema, list, about)
  if (refusal !== undefined || schema.applied.length === list.length) return refusal
  const last = lastMigrationOf(schema)
  if (last === undefined)
    return `${nameOf(about)} has no tables of turnpike: start serve once, which makes them`
  return (
    `${nameOf(about)} is of an older version (schema ${last}, this program needs ` +
    `${list.at(-1)?.name}): start serve once, which brings it up to date`
  )
}

/** The message for migrations after which a row of a table names a missing one. */
export function leavesOrphans(table: string, about: About): string {
  return (
    `the migrations would leave rows of ${table} in ${nameOf(about)} without what they name: ` +
    'start the turnpike that you ran before, and report this'
  )
}

/** Why a database has a migration that is not the one of `list`. */
function refusalOf(schema: Schema, list: readonly Migration[], about: About): string | undefined {
  for (const [index, row] of schema.applied.entries()) {
    const migration = list[index]
    if (migration?.name !== row.name)
      return index === 0 ? isOfEarlier(schema, about) : isOfNewer(schema, list, about)
    if (Crypto.sha256(migration.sql) !== row.hash)
      return (
        `the migration ${row.name} of ${nameOf(about)} is not the one that was applied: ` +
        `${useOther(schema)}`
      )
  }
  return undefined
}

/** The message for migrations that this program does not know. */
function isOfNewer(schema: Schema, list: readonly Migration[], about: About): string {
  const own =
    about.program === undefined ? 'this turnpike' : `this is turnpike ${about.program} and`
  return (
    `${nameOf(about)} was made by ${makerOf(schema, 'a newer turnpike')} (schema ${lastMigrationOf(schema)}); ` +
    `${own} knows schema ${list.at(-1)?.name}: ${useOther(schema)}`
  )
}

/** The message for a database from before the first release, whose migrations no longer exist. */
function isOfEarlier(schema: Schema, about: About): string {
  return (
    `${nameOf(about)} was made by a turnpike from before the first release (schema ` +
    `${lastMigrationOf(schema)}), and this turnpike cannot read it: sell it out with the turnpike that made ` +
    'it, until no payment and no order is open, or start anew with another directory in --data ' +
    'or an empty database in DATABASE_URL'
  )
}

function useOther(schema: Schema): string {
  const other = makerOf(schema, 'the turnpike that made it')
  return `start ${other} or a newer one, or restore a copy from before the upgrade`
}

function makerOf({ program }: Schema, unknown: string): string {
  return program === undefined ? unknown : `turnpike ${program}`
}

function nameOf({ file = 'the database' }: About): string {
  return file
}
