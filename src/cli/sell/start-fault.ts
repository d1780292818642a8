import type { Config } from '../../config/Config'
import { hostOf } from '../../http/url'

/** The listening address, as far as a fault of the start names it. */
type Listening = Pick<Config['service'], 'listen'>

/** Why the service could not start, and what to do. */
export function startFault(error: unknown, { listen }: Listening): string {
  if (!(error instanceof Error)) return 'it could not start: report this'
  const isListen = 'syscall' in error && error.syscall === 'listen'
  const code = 'code' in error ? String(error.code) : undefined
  const address = `${hostOf(listen.hostname)}:${listen.port}`
  if (code === 'EADDRINUSE')
    return (
      `${address} is in use by another program: stop that program, or name another port by ` +
      'listen under [service]'
    )
  if (isListen && code === 'EACCES')
    return (
      `${address} cannot be opened by this user (EACCES), because ports below 1024 are for root: ` +
      'name a higher port by listen under [service], or give the program CAP_NET_BIND_SERVICE'
    )
  if (isListen)
    return (
      `${address} is no address to listen on here (${code}): name one of this machine, or ` +
      `0.0.0.0 for all, by listen under [service]`
    )
  return error.message
}
