import { readdirSync, readFileSync, statSync } from 'node:fs'
import type { Connections } from '../http/client'
import { hostOf } from '../http/url'

/** A certificate with its issuers, and its private key, as PEM. */
export type Tls = { cert: string; key: string }

export type ListenOptions = {
  hostname: string
  port: number
  /** Certificate and key for HTTPS; plain HTTP without them. */
  tls?: Tls | undefined
  /** Most connections of clients; the limit of open files may set a lower one. */
  connectionsMax: number
  /** Longest idle time of a connection without a suspended timeout, s; 255 by default. */
  idleSeconds?: number | undefined
  fetch: (request: Request) => Answer
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
  /**
   * Uses another certificate for new connections after `drainSeconds`; until then each answer ends
   * its connection. The default is the idle time, after which no connection is idle.
   */
  renew(tls: Tls, drainSeconds?: number): void
  /** Stops accepting connections; `true` also ends the open ones. */
  stop(endsOpen: boolean): Promise<void>
}

type Server = ReturnType<typeof Bun.serve>
type Answer = Response | Promise<Response>
type Timer = ReturnType<typeof setTimeout>

/** Interval between two counts of the connections. */
const checkMs = 250
/** One in so many open files is reserved for the database, upstreams and nodes. */
const reservedShare = 4
const openFilesPath = '/proc/self/fd'
/** Replaced servers together may have this many times the connections of one server. */
const generations = 4
const idleSecondsDefault = 255
/** Wait before a server that could not start is started again. */
const retryMs = 1_000
/** Time for handshakes that the replaced server has not finished, ms. */
const handOverMs = 3_000
/** Attempts to let the next server accept all new connections. */
const steeringMax = 10

type Servers = ReturnType<typeof createServers>

/**
 * The servers of one address: one that accepts, and replaced servers that finish their requests.
 */
function createServers(options: ListenOptions) {
  return {
    options,
    port: options.port,
    tls: options.tls,
    /** Most open files before connections are too many. */
    filesMax: Number.POSITIVE_INFINITY,
    /** Replaced servers, each with the number of checks for which its idle connections stay. */
    leaving: new Map<Server, number>(),
    /** The server whose answers end their connections, because another certificate follows. */
    ending: undefined as Server | undefined,
    draining: undefined as Timer | undefined,
    /** Undefined while no server accepts. */
    current: undefined as Server | undefined,
    /** Connections that were open when the current server started. */
    before: 0,
  }
}

/**
 * Listens for HTTP or HTTPS. Throws the system's error when the address is not available.
 *
 * Bun has no limit of connections. At the limit of open files its accept loop takes all of a core
 * and no request is answered. So open files are counted, and when there are too many the server is
 * replaced. The new server accepts. The old one finishes its requests in progress, then ends its
 * idle connections. Open files can be counted on Linux only; other systems have no limit.
 *
 * Bun 1.4 cannot change the certificate of a server (https://github.com/oven-sh/bun/issues/43815),
 * so the server is replaced for that, too. The stop of a server ends its idle connections at once,
 * and a request that is on its way to one would be lost. So all connections are first ended by
 * their answers.
 */
export function listenOn(options: ListenOptions): Listener {
  const { hostname, tls, idleSeconds = idleSecondsDefault } = options
  if (tls !== undefined) assertFree(options)
  const servers = createServers(options)
  const first = serve(servers)
  servers.port = first.port ?? options.port
  servers.current = first
  servers.filesMax = mostFiles(options.connectionsMax)
  servers.before = openFiles() ?? 0
  const isCapped = servers.filesMax !== Number.POSITIVE_INFINITY
  const timer = isCapped ? setInterval(() => check(servers), checkMs) : undefined
  timer?.unref()
  let isStopped = false

  return {
    url: `${tls === undefined ? 'http' : 'https'}://${hostOf(hostname)}:${servers.port}`,
    // Every server has access to the connections of all servers.
    connections: {
      idleSeconds,
      addressOf: (request) => first.requestIP(request)?.address,
      setTimeout: first.timeout.bind(first),
    },
    renew(renewed, drainSeconds = idleSeconds) {
      servers.tls = renewed
      if (isStopped) return
      clearTimeout(servers.draining)
      drain(servers, drainSeconds * 1000)
    },
    async stop(endsOpen) {
      if (!isStopped) clearInterval(timer)
      isStopped = true
      clearTimeout(servers.draining)
      const { leaving, current } = servers
      const all = [...leaving.keys(), ...(current === undefined ? [] : [current])]
      await Promise.all(all.map((server) => server.stop(endsOpen)))
    },
  }
}

/**
 * HTTPS needs `reusePort`, so that the next server listens before the last one stops. It would let
 * another program share the port, so a start fails when the port has a listener.
 */
export function assertFree({ hostname, port }: { hostname: string; port: number }): void {
  const socket = { data: () => undefined }
  Bun.listen({ hostname, port, exclusive: true, socket }).stop(true)
}

function serve(servers: Servers): Server {
  const { options, port, tls } = servers
  const { hostname, fetch, idleSeconds = idleSecondsDefault } = options
  const common = {
    hostname,
    port,
    development: false,
    idleTimeout: idleSeconds,
    // The routes read and limit bodies, and answer with a problem.
    maxRequestBodySize: Number.MAX_SAFE_INTEGER,
  }
  if (tls === undefined) return Bun.serve({ ...common, reusePort: false, fetch })
  return Bun.serve({
    ...common,
    reusePort: true,
    // The runtime refuses versions before TLS 1.2.
    tls,
    fetch(request, server) {
      const answer = fetch(request)
      return servers.ending === server ? ending(answer) : answer
    },
  })
}

/** The answer, after which its connection ends. */
function ending(answer: Answer): Answer {
  if (answer instanceof Promise) return answer.then(ending)
  answer.headers.set('connection', 'close')
  return answer
}

/** Replaces the server after a wait in which its answers end their connections. */
function drain(servers: Servers, waitMs: number): void {
  servers.ending = servers.current
  servers.draining = setTimeout(() => {
    const { current, options } = servers
    // Without a current server the check starts one, which has the certificate, too.
    if (current === undefined) return
    try {
      servers.current = serve(servers)
    } catch (error) {
      options.onFault(error)
      return drain(servers, retryMs)
    }
    void handOver(servers, current)
  }, waitMs)
  servers.draining.unref()
}

/** Stops a server that has accepted the connections that reached it before the next one. */
async function handOver({ options, leaving, port }: Servers, previous: Server): Promise<void> {
  const { idleSeconds = idleSecondsDefault } = options
  const waitMs = Math.min(handOverMs, idleSeconds * 1000)
  leaving.set(previous, Math.ceil((waitMs + idleSeconds * 1000) / checkMs))
  const { steerToSecond } = await import('./steer')
  let isSteered = steerToSecond(port)
  // The system's list of sockets may miss one while others open and close.
  for (let tries = 1; !isSteered && tries < steeringMax; tries++) {
    await Bun.sleep(checkMs / steeringMax)
    isSteered = steerToSecond(port)
  }
  setTimeout(() => void previous.stop(false), isSteered ? waitMs : 0).unref()
}

/** Replaces the server when too many connections are open. */
function check(servers: Servers): void {
  const { options, filesMax, leaving, current, before } = servers
  retire(leaving, false)
  const open = openFiles()
  const isFull = open === undefined || open > filesMax || open - before > options.connectionsMax
  if (isFull) retire(leaving, true)
  if (isFull && current !== undefined) {
    options.onFull(open ?? filesMax)
    leaving.set(current, 0)
    void current.stop(false)
    servers.current = undefined
    retire(leaving, true)
  }
  if (servers.current === undefined) replace(servers)
}

/** Ends the replaced servers that have no request in progress and need not wait for one. */
function retire(leaving: Map<Server, number>, isFull: boolean): void {
  for (const [server, checks] of leaving) {
    if (checks > 0 && !isFull) {
      leaving.set(server, checks - 1)
      continue
    }
    if (server.pendingRequests > 0) continue
    leaving.delete(server)
    void server.stop(true)
  }
}

/** Starts a server that accepts. */
function replace(servers: Servers): void {
  const { options, filesMax } = servers
  // Wait while the replaced servers have too many connections: a refused connection costs nothing.
  const left = openFiles() ?? filesMax
  if (left >= filesMax) return
  try {
    servers.current = serve(servers)
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
