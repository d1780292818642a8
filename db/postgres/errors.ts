import type { RowsRefusal } from '../Ledger'

/** SQLSTATE of `refuse`: the rows of a product cannot be written. The message is the reason. */
const refusedState = 'TP001'
/** SQLSTATE of `fence`: another gateway has the lane. */
const laneLostState = 'TP002'
/** SQLSTATE of the triggers that keep authorized money apart from paid money. */
const barredState = 'TP003'

/**
 * There is no connection to the database, or it was lost. `mayHaveRun`: the statement was sent, so
 * that it may have had its effect.
 */
export class DatabaseGoneError extends Error {
  override readonly name = 'DatabaseGoneError'
  readonly code = 'DATABASE_GONE'
  readonly mayHaveRun: boolean

  constructor(message: string, options: { mayHaveRun: boolean; cause?: unknown }) {
    super(message, { cause: options.cause })
    this.mayHaveRun = options.mayHaveRun
  }
}

/** The database refused a statement. `code`: the SQLSTATE. */
export class PostgresError extends Error {
  override readonly name = 'PostgresError'
  readonly code: string
  readonly constraint: string | undefined
  readonly detail: string | undefined

  constructor({ code, message, constraint, detail }: DatabaseFault) {
    super(message)
    this.code = code
    this.constraint = constraint ?? undefined
    this.detail = detail ?? undefined
  }
}

/** A function of the database rolled its change back. `detail`: the id that it concerns. */
export class RefusedError extends Error {
  override readonly name = 'RefusedError'
  readonly reason: RowsRefusal
  readonly detail: string | undefined

  constructor(reason: RowsRefusal, detail: string | undefined) {
    super(`rows refused: ${reason}`)
    this.reason = reason
    this.detail = detail
  }
}

/** Another gateway has taken the lane, so this one may write nothing for it. */
export class LaneLostError extends Error {
  override readonly name = 'LaneLostError'

  constructor(detail: string | undefined) {
    super(`another gateway has the lane ${detail ?? ''}`.trim())
  }
}

/** An error as the database describes it. */
export type DatabaseFault = {
  code: string
  message: string
  constraint?: string | null | undefined
  detail?: string | null | undefined
}

/** The error that a fault of a function means. */
export function errorOf(fault: DatabaseFault): Error {
  const detail = fault.detail || undefined
  if (fault.code === refusedState) return new RefusedError(fault.message as RowsRefusal, detail)
  if (fault.code === laneLostState) return new LaneLostError(detail)
  return new PostgresError(fault)
}

/** Whether an error says that a UNIQUE constraint or a primary key refused the row. */
export function isDuplicate(error: unknown): error is PostgresError {
  return error instanceof PostgresError && error.code === '23505'
}

/** Whether a trigger refused the row because its money is authorized or paid. */
export function isBarred(error: unknown): error is PostgresError {
  return error instanceof PostgresError && error.code === barredState
}
