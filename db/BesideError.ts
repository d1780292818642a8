/** Why a command cannot use a database beside a running service. The message says what to do. */
export class BesideError extends Error {
  override readonly name = 'BesideError'
}
