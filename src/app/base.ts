import type { Ledger } from '../../db/Ledger'
import { createLedger } from '../../db/sqlite/ledger'
import { type Db, open } from '../../db/sqlite/open'
import type { Config } from '../config/Config'
import { requestIds } from '../http/ids'
import { createRegistry, type Registry } from '../http/metrics'
import { createMiddleware, type Middleware } from '../http/middleware'
import type { Log } from '../log'
import type { AppOptions } from './options'
import { reportDroppedLines, reportStorage } from './report'
import { startingRoutes } from './routes'

/** What changes while the process runs. Parts that outlive a reload read it for each request. */
export type Current = {
  /** The configuration in force. */
  config: Config
  /** The routes of that configuration; during a start, routes that answer 503. */
  app: { fetch(request: Request): Response | Promise<Response> }
  isStopping: boolean
}

/** What every part of the service depends on. */
export type Base = {
  options: AppOptions
  current: Current
  middleware: Middleware
  /** The open file of the ledger, to open and to close it only. */
  db: Db
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

/** What a server needs of it. */
export type ServerBase = Pick<
  Base,
  'options' | 'current' | 'middleware' | 'registry' | 'now' | 'log' | 'onFailure'
>

export type Clocks = Pick<Base, 'now' | 'monotonic'>

/** Opens the data directory and reports its faults. Throws what `open` throws. */
export function openBase(
  options: AppOptions,
  { now, monotonic }: Clocks,
  onFailure: Base['onFailure'],
): Base {
  const { config, dataDir, log } = options
  const db = (options.openDatabase ?? open)({ dataDir, now, program: options.version })
  onFailure(db.close)
  if (db.upgrade !== undefined) log('database-migrated', db.upgrade)
  const registry = createRegistry()
  reportStorage(db.storage, registry, log)
  reportDroppedLines(options.droppedLines ?? (() => 0), registry)
  const requestId = requestIds()
  const middleware = createMiddleware({ baseUrl: config.service.baseUrl, requestId, now })
  const current = { config, app: startingRoutes(middleware), isStopping: false }
  const ledger = createLedger(db)
  return {
    options,
    current,
    middleware,
    db,
    ledger,
    registry,
    requestId,
    now,
    monotonic,
    log,
    onFailure,
  }
}
