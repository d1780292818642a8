import { databaseName } from '../sqlite/directory'
import { fileState } from '../sqlite/moved'
import { assertFit, readAheadMs, readFacts, skewReason } from './checks'
import {
  assertNewest,
  assertSameDatabase,
  assertSameService,
  type Fingerprints,
  readIdentity,
} from './identity'
import type { Line } from './Line'
import { assertNoLoss } from './loss'
import type { Place } from './primary'
import { DatabaseStartError, reach, startErrorOf } from './reach'
import type { Server } from './servers'
import type { Times } from './signs'
import * as Url from './Url'

export type AdmitOptions = {
  target: Url.Target
  service: Fingerprints
  /** The directory that had the file of SQLite, if the service had one. */
  dataDir: string
  /** Unix ms. */
  now: () => number
  /** The database is empty, and the rows of the directory are moved into it. */
  isMove?: boolean
  /** The operator accepts that a failover has lost commits. */
  isLossAccepted?: boolean
  tests?: TestOptions | undefined
}

/** What tests may change. There is no setting for it: an operator could set it by mistake. */
type TestOptions = {
  /** Accepts a server that loses commits at a power loss. */
  acceptsLoss?: boolean
  /** Accepts any difference of the clocks, for a service with a clock of its own. */
  acceptsSkew?: boolean
  /** Longest time of a statement, and of a connection's start, ms. */
  answerMs?: number
  /** When processes count as dead. */
  times?: Partial<Times>
}

export type Admitted = {
  /** A connection to the newest primary. */
  line: Line
  place: Place
  /** Where it leads. */
  server: Server
  /** The ways to connect to every host. */
  servers: readonly Server[]
  aheadMs: number
  warnings: readonly string[]
}

/**
 * Looks whether a service may use a database. Throws `DatabaseStartError`, and
 * `UrlError` for a file of the URL; then nothing was written.
 */
export async function admit(options: AdmitOptions): Promise<Admitted> {
  const { target, service, dataDir, now, tests = {} } = options
  const { line, place, server, servers, old } = await reach(target, { answerMs: tests.answerMs })
  const name = Url.describe(target)
  try {
    assertNewest(dataDir, place, Url.nameOf(server.host))
    const { facts, aheadMs, identity } = await line.run(async (query) => ({
      facts: await readFacts(query),
      aheadMs: await readAheadMs(query, now),
      identity: await readIdentity(query),
    }))
    assertFit(facts, Url.nameOf(server.host), tests)
    const skew = tests.acceptsSkew ? undefined : skewReason(aheadMs)
    if (skew !== undefined) throw new DatabaseStartError(skew)
    if (identity !== undefined) assertSameService(identity.service, service, name)
    if (identity !== undefined && !options.isLossAccepted)
      await line.run((query) => assertNoLoss(query, name))
    if (!options.isMove) {
      assertNoFile(dataDir, identity?.id)
      assertSameDatabase(dataDir, identity?.id, name)
    }
    const warnings = [...old.map(oldWarning), ...warningsOf(target, server)]
    return { line, place, server, servers, aheadMs, warnings }
  } catch (error) {
    line.close()
    throw startErrorOf(error, target)
  }
}

/** A file with payments whose rows this database does not have must not be left behind. */
function assertNoFile(dataDir: string, id: string | undefined): void {
  const state = fileState(dataDir, databaseName)
  if (state === undefined) return
  const { file, moved } = state
  if (moved === undefined)
    throw new DatabaseStartError(
      `${file} has the payments of this service, and DATABASE_URL names a database without them: ` +
        'stop the service and run turnpike move, or name another directory with --data',
    )
  if (moved.id === id) return
  throw new DatabaseStartError(
    `${file} was moved to another database (${moved.to}): correct DATABASE_URL, or name another ` +
      'directory with --data',
  )
}

function oldWarning(name: string): string {
  return (
    `PostgreSQL at ${name} was replaced by a newer primary, and still runs as one: stop it, because a ` +
    'gateway that reaches only this one would use it'
  )
}

function warningsOf({ mode }: Url.Target, { host, isEncrypted }: Server): string[] {
  if (Url.isSocket(host) || isLoopback(host.host) || mode === 'verify-full') return []
  const name = Url.nameOf(host)
  if (!isEncrypted)
    return [
      `the connection to PostgreSQL at ${name} is not encrypted: write sslmode=verify-full in ` +
        'DATABASE_URL unless the network is yours alone',
    ]
  if (mode === 'verify-ca') return []
  return [
    `the certificate of PostgreSQL at ${name} is not checked: write sslmode=verify-full in ` +
      'DATABASE_URL, so that no other server can take its place',
  ]
}

function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '::1' || host.startsWith('127.')
}
