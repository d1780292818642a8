import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import net from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { certificate } from './certificate'

/** A proxy in front of the gateway, with the configuration that `deploy/` has for it. */
export type FrontProxy = {
  /** Without TLS, for clients that trust only public authorities. */
  url: string
  tlsUrl: string
  /** Certificate of `tlsUrl`. */
  cert: string
  stop(): Promise<void>
}

/** Where things are while a test runs. */
export type Place = {
  directory: string
  port: number
  tlsPort: number
  /** Of the sample's port 80. */
  redirectPort: number
  target: string
  certFile: string
  keyFile: string
}

/**
 * Path of a program on this machine; undefined when there is none. The variable names another one,
 * or none if it is empty.
 */
export function findProgram(name: string, known: readonly string[]): string | undefined {
  const variable = process.env[name.toUpperCase()]
  if (variable !== undefined) return variable || undefined
  return Bun.which(name) ?? known.find((path) => existsSync(path))
}

/** Starts a proxy with a file that `write` makes. Throws when it does not start. */
export async function startFrontProxy(
  target: string,
  write: (place: Place) => string[],
): Promise<FrontProxy & { place: Place }> {
  const directory = mkdtempSync(join(tmpdir(), 'turnpike-proxy-'))
  const [port = 0, tlsPort = 0, redirectPort = 0] = await freePorts(3)
  const { key, cert } = certificate('localhost')
  const [certFile, keyFile] = [join(directory, 'cert.pem'), join(directory, 'key.pem')]
  writeFileSync(certFile, cert)
  writeFileSync(keyFile, key)
  const place = { directory, port, tlsPort, redirectPort, target, certFile, keyFile }
  const child = Bun.spawn(write(place), {
    // Caddy keeps its state in the home directory.
    env: { ...process.env, HOME: directory, XDG_DATA_HOME: directory, XDG_CONFIG_HOME: directory },
    stdin: 'ignore',
    stdout: 'ignore',
    stderr: 'pipe',
  })
  const said = new Response(child.stderr).text()
  const stop = async () => {
    child.kill()
    await child.exited
    rmSync(directory, { recursive: true, force: true })
  }
  while (!((await listens(port)) && (await listens(tlsPort)))) {
    if (child.exitCode === null) continue
    await stop()
    throw new Error(`the proxy does not start: ${await said}`)
  }
  const [url, tlsUrl] = [`http://127.0.0.1:${port}`, `https://localhost:${tlsPort}`]
  return { url, tlsUrl, cert, place, stop }
}

/**
 * A file of deploy/ with each of these texts replaced, once: a port that was put in may begin with the
 * digits of another text. Throws when one is not in it.
 */
export function sample(name: string, changes: readonly (readonly [string, string])[]): string {
  const text = readFileSync(join(import.meta.dir, '../../deploy', name), 'utf8')
  const missing = changes.find(([from]) => !text.includes(from))
  if (missing) throw new Error(`deploy/${name} has no "${missing[0]}"`)
  const texts = changes.map(([from]) => from.replace(/[.[\]{}]/g, '\\$&'))
  const to = new Map(changes)
  return text.replace(new RegExp(texts.join('|'), 'g'), (from) => to.get(from) ?? from)
}

/** The proxies cannot choose a free port themselves. */
async function freePorts(count: number): Promise<number[]> {
  const servers = await Promise.all(Array.from({ length: count }, bind))
  return Promise.all(
    servers.map(async (server) => {
      const address = server.address()
      const { promise, resolve } = Promise.withResolvers<void>()
      server.close(() => resolve())
      await promise
      return typeof address === 'object' && address ? address.port : 0
    }),
  )
}

function bind(): Promise<net.Server> {
  const { promise, resolve, reject } = Promise.withResolvers<net.Server>()
  const server = net.createServer().once('error', reject)
  server.listen(0, '127.0.0.1', () => resolve(server))
  return promise
}

function listens(port: number): Promise<boolean> {
  const { promise, resolve } = Promise.withResolvers<boolean>()
  const socket = net.connect(port, '127.0.0.1')
  socket.on('connect', () => resolve(true))
  socket.on('error', () => resolve(false))
  return promise.finally(() => socket.destroy())
}
