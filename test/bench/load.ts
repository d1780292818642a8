import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Socket } from 'bun'

/**
 * Closed-loop load: each connection sends its next request when the previous answer is complete.
 */
export type Load = { name: string; drive(options: LoadOptions): Promise<number> }

export type LoadOptions = {
  url: string
  /** Every answer must contain it; throws otherwise. */
  status: number
  connections: number
  seconds: number
  /** Requested in turn at the URL's server instead of the URL's own path. */
  paths?: readonly string[]
}

/** Uses wrk where it is installed, else sockets of our own. Both give requests per second. */
export function findLoad(): Load {
  const wrk = Bun.which('wrk')
  if (wrk === null) return { name: 'own sockets', drive: driveSockets }
  return { name: 'wrk', drive: (options) => driveWrk(wrk, options) }
}

async function driveWrk(wrk: string, options: LoadOptions): Promise<number> {
  const { url, status, connections, seconds, paths } = options
  const script = paths === undefined ? [] : ['-s', writeScript(paths)]
  const child = Bun.spawn([wrk, '-t1', `-c${connections}`, `-d${seconds}s`, ...script, url], {
    stdout: 'pipe',
    stderr: 'pipe',
  })
  const text = await child.stdout.text()
  const requests = Number(/(\d+) requests in/.exec(text)?.[1])
  const perSecond = Number(/Requests\/sec:\s+([\d.]+)/.exec(text)?.[1])
  const refused = Number(/Non-2xx or 3xx responses: (\d+)/.exec(text)?.[1] ?? 0)
  const expected = status >= 400 ? requests : 0
  if (!(perSecond > 0) || refused !== expected || /Socket errors/.test(text))
    throw new Error(`${url}: not every answer was ${status}\n${text}`)
  return perSecond
}

const scripts = new Map<readonly string[], string>()

/** A script for wrk that requests paths in turn, from prebuilt requests. */
function writeScript(paths: readonly string[]): string {
  const known = scripts.get(paths)
  if (known !== undefined) return known
  const directory = mkdtempSync(join(tmpdir(), 'turnpike-wrk-'))
  process.once('exit', () => rmSync(directory, { recursive: true, force: true }))
  const file = join(directory, 'paths.lua')
  const list = paths.map((path) => JSON.stringify(path)).join(',\n')
  const lua = `local paths = {\n${list}\n}
local requests, turn = {}, 0
init = function()
  for i, path in ipairs(paths) do requests[i] = wrk.format("GET", path) end
end
request = function()
  turn = turn % #requests + 1
  return requests[turn]
end
`
  writeFileSync(file, lua)
  scripts.set(paths, file)
  return file
}

type Connection = { pending: Buffer | undefined }

/** The load generator for machines without wrk, and the check of every answer's status. */
export async function driveSockets(options: LoadOptions): Promise<number> {
  const { url, status, connections, seconds } = options
  const { hostname, port, pathname, search, host } = new URL(url)
  const paths = options.paths ?? [pathname + search]
  const requests = paths.map((path) => Buffer.from(`GET ${path} HTTP/1.1\r\nHost: ${host}\r\n\r\n`))
  let turn = 0
  const ask = (socket: Socket<Connection>) => {
    const request = requests[turn++ % requests.length]
    if (request !== undefined) socket.write(request)
  }
  const start = Buffer.from(`HTTP/1.1 ${status} `)
  const { promise: failed, reject } = Promise.withResolvers<never>()
  let answers = 0
  let stopped = false

  const data = (socket: Socket<Connection>, chunk: Buffer) => {
    const { pending } = socket.data
    const buffer = pending === undefined ? chunk : Buffer.concat([pending, chunk])
    const length = answerLength(buffer)
    if (length === undefined || buffer.length < length) {
      socket.data.pending = Buffer.from(buffer)
      return
    }
    socket.data.pending = undefined
    if (buffer.length > length || buffer.compare(start, 0, start.length, 0, start.length) !== 0)
      return reject(new Error(`${url}: not ${status}: ${buffer.toString('latin1').slice(0, 200)}`))
    answers++
    if (!stopped) ask(socket)
  }
  const ended = () => {
    if (!stopped) reject(new Error(`${url} closed a connection`))
  }
  const opening = Array.from({ length: connections }, () =>
    Bun.connect<Connection>({
      hostname,
      port: Number(port),
      data: { pending: undefined },
      socket: { data, close: ended, error: (_, error) => reject(error) },
    }),
  )
  const sockets = await Promise.all(opening)
  const startedAt = performance.now()
  for (const socket of sockets) ask(socket)
  await Promise.race([Bun.sleep(seconds * 1000), failed])
  const perSecond = (answers * 1000) / (performance.now() - startedAt)
  stopped = true
  for (const socket of sockets) socket.terminate()
  return perSecond
}

const headEnd = Buffer.from('\r\n\r\n')
const lengthName = /\r\ncontent-length: (\d+)\r\n/i

/** Bytes of the answer that a buffer begins with; undefined while its head is not complete. */
export function answerLength(buffer: Buffer): number | undefined {
  const end = buffer.indexOf(headEnd)
  if (end === -1) return undefined
  const match = lengthName.exec(buffer.toString('latin1', 0, end + 2))
  if (match === null) throw new Error('the answer has no Content-Length')
  return end + 4 + Number(match[1])
}

/** Bytes of one answer, head included. */
export async function measureAnswer(url: string): Promise<number> {
  const { hostname, port, pathname, search, host } = new URL(url)
  const { promise, resolve, reject } = Promise.withResolvers<number>()
  let buffer: Buffer = Buffer.alloc(0)
  const socket = await Bun.connect({
    hostname,
    port: Number(port),
    socket: {
      data(_, chunk) {
        buffer = Buffer.concat([buffer, chunk])
        const length = answerLength(buffer)
        if (length !== undefined && buffer.length >= length) resolve(length)
      },
      error: (_, error) => reject(error),
    },
  })
  socket.write(`GET ${pathname}${search} HTTP/1.1\r\nHost: ${host}\r\n\r\n`)
  return promise.finally(() => socket.terminate())
}
