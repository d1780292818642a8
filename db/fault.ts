/**
 * Codes for storage that cannot be read or written: a full disk, an I/O error, a read-only volume,
 * a damaged file. Not BUSY and not CONSTRAINT. https://sqlite.org/rescode.html
 * `DATABASE_GONE`: no connection to PostgreSQL.
 */
const faultCodes =
  /^(?:DATABASE_GONE$|SQLITE_(?:FULL|IOERR|READONLY|CORRUPT|NOTADB|CANTOPEN)(?:_|$))/
const causesMax = 8

/** Code of a storage fault, of the error itself or of a cause; undefined for any other error. */
export function storageCode(error: unknown): string | undefined {
  let each = error
  for (let depth = 0; depth < causesMax && each instanceof Error; depth++) {
    const code = 'code' in each ? each.code : undefined
    if (typeof code === 'string' && faultCodes.test(code)) return code
    each = each.cause
  }
  return undefined
}

/** Why a command cannot use a database beside a running service. The message says what to do. */
export class BesideError extends Error {
  override readonly name = 'BesideError'
}
