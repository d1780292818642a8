import net, { type AddressInfo, type Socket } from 'node:net'

/** A request as it arrived. */
export type Arrived = {
  method: string
  target: string
  /** Names in lower case; repeated ones joined. */
  headers: Readonly<Record<string, string>>
  body: string
}

/** Answers one request, with control over every byte. */
export type Reply = {
  /** A whole answer; `headers` replace `content-type: application/json`. */
  send(status: number, body?: string | Uint8Array, headers?: Record<string, string>): void
  /** The head of a chunked answer. */
  head(status: number, headers?: Record<string, string>): void
  chunk(text: string): void
  /** Ends a chunked answer. */
  end(): void
  /** Breaks the connection. */
  cut(): void
  /** Resolves when the other side has disconnected. */
  left: Promise<void>
}

export type Script = (request: Arrived, reply: Reply) => void

export type ScriptedUpstream = {
  url: URL
  /** Everything that arrived, the oldest first. */
  requests: Arrived[]
  /** Handles the next request; `standard` when it is undefined. */
  script: Script | undefined
  stop(): void
}

/** An upstream on loopback that a test scripts; by default it answers `{"ok":true}`. */
export async function startScripted(): Promise<ScriptedUpstream> {
  const sockets = new Set<Socket>()
  const server = net.createServer((socket) => {
    sockets.add(socket)
    let received = Buffer.alloc(0)
    const left = new Promise<void>((resolve) => {
      socket.on('close', () => {
        sockets.delete(socket)
        resolve()
      })
    })
    socket.on('error', () => {})
    socket.on('data', (data) => {
      received = Buffer.concat([received, Buffer.from(data)])
      const request = parse(received)
      if (request === undefined) return
      received = Buffer.alloc(0)
      upstream.requests.push(request)
      const script = upstream.script ?? standard
      script(request, replyTo(socket, left))
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  const upstream: ScriptedUpstream = {
    url: new URL(`http://127.0.0.1:${port}`),
    requests: [],
    script: undefined,
    stop() {
      for (const socket of sockets) socket.destroy()
      server.close()
    },
  }
  return upstream
}

const standard: Script = (_, reply) => reply.send(200, '{"ok":true}')

/** Undefined while a part is missing. */
function parse(bytes: Buffer): Arrived | undefined {
  const end = bytes.indexOf('\r\n\r\n')
  if (end === -1) return undefined
  const [first = '', ...lines] = bytes.subarray(0, end).toString('latin1').split('\r\n')
  const [method = '', target = ''] = first.split(' ')
  const headers: Record<string, string> = {}
  for (const line of lines) {
    const colon = line.indexOf(':')
    const name = line.slice(0, colon).toLowerCase()
    const value = line.slice(colon + 1).trim()
    headers[name] = headers[name] === undefined ? value : `${headers[name]}, ${value}`
  }
  const body = bytes.subarray(end + 4)
  if (body.byteLength < Number(headers['content-length'] ?? 0)) return undefined
  return { method, target, headers, body: body.toString() }
}

function replyTo(socket: Socket, left: Promise<void>): Reply {
  const head = (status: number, headers: Record<string, string>) => {
    const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`)
    socket.write(`HTTP/1.1 ${status} Scripted\r\nconnection: close\r\n${lines.join('')}\r\n`)
  }
  return {
    left,
    send(status, body = '{}', headers = { 'content-type': 'application/json' }) {
      const bytes = typeof body === 'string' ? Buffer.from(body) : body
      head(status, { ...headers, 'content-length': String(bytes.byteLength) })
      socket.end(bytes)
    },
    head: (status, headers = {}) => head(status, { ...headers, 'transfer-encoding': 'chunked' }),
    chunk: (text) => void socket.write(`${Buffer.byteLength(text).toString(16)}\r\n${text}\r\n`),
    end: () => void socket.end('0\r\n\r\n'),
    cut: () => void socket.destroy(),
  }
}
