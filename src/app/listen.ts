import { readdirSync, readFileSync, statSync } from 'node:fs'
import type { Connections } from '../http/peer'
import { hostOf } from '../http/url'

export type ListenOptions = {
  hostname: string
  port: number
  /** Most connections of clients; the limit of open files may set a lower one. */
  connectionsMax: number
  /** Longest idle time of a connection without a suspended timeout, s; 255 by default. */
  idleSeconds?: number | undefined
  fetch: (request: Request) => Response | Promise<Response>
  /** Called when too many connections are open and the idle ones are ended. */
  onFull(open: number): void
  /** Called when binding the address again then fails; the attempt is repeated. */
  onFault(error: unknown): void
}

export type Listener = {
  /** Where it listens, e.g. `http://127.0.0.1:4020` or `http://[::1]:4020`. */
  url: string
  /** The connections of the requests that `fetch` received. */
  connections: Connections
  /** Stops accepting connections; `true` also ends the open ones. */
  stop(endsOpen: boolean): Promise<void>
}

type Server = ReturnType<typeof Bun.serve>

/** Interval between two counts of the connections. */
const checkMs = 250
/** One in so many open files is reserved for the database, upstreams and nodes. */
const reservedShare = 4
const openFilesPath = '/proc/self/fd'
/** Replaced servers together may have this many times the connections of one server. */
const generations = 4
const idleSecondsDefault = 255

/**
 * The servers of one address: one that accepts, and replaced servers that finish their requests.
 */
type Servers = {
  readonly options: ListenOptions
  readonly port: number
  /** Most open files before connections are too many. */
  readonly filesMax: number
  readonly leaving: Set<Server>
  /** Undefined while no server accepts. */
  current: Server | undefined
  /** Connections that were open when the current server started. */
  before: number
}

/**
 * Listens for HTTP. Throws the system's error when the address is not available.
 *
 * Bun has no limit of connections. At the limit of open files its accept loop takes all of a core
 * and no request is answered. So open files are counted, and when there are too many the server is
 * replaced. The new server accepts. The old one finishes its requests in progress, then ends its
 * idle connections. Open files can be counted on Linux only; other systems have no limit.
 */
export function listenOn(options: ListenOptions): Listener {
  const { hostname, idleSeconds = idleSecondsDefault } = options
  const first = serve(options, options.port)
  const port = first.port ?? options.port
  const filesMax = mostFiles(options.connectionsMax)
  const before = openFiles() ?? 0
  const servers: Servers = { options, port, filesMax, leaving: new Set(), current: first, before }
  const isCapped = filesMax !== Number.POSITIVE_INFINITY
  const timer = isCapped ? setInterval(() => check(servers), checkMs) : undefined
  timer?.unref()
  let isStopped = false

  return {
    url: `http://${hostOf(hostname)}:${port}`,
    // Every server has access to the connections of all servers.
    connections: {
      idleSeconds,
      addressOf: (request) => first.requestIP(request)?.address,
      setTimeout: (request, seconds) => first.timeout(request, seconds),
    },
    async stop(endsOpen) {
      if (!isStopped) clearInterval(timer)
      isStopped = true
      const { leaving, current } = servers
      const all = [...leaving, ...(current === undefined ? [] : [current])]
      await Promise.all(all.map((server) => server.stop(endsOpen)))
    },
  }
}

function serve(options: ListenOptions, port: number): Server {
  const { hostname, fetch, idleSeconds = idleSecondsDefault } = options
  return Bun.serve({
    hostname,
    port,
    reusePort: false,
    development: false,
    idleTimeout: idleSeconds,
    // The routes read and limit bodies, and answer with a problem.
    maxRequestBodySize: Number.MAX_SAFE_INTEGER,
    fetch,
  })
}

/** Replaces the server when too many connections are open. */
function check(servers: Servers): void {
  const { options, filesMax, leaving, current, before } = servers
  retire(leaving)
  const open = openFiles()
  const isFull = open === undefined || open > filesMax || open - before > options.connectionsMax
  if (isFull && current !== undefined) {
    options.onFull(open ?? filesMax)
    leaving.add(current)
    void current.stop(false)
    servers.current = undefined
    retire(leaving)
  }
  if (servers.current === undefined) replace(servers)
}

/** Ends the replaced servers that have no request in progress. */
function retire(leaving: Set<Server>): void {
  for (const server of leaving) {
    if (server.pendingRequests > 0) continue
    leaving.delete(server)
    void server.stop(true)
  }
}

/** Starts a server that accepts. */
function replace(servers: Servers): void {
  const { options, port, filesMax } = servers
  // Wait while the replaced servers have too many connections: a refused connection costs nothing.
  const left = openFiles() ?? filesMax
  if (left >= filesMax) return
  try {
    servers.current = serve(options, port)
    servers.before = left
  } catch (error) {
    options.onFault(error)
  }
}

/** Most open files before connections are too many; infinity where they cannot be counted. */
function mostFiles(connectionsMax: number): number {
  const open = openFiles()
  const limit = limitOfFiles()
  if (open === undefined || limit === undefined) return Number.POSITIVE_INFINITY
  return Math.min(open + connectionsMax * generations, limit - Math.ceil(limit / reservedShare))
}

/**
 * Number of open files; undefined without /proc. Linux 6.2 and newer report it as the directory's
 * size: https://docs.kernel.org/filesystems/proc.html. Older versions must list the files, which
 * takes 9 ms for 10,000, and fails without a free descriptor.
 */
function openFiles(): number | undefined {
  try {
    const { size } = statSync(openFilesPath)
    return size > 0 ? size : readdirSync(openFilesPath).length
  } catch {
    return undefined
  }
}

function limitOfFiles(): number | undefined {
  try {
    const limits = readFileSync('/proc/self/limits', 'utf8')
    const limit = Number(/^Max open files\s+(\d+)/m.exec(limits)?.[1])
    return Number.isNaN(limit) ? undefined : limit
  } catch {
    return undefined
  }
}
