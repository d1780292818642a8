import { hostname } from 'node:os'
import type { WriteEvent } from '../../src/log'
import type { Database, ServerState, Standby, Upgrade } from '../Database'
import {
  type AdmitOptions,
  admit,
  assertSameKeys,
  fingerprintsOf,
  type KeySecrets,
  markDatabase,
  markPlace,
  readStandby,
  skewReason,
  writeIdentity,
} from './admit'
import { repeat } from './commits'
import { installFunctions } from './functions'
import { acceptLoss, type Gateways, joinGateways } from './gateways'
import type { Line } from './Line'
import { createLedger } from './ledger'
import { type Lines, openLines, sessionOf } from './line-pool'
import { upgrade as upgradeSchema } from './migrate'
import { startErrorOf } from './reach'
import * as Url from './Url'

type OpenPostgresOptions = Pick<
  AdmitOptions,
  'target' | 'dataDir' | 'now' | 'isLossAccepted' | 'tests'
> & {
  /** Only their fingerprints are kept. */
  secrets: KeySecrets
  /** Version of this program, which the database keeps. */
  program: string | undefined
  /** Hash of the configuration in force, by which operators compare gateways. */
  configHash?: (() => string) | undefined
  /** Milliseconds that never decrease. */
  monotonic: () => number
  log: WriteEvent
  /** Prints a warning of the start. */
  warn: (line: string) => void
  /** This process must end at once. */
  onFenced: (reason: string) => void
}

/**
 * Opens a PostgreSQL database as one of several gateways: checks it, brings its schema up to date, and
 * connects. Throws `DatabaseStartError` and `UrlError`, whose messages are for the operator. Nothing
 * was written when a check fails.
 */
export async function openPostgres(options: OpenPostgresOptions): Promise<Database> {
  try {
    return await open(options)
  } catch (error) {
    throw startErrorOf(error, options.target)
  }
}

async function open(options: OpenPostgresOptions): Promise<Database> {
  const { target, secrets, now, monotonic, tests } = options
  const service = fingerprintsOf(secrets)
  const name = Url.describe(target)
  const { line, place, servers, warnings } = await admit({ ...options, service })
  for (const warning of warnings) options.warn(warning)
  const upgrade = await prepare(options, line, service).finally(line.close)
  markPlace(options.dataDir, place)
  const undo: (() => unknown)[] = []
  let notify: (payload: string) => void = () => undefined
  try {
    const lines = await openLines({
      servers: servers.map(({ client }) => client),
      name,
      session: (kind) => sessionOf(kind, tests?.answerMs),
      ...(tests?.answerMs !== undefined && { answerMs: tests.answerMs }),
      monotonic,
      place,
      onPlace(newer) {
        try {
          markPlace(options.dataDir, newer)
        } catch (error) {
          // The process itself remembers it.
          options.log('settlement-fault', { error })
        }
      },
      onNotification: (payload) => notify(payload),
    })
    undo.push(lines.close)
    const gateways = await join(options, lines, service)
    undo.push(gateways.close)
    const opened = await createLedger({ lines, gateways, now, monotonic })
    notify = opened.notify
    const server = watchServer(lines, gateways)
    return {
      ledger: opened.ledger,
      // The public name does not contain the host.
      storage: { ...lines.storage, name: 'postgresql' },
      upgrade,
      server: tests?.acceptsSkew ? { ...server, reason: () => undefined } : server,
      unused: () => [],
      async close() {
        server.close()
        await opened.close()
        // Last, so that nothing of ours is under way when another gateway takes the lanes.
        const leaving = gateways.close()
        // Without a server nothing can be given back.
        if (lines.storage.fault() === undefined) await leaving
        lines.close()
        await leaving
      },
    }
  } catch (error) {
    for (const each of undo.toReversed()) await each()
    throw error
  }
}

/** Brings schema and functions up to date. */
async function prepare(
  { target, dataDir, now, program, isLossAccepted }: OpenPostgresOptions,
  line: Line,
  service: ReturnType<typeof fingerprintsOf>,
): Promise<Upgrade | undefined> {
  const name = Url.describe(target)
  return line.run(async (query) => {
    await assertSameKeys(query, service)
    const upgrade = await upgradeSchema(query, { now: now(), program, name })
    if (isLossAccepted) await acceptLoss(query)
    await installFunctions(query)
    markDatabase(dataDir, await writeIdentity(query, service))
    return upgrade
  })
}

function join(
  { program, configHash, now, monotonic, log, tests, onFenced }: OpenPostgresOptions,
  lines: Parameters<typeof joinGateways>[0]['lines'],
  service: ReturnType<typeof fingerprintsOf>,
): Promise<Gateways> {
  const id = crypto.randomUUID()
  log('gateway-joined', { gateway: id })
  return joinGateways({
    lines,
    gateway: {
      id,
      host: hostname(),
      version: program ?? '',
      configHash: configHash ?? (() => ''),
      fingerprints: service,
    },
    now,
    monotonic,
    times: tests?.times,
    on: {
      fenced(reason) {
        log('gateway-fenced', { gateway: id, reason })
        onFenced('the other gateways took this one for dead')
      },
      reaped: (gateway) => log('gateway-reaped', { gateway }),
      wentBack(lane) {
        log('database-went-back', { ...lane })
        onFenced('the database lacks commits that it had acknowledged')
      },
      fault: (error) => log('settlement-fault', { error }),
    },
  })
}

const lookMs = 5_000

/** What the server shows of itself, read now and then. */
export function watchServer(
  lines: Pick<Lines, 'run'>,
  gateways: Pick<Gateways, 'skewMs'>,
): ServerState & { close(): void } {
  let standby: Standby = 'unknown'
  // Without a connection the storage reports the fault.
  const look = async () => {
    standby = await lines.run('beat', readStandby)
  }
  look().catch(() => undefined)
  return {
    aheadMs: () => -gateways.skewMs(),
    reason: () => skewReason(-gateways.skewMs()),
    standby: () => standby,
    close: repeat(lookMs, look),
  }
}
