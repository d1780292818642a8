import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import net from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { certificate } from './certificate'

/** Path of pebble, a real ACME server for tests. PEBBLE names another one, or none if empty. */
export const pebblePath =
  process.env.PEBBLE === undefined
    ? (Bun.which('pebble') ?? undefined)
    : process.env.PEBBLE || undefined

/** How the server in front of pebble answers a POST itself; undefined passes it on. */
export type PebbleRefusal = { status: number; headers?: Record<string, string>; body: object }

export type Pebble = {
  directoryUrl: string
  /** PEM of the authority of the directory's own certificate. */
  ca: string
  /** PEM of the root of the certificates that it issues. */
  root: string
  /** Where it expects the answers to its challenges, for every domain. */
  httpPort: number
  /** Paths of the requests, each once. */
  asked: string[]
  /** Refuses POSTs. */
  refuse(refuse: ((path: string) => PebbleRefusal | undefined) | undefined): void
  /** Number of requests in progress: a request may reach it after its client has ended. */
  active(): number
  stop(): Promise<void>
}

/**
 * Starts pebble behind a server that can refuse requests. A seventh of all nonces are refused. pebble
 * accepts an earlier proof of an account in one of 100 orders, although it is told to accept none, so a
 * test of failed proofs needs an account of its own. Every domain is on this machine, by pebble-challtestsrv.
 */
export async function startPebble(): Promise<Pebble> {
  if (pebblePath === undefined) throw new Error('there is no pebble')
  const directory = mkdtempSync(join(tmpdir(), 'turnpike-pebble-'))
  const [port = 0, management = 0, httpPort = 0, tlsPort = 0, dns = 0] = await freePorts(6)
  const own = certificate('localhost')
  const file = (name: string, text: string) => {
    writeFileSync(join(directory, name), text)
    return join(directory, name)
  }
  const config = {
    listenAddress: `127.0.0.1:${port}`,
    managementListenAddress: `127.0.0.1:${management}`,
    certificate: file('cert.pem', own.cert),
    privateKey: file('key.pem', own.key),
    httpPort,
    tlsPort,
    ocspResponderURL: '',
    externalAccountBindingRequired: false,
  }
  const quiet = { stdin: 'ignore', stdout: 'ignore', stderr: 'ignore' } as const
  const names = Bun.spawn(
    [
      join(pebblePath, '..', 'pebble-challtestsrv'),
      ...['-http01', '', '-https01', '', '-tlsalpn01', '', '-management', '', '-defaultIPv6', ''],
      ...['-dns01', `127.0.0.1:${dns}`],
    ],
    quiet,
  )
  const path = file('config.json', JSON.stringify({ pebble: config }))
  const child = Bun.spawn([pebblePath, '-config', path, '-dnsserver', `127.0.0.1:${dns}`], {
    env: { PEBBLE_VA_NOSLEEP: '1', PEBBLE_WFE_NONCEREJECT: '14', PEBBLE_AUTHZREUSE: '0' },
    ...quiet,
  })
  const inner = `https://localhost:${port}`
  const tls = { ca: own.cert }
  const stopChildren = async () => {
    names.kill()
    child.kill()
    await Promise.all([names.exited, child.exited])
    rmSync(directory, { recursive: true, force: true })
  }
  const asks = (url: string) => fetch(url, { tls }).catch(() => undefined)
  let root: Response | undefined
  while (!(await asks(`${inner}/dir`))?.ok || root === undefined) {
    if (child.exitCode !== null || names.exitCode !== null) {
      await stopChildren()
      throw new Error('pebble does not start')
    }
    root = await asks(`https://localhost:${management}/roots/0`)
    await Bun.sleep(5)
  }
  const front = startFront(inner, own)
  return {
    ...front,
    ca: own.cert,
    root: await root.text(),
    httpPort,
    async stop() {
      await front.stop()
      await stopChildren()
    },
  }
}

/** A server in front of pebble. pebble makes the URLs of its directory from the Host header. */
function startFront(inner: string, tls: { cert: string; key: string }) {
  const asked: string[] = []
  let active = 0
  let refuse: ((path: string) => PebbleRefusal | undefined) | undefined
  const server = Bun.serve({
    hostname: '127.0.0.1',
    port: 0,
    tls,
    async fetch(request) {
      active++
      try {
        return await pass(request)
      } finally {
        active--
      }
    },
  })
  async function pass(request: Request): Promise<Response> {
    const { method, headers } = request
    const { pathname } = new URL(request.url)
    const refusal = method === 'POST' ? refuse?.(pathname) : undefined
    if (refusal !== undefined) {
      asked.push(pathname)
      return Response.json(refusal.body, { status: refusal.status, headers: refusal.headers ?? {} })
    }
    const answer = await fetch(`${inner}${pathname}`, {
      method,
      headers,
      ...(method === 'POST' ? { body: await request.text() } : {}),
      tls: { ca: tls.cert },
    })
    // A request with a refused nonce is sent again.
    if (answer.status !== 400) asked.push(pathname)
    return answer
  }
  return {
    directoryUrl: `https://localhost:${server.port}/dir`,
    asked,
    active: () => active,
    refuse(by: typeof refuse) {
      refuse = by
    },
    stop: () => server.stop(true),
  }
}

/** Ports that are free now: pebble cannot choose them. */
export async function freePorts(count: number): Promise<number[]> {
  const servers = Array.from({ length: count }, () => net.createServer())
  const ports = servers.map((server) => {
    const { promise, resolve, reject } = Promise.withResolvers<number>()
    server.once('error', reject)
    server.listen(0, '127.0.0.1', () => {
      const address = server.address()
      resolve(typeof address === 'object' && address ? address.port : 0)
    })
    return promise
  })
  const found = await Promise.all(ports)
  await Promise.all(servers.map((server) => new Promise((done) => server.close(done))))
  return found
}
