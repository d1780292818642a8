import type { Ledger } from '../../db/Ledger'
import { createLedger } from '../../db/sqlite/ledger'
import { type Db, open } from '../../db/sqlite/open'
import type { Config } from '../config/Config'
import { createEntrance, type Entrance } from '../http/entrance'
import { requestIds } from '../http/ids'
import { createRegistry, type Registry } from '../http/metrics'
import type { Log } from '../log'
import type { AppOptions } from './options'
import { reportDroppedLines, reportStorage } from './report'
import { startingRoutes } from './routes'

/** What changes while the process runs. Parts that outlive a reload read it for each request. */
export type Current = {
  /** The configuration in force. */
  config: Config
  /** The routes of that configuration; until it is taken over, those of a start. */
  app: { fetch(request: Request): Response | Promise<Response> }
  isStopping: boolean
}

/** What every part of the service stands on. */
export type Base = {
  options: AppOptions
  current: Current
  entrance: Entrance
  /** The open file of the ledger: for the life of the process only. */
  db: Db
  ledger: Ledger
  registry: Registry
  requestId: () => string
  /** Unix ms. */
  now: () => number
  /** Milliseconds that never go back. */
  monotonic: () => number
  log: Log
  /** Keeps what stops a part, for a start that fails later. */
  onFailure(undo: () => unknown): void
}

export type Clocks = Pick<Base, 'now' | 'monotonic'>

/** Opens the data directory and reports its faults. Throws what `open` throws. */
export function openBase(
  options: AppOptions,
  { now, monotonic }: Clocks,
  onFailure: Base['onFailure'],
): Base {
  const { config, dataDir, log } = options
  const db = (options.openDatabase ?? open)({ dataDir, now })
  onFailure(db.close)
  const registry = createRegistry()
  reportStorage(db.storage, registry, log)
  reportDroppedLines(options.droppedLines ?? (() => 0), registry)
  const requestId = requestIds()
  const entrance = createEntrance({ baseUrl: config.service.baseUrl, requestId, now })
  const current = { config, app: startingRoutes(entrance), isStopping: false }
  const ledger = createLedger(db)
  return {
    options,
    current,
    entrance,
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
