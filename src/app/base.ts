import type { Database } from '../../db/Database'
import type { Ledger } from '../../db/Ledger'
import { databaseOf } from '../../db/sqlite/ledger'
import { open } from '../../db/sqlite/open'
import type { Config } from '../config/Config'
import { requestIds } from '../http/ids'
import { createRegistry, type Registry } from '../http/metrics'
import { createMiddleware, type Middleware } from '../http/middleware'
import type { Log } from '../log'
import type { AppOptions, ServerContext } from './options'
import { reportDroppedLines, reportProcess, reportServer, reportStorage } from './report'
import { startingRoutes } from './routes'

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

/** What every part of the service depends on. */
export type Base = {
  options: AppOptions
  current: Current
  middleware: Middleware
  /** The open database: its state, its start and its end. All else is in the ledger. */
  database: Database
  ledger: Ledger
  registry: Registry
  requestId: () => string
  /** Unix ms. */
  now: () => number
  /** Milliseconds that never decrease. */
  monotonic: () => number
  log: Log
  /** Registers a function that stops a part when a later step of the start fails. */
  onFailure(undo: () => unknown): void
}

/** The parts of `Base` that a server needs. */
export type ServerBase = Pick<
  Base,
  'options' | 'current' | 'middleware' | 'registry' | 'now' | 'log' | 'onFailure'
>

export type Clocks = Pick<Base, 'now' | 'monotonic'>

/** Opens the database and reports its faults. Throws what its opening throws. */
export async function openBase(
  options: AppOptions,
  clocks: Clocks,
  onFailure: Base['onFailure'],
): Promise<Base> {
  const { now, monotonic } = clocks
  const { config, log } = options
  const requestId = requestIds()
  const { baseUrl } = config.service
  const onOtherHost = (host: string) => log('base-url-local', { baseUrl, host })
  const middleware = createMiddleware({ baseUrl, requestId, now, onOtherHost })
  const current = { config, app: startingRoutes(middleware), offers: '', isStopping: false }
  const database = await openDatabase(options, { ...clocks, configHash: () => current.config.hash })
  onFailure(database.close)
  const { ledger, upgrade } = database
  if (upgrade !== undefined) log('database-migrated', upgrade)
  const registry = createRegistry()
  reportStorage(database.storage, registry, log)
  reportServer(database.server, registry)
  reportProcess(options.version ?? 'unknown', registry)
  reportDroppedLines(options.droppedLines ?? (() => 0), registry)
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
