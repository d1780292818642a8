import net, { type AddressInfo, type Socket } from 'node:net'

/**
 * A load balancer of bytes: a request goes to the gateways in turn, and to another one when a gateway
 * ends the connection or is gone before the first byte of its answer. Bytes of answers pass as they
 * come, and both ends see how the other one ended. One request per connection.
 */
export type Balancer = {
  url: string
  /** What it did, by name. */
  counts: ReadonlyMap<string, number>
  /** Serials of purchases whose connection to a gateway it closed: the gateway takes it for the buyer's. */
  left: ReadonlySet<string>
  stop(): void
}

type Health = 'ready' | 'not ready' | 'gone'
type Target = { port: number; health: Health; open: Set<Exchange> }
type Exchange = {
  client: Socket
  request: Buffer<ArrayBufferLike>
  server: Socket | undefined
  tries: number
}

const checkMs = 500
/** A gateway without an answer to a look for so long is gone. */
const goneMs = 5_000
const triesMax = 8
const headEnd = '\r\n\r\n'

export function startBalancer(port: number, ports: readonly number[]): Promise<Balancer> {
  const targets = ports.map((each): Target => ({ port: each, health: 'gone', open: new Set() }))
  const counts = new Map<string, number>()
  const count = (name: string) => void counts.set(name, (counts.get(name) ?? 0) + 1)
  const left = new Set<string>()
  let turn = 0

  function pass(exchange: Exchange): void {
    const { client, request } = exchange
    const target = pick(targets, turn++)
    if (client.destroyed) return
    if (target === undefined || exchange.tries++ >= triesMax) {
      count('balancer: no gateway')
      return void client.end(
        'HTTP/1.1 502 Bad Gateway\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}',
      )
    }
    if (exchange.tries > 1) count('balancer: sent again')
    const server = net.connect({ port: target.port, host: '127.0.0.1', noDelay: true })
    exchange.server = server
    target.open.add(exchange)
    let isAnswered = false
    server.on('error', () => undefined)
    server.on('data', (chunk) => {
      isAnswered = true
      target.open.delete(exchange)
      client.write(chunk)
    })
    server.on('close', () => {
      target.open.delete(exchange)
      if (exchange.server !== server) return
      if (isAnswered) client.end()
      else setTimeout(() => pass(exchange), 50)
    })
    server.write(request)
  }

  /** Asks a gateway for its health; what waits at one that is gone goes to another. */
  async function look(target: Target): Promise<void> {
    target.health = await healthOf(target.port)
    if (target.health !== 'gone') return
    for (const exchange of target.open) {
      count('balancer: left one that is gone')
      left.add(/[?&]n=([\w-]+)/.exec(exchange.request.toString('latin1'))?.[1] ?? '')
      exchange.server?.destroy()
    }
  }

  const timer = setInterval(() => void Promise.all(targets.map(look)), checkMs)
  const listener = listenerOf((exchange) => {
    count('balancer: requests')
    pass(exchange)
  })
  return new Promise((resolve) => {
    listener.listen(port, '127.0.0.1', () =>
      resolve({
        url: `http://127.0.0.1:${(listener.address() as AddressInfo).port}`,
        counts,
        left,
        stop() {
          clearInterval(timer)
          listener.close()
        },
      }),
    )
  })
}

function pick(targets: readonly Target[], turn: number): Target | undefined {
  for (const health of ['ready', 'not ready'] as const) {
    const some = targets.filter((each) => each.health === health)
    if (some.length > 0) return some[turn % some.length]
  }
  return undefined
}

/** Reads one request of each connection. */
function listenerOf(pass: (exchange: Exchange) => void): net.Server {
  return net.createServer((client) => {
    const exchange: Exchange = { client, request: Buffer.alloc(0), server: undefined, tries: 0 }
    let isWhole = false
    client.setNoDelay(true)
    client.on('error', () => undefined)
    client.on('close', () => exchange.server?.destroy())
    client.on('data', (chunk) => {
      if (isWhole) return
      exchange.request = Buffer.concat([exchange.request, Buffer.from(chunk)])
      const whole = wholeOf(exchange.request)
      if (whole === undefined) return
      isWhole = true
      exchange.request = whole
      pass(exchange)
    })
  })
}

async function healthOf(port: number): Promise<Health> {
  try {
    const signal = AbortSignal.timeout(goneMs)
    const response = await fetch(`http://127.0.0.1:${port}/readyz`, { signal, keepalive: false })
    await response.arrayBuffer()
    return response.status === 200 ? 'ready' : 'not ready'
  } catch {
    return 'gone'
  }
}

/** The request, for a connection of its own, when all its bytes are there. */
function wholeOf(bytes: Buffer): Buffer | undefined {
  const end = bytes.indexOf(headEnd)
  if (end === -1) return undefined
  const lines = bytes.subarray(0, end).toString('latin1').split('\r\n')
  const length = lines.map((line) => /^content-length: *(\d+)$/i.exec(line)?.[1]).find(Boolean)
  const body = bytes.subarray(end + headEnd.length)
  if (body.length < Number(length ?? 0)) return undefined
  const kept = lines.filter((line) => !/^connection:/i.test(line))
  const head = `${[...kept, 'connection: close'].join('\r\n')}${headEnd}`
  return Buffer.concat([Buffer.from(head, 'latin1'), body])
}
