import type { Database, ServerState, StorageFaults } from '../../db/Database'
import { databaseOf } from '../../db/sqlite/ledger'
import { open } from '../../db/sqlite/open'
import type { Config } from '../config/Config'
import { requestIds } from '../http/ids'
import { createRegistry, type Registry } from '../http/metrics'
import { createMiddleware, type Middleware } from '../http/middleware'
import type { Log } from '../log'
import type { AppOptions, ServerContext } from './options'

/** The values that a reload replaces. Parts that outlive a reload read them for each request. */
export type Current = {
  /** The configuration in force. */
  config: Config
  /** The routes of that configuration; during a start, routes that answer 503. */
  app: { fetch(request: Request): Response | Promise<Response> }
  /** Version of the retired offers that `app` accepts. */
  offers: string
  isStopping: boolean
}

export type Clocks = Pick<ServerContext, 'now' | 'monotonic'>

/** What every part of the service depends on. */
export type Base = Awaited<ReturnType<typeof openBase>>

/**
 * Opens the database and reports its faults. Throws what its opening throws. `onFailure` registers
 * a function that stops a part when a later step of the start fails.
 */
export async function openBase(
  options: AppOptions,
  clocks: Clocks,
  onFailure: (undo: () => unknown) => void,
) {
  const { now, monotonic } = clocks
  const { config, log } = options
  const requestId = requestIds()
  const { baseUrl } = config.service
  const onOtherHost = (host: string) => log('base-url-local', { baseUrl, host })
  const middleware = createMiddleware({ baseUrl, requestId, now, onOtherHost })
  const app = startingRoutes(middleware)
  const current: Current = { config, app, offers: '', isStopping: false }
  /** The open database: its state, its start and its end. All else is in the ledger. */
  const database = await openDatabase(options, { ...clocks, configHash: () => current.config.hash })
  onFailure(database.close)
  const { ledger, upgrade } = database
  if (upgrade !== undefined) log('database-migrated', upgrade)
  const registry = createRegistry()
  reportStorage(database.storage, registry, log)
  reportServer(database.server, registry)
  reportProcess(options, registry)
  return {
    options,
    current,
    middleware,
    database,
    ledger,
    registry,
    requestId,
    now,
    monotonic,
    log,
    onFailure,
  }
}

/** Answers while the service starts. Without a router, because compiling one would delay the start. */
export function startingRoutes({ wrapRoutes }: Middleware): Current['app'] {
  const starting = () =>
    new Response('The service is starting.\n', { status: 503, headers: { 'retry-after': '1' } })
  return { fetch: (request) => wrapRoutes(starting, request)(request) }
}

/** The server that the environment names, or the file in the data directory. */
async function openDatabase(
  options: AppOptions,
  context: Clocks & Pick<ServerContext, 'configHash'>,
): Promise<Database> {
  const { dataDir, version: program } = options
  if (options.openServer !== undefined)
    return await options.openServer({ ...context, dataDir, program, log: options.log })
  return databaseOf((options.openDatabase ?? open)({ dataDir, now: context.now, program }))
}

/** Reports faults of the database by an error in the log and two metrics. */
function reportStorage(storage: StorageFaults, registry: Registry, log: Log): void {
  const { file } = storage
  storage.onChange((code) => {
    if (code === undefined) log('storage-recovered', { file })
    else log('storage-fault', { file, code })
  })
  const ready = registry.gauge('storage_ready', 'Whether the database can be written.')
  const faults = registry.counter('storage_faults_total', 'Faults of the database by code.', [
    'code',
  ])
  const told = new Map<string, number>()
  registry.onRender(() => {
    ready.set(storage.fault() === undefined ? 1 : 0)
    for (const [code, count] of storage.counts()) {
      faults.inc({ code }, count - (told.get(code) ?? 0))
      told.set(code, count)
    }
  })
}

/** Reports the clock and the standbys of a database server; a file has neither. */
function reportServer(server: ServerState | undefined, registry: Registry): void {
  const ahead = registry.gauge(
    'database_clock_ahead_seconds',
    'How far the clock of the database server is ahead of this one.',
  )
  const standbys = registry.gauge(
    'database_standby',
    'Which standby would keep acknowledged commits if the database server were lost: 1 for the present state. None with SQLite.',
    ['standby'],
  )
  if (server === undefined) return
  registry.onRender(() => {
    ahead.set(server.aheadMs() / 1000)
    for (const standby of ['none', 'async', 'sync', 'unknown'] as const)
      standbys.set(standby === server.standby() ? 1 : 0, { standby })
  })
}

/** Reports which build this process is, its memory, and lines of its log that were lost. */
function reportProcess({ version = 'unknown', droppedLines }: AppOptions, registry: Registry) {
  const build = registry.gauge('build_info', 'Always 1: the version of the program.', ['version'])
  build.set(1, { version })
  const memory = registry.gauge(
    'process_resident_memory_bytes',
    'Memory of the process that is in RAM (resident set).',
  )
  const dropped = registry.counter(
    'log_lines_dropped_total',
    'Lines of the log that could not be written.',
  )
  let told = 0
  registry.onRender(() => {
    memory.set(process.memoryUsage.rss())
    const total = droppedLines?.() ?? 0
    dropped.inc({}, total - told)
    told = total
  })
}
