import type { Secrets } from '../../src/config/env'
import type { Database } from '../Database'
import { type AdmitOptions, admit } from './admit'
import { DatabaseGoneError, PostgresError } from './errors'
import { installFunctions } from './functions'
import { fingerprintsOf, markDatabase, writeIdentity } from './identity'
import { createLedger } from './ledger'
import { openLines } from './lines'
import { DatabaseStartError } from './reach'
import { sessionOf } from './session'
import { keepLock } from './sole'
import * as Url from './Url'
import { upgrade as upgradeSchema } from './upgrade'

export type OpenPostgresOptions = Pick<AdmitOptions, 'target' | 'dataDir' | 'now' | 'tests'> & {
  /** Only their fingerprints are kept. */
  secrets: Pick<Secrets, 'receiptKey' | 'relayerKeys' | 'challengeSecrets'>
  /** Version of this program, which the database keeps. */
  program: string | undefined
  /** Milliseconds that never decrease. */
  monotonic: () => number
  /** Prints a warning of the start. */
  warn: (line: string) => void
  /** Another service has taken the database: this process must end at once. */
  onTaken: () => void
}

/**
 * Opens a PostgreSQL database: checks it, takes its lock, brings its schema up to date, and connects.
 * Throws `DatabaseStartError` and `UrlError`, whose messages are for the operator. Nothing was
 * written when a check fails.
 */
export async function openPostgres(options: OpenPostgresOptions): Promise<Database> {
  try {
    return await open(options)
  } catch (error) {
    const isServer = error instanceof PostgresError || error instanceof DatabaseGoneError
    if (!isServer) throw error
    const said = Url.redact(options.target, error.message)
    throw new DatabaseStartError(
      `PostgreSQL at ${Url.describe(options.target)} refuses the start: ${said} (${error.code})`,
    )
  }
}

async function open(options: OpenPostgresOptions): Promise<Database> {
  const { target, dataDir, secrets, now, program, monotonic, onTaken, warn } = options
  const service = fingerprintsOf(secrets)
  const name = Url.describe(target)
  const { line, servers, aheadMs, warnings } = await admit({ ...options, service })
  const undo: (() => void)[] = [() => line.close()]
  try {
    for (const warning of warnings) warn(warning)
    const upgrade = await line.run((query) => upgradeSchema(query, { now: now(), program, name }))
    await line.run(installFunctions)
    markDatabase(dataDir, await line.run((query) => writeIdentity(query, service)))
    const sole = keepLock({ target, line, now, aheadMs, onTaken })
    undo.push(sole.close)
    const lines = await openLines({
      servers: servers.map(({ client }) => client),
      name,
      session: sessionOf,
      monotonic,
    })
    undo.push(lines.close)
    const { ledger, close } = await createLedger({ lines })
    return {
      ledger,
      // The host is nothing for the public.
      storage: { ...lines.storage, name: 'postgresql' },
      upgrade,
      server: sole.server,
      unused: () => [],
      async close() {
        await close()
        lines.close()
        // Last: nothing of ours is on its way when the next service starts.
        sole.close()
      },
    }
  } catch (error) {
    for (const each of undo.toReversed()) each()
    throw error
  }
}
