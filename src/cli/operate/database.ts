import type { Database } from '../../../db/Database'
import type { Overview } from '../../../db/LaneLedger'
import type { Ledger } from '../../../db/Ledger'
import type { Target } from '../../../db/postgres/Url'
import type { SalesReads } from '../../../db/sales'
import * as File from '../../../db/sqlite/beside'
import type { OpenServer } from '../../app/options'
import type { Config } from '../../config/Config'
import { databaseUrlOf, type Env, EnvironmentError, readEnv, type Secrets } from '../../config/env'
import type { Context } from '../Command'

/**
 * What DATABASE_URL names; undefined without it, and then no code for a server is loaded. Throws
 * `EnvironmentError`, without a part of the URL that may be a password.
 */
export async function findTarget(env: Env): Promise<Target | undefined> {
  const url = databaseUrlOf(env)
  if (url === undefined) return undefined
  const Url = await import('../../../db/postgres/Url')
  try {
    return Url.parse(url)
  } catch (error) {
    if (error instanceof Url.UrlError) throw new EnvironmentError(error.message)
    throw error
  }
}

/** The error of a start: what the server has refused, with the remedy, or the same error. */
export async function serverFault(target: Target, error: unknown): Promise<unknown> {
  return (await import('../../../db/postgres/reach')).startErrorOf(error, target)
}

/** What `serve` does besides opening. */
type Serving = {
  secrets: Secrets
  /** Prints a warning of the start. */
  warn: (line: string) => void
  /** It must end at once. */
  onFenced: (reason: string) => void
  /** The operator accepts that a failover has lost commits. */
  isLossAccepted?: boolean
}

/** Opens the database of a target for `serve`. Its code is loaded by the call. */
export function opening(target: Target, serving: Serving): OpenServer {
  return async (context): Promise<Database> => {
    const { openPostgres } = await import('../../../db/postgres/open')
    return await openPostgres({ ...context, ...serving, target })
  }
}

/** Why the desk cannot start; with a server its account must be named, as all secrets. */
export function deskKeyFault(config: Pick<Config, 'stock'>, env: Env): string | undefined {
  if (config.stock === undefined || databaseUrlOf(env) === undefined) return undefined
  if (readEnv(env)('DESK_KEY') !== undefined) return undefined
  return (
    'DESK_KEY is not set. With DATABASE_URL the account of [stock] must be named: set DESK_KEY or ' +
    'DESK_KEY_FILE (to keep the account that you had without it, the first key of RELAYER_KEYS)'
  )
}

/** A command on the database of a service that may be running: a file, unless `env` names a server. */
type Beside = Pick<Context, 'dataDir' | 'now' | 'env'>

type Use<Opened, T> = (opened: Opened) => Promise<T>

/** Runs a command on the ledger. Returns what it returns, such as its exit code. */
export async function withLedger<T>(options: Beside, use: Use<Ledger, T>): Promise<T> {
  const target = await findTarget(options.env)
  const { ledger, close } =
    target === undefined
      ? File.openLedgerBeside(options)
      : await (await import('../../../db/postgres/beside')).openLedgerBeside(target)
  return use(ledger).finally(close)
}

/** Runs a command on the figures of sales, which cannot be written. */
export async function withSales<T>(options: Beside, use: Use<SalesReads, T>): Promise<T> {
  const target = await findTarget(options.env)
  const { sales, close } =
    target === undefined
      ? File.openSalesBeside(options)
      : await (await import('../../../db/postgres/beside')).openSalesBeside(target)
  return use(sales).finally(close)
}

/** The gateways that share the database; undefined when it is a file. Nothing is written. */
export async function findGateways(env: Env): Promise<Overview | undefined> {
  const target = await findTarget(env)
  if (target === undefined) return undefined
  const server = await import('../../../db/postgres/beside')
  return await server.readGateways(target)
}
