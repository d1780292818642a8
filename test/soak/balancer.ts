import net, { type AddressInfo, type Socket } from 'node:net'
import type { Disturbance } from './overlaps'

/**
 * A load balancer of bytes: a request goes to the gateways in turn, and to another one when a gateway
 * ends the connection or is gone before the first byte of its answer. Bytes of answers pass as they
 * come, and both ends see how the other one ended. One request per connection.
 */
export type Balancer = {
  url: string
  /** What it did, by name. */
  counts: ReadonlyMap<string, number>
  /** What it did with the requests of each purchase, by serial. */
  trail: ReadonlyMap<string, readonly Step[]>
  /** When gateways were taken for gone: also for the load of the machine. */
  gone: readonly Disturbance[]
  stop(): void
}

/** `left`: it closed its connection to the gateway, which takes this for the buyer's end. */
export type Step = {
  /** Unix ms. */
  at: number
  gateway: number
  did: 'sent' | 'sent again' | 'left' | 'first byte' | 'ended without an answer'
}

type Health = 'ready' | 'not ready' | 'gone'
type Target = {
  index: number
  port: number
  health: Health
  /** When the check that found this health began, unix ms. */
  lookedAt: number
  open: Set<Exchange>
}
type Exchange = {
  client: Socket
  request: Buffer<ArrayBufferLike>
  /** The serial of the purchase; empty for a request that names none. */
  serial: string
  server: Socket | undefined
  tries: number
}

/** Where it writes what it does. */
type Book = {
  count(name: string): void
  note(exchange: Exchange, target: Target, did: Step['did']): void
}

const checkMs = 500
/** A gateway without an answer to a look for so long is gone. */
const goneMs = 5_000
const triesMax = 8
/** One that was gone may still work for so long on what it got before, ms. */
const wakeMs = 5_000
/** An answer that was sent before the gateway knew that it was left arrives within this time. */
const drainMs = 1_000
const headEnd = '\r\n\r\n'

export function startBalancer(port: number, ports: readonly number[]): Promise<Balancer> {
  const targets = ports.map(
    (each, index): Target => ({
      ...{ index, port: each, health: 'gone', lookedAt: 0, open: new Set() },
    }),
  )
  const counts = new Map<string, number>()
  const trail = new Map<string, Step[]>()
  const gone: Disturbance[] = []
  const book: Book = {
    count: (name) => void counts.set(name, (counts.get(name) ?? 0) + 1),
    note({ serial }, { index: gateway }, did) {
      if (serial === '') return
      const steps = trail.get(serial) ?? []
      trail.set(serial, steps)
      steps.push({ at: Date.now(), gateway, did })
    },
  }
  const pass = createPass(targets, book)
  const timer = setInterval(
    () =>
      void targets.map(async (target) => {
        const from = Date.now()
        await look(target, book)
        if (target.health === 'gone')
          gone.push({ gateway: target.index, from, until: Date.now() + wakeMs })
      }),
    checkMs,
  )
  const listener = listenerOf((exchange) => {
    book.count('balancer: requests')
    pass(exchange)
  })
  return new Promise((resolve) => {
    listener.listen(port, '127.0.0.1', () =>
      resolve({
        url: `http://127.0.0.1:${(listener.address() as AddressInfo).port}`,
        counts,
        trail,
        gone,
        stop() {
          clearInterval(timer)
          listener.close()
        },
      }),
    )
  })
}

/** Sends a request to the next gateway, and to another one until one answers. */
function createPass(targets: readonly Target[], { count, note }: Book) {
  let turn = 0
  return function pass(exchange: Exchange): void {
    const { client, request } = exchange
    const target = pick(targets, turn++)
    if (client.destroyed) return
    if (target === undefined || exchange.tries++ >= triesMax) {
      count('balancer: no gateway')
      return void client.end(
        'HTTP/1.1 502 Bad Gateway\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}',
      )
    }
    const isAgain = exchange.tries > 1
    if (isAgain) count('balancer: sent again')
    note(exchange, target, isAgain ? 'sent again' : 'sent')
    const server = net.connect({ port: target.port, host: '127.0.0.1', noDelay: true })
    exchange.server = server
    target.open.add(exchange)
    let isAnswered = false
    server.on('error', () => undefined)
    server.on('data', (chunk) => {
      if (!isAnswered) note(exchange, target, 'first byte')
      isAnswered = true
      target.open.delete(exchange)
      client.write(chunk)
    })
    server.on('close', () => {
      target.open.delete(exchange)
      if (exchange.server !== server) return
      if (isAnswered) return void client.end()
      note(exchange, target, 'ended without an answer')
      setTimeout(() => pass(exchange), 50)
    })
    server.write(request)
  }
}

/**
 * Asks a gateway for its health; what waits at one that is gone goes to another. A look that began
 * before the newest one says nothing: a gateway that was stopped answers those that still wait.
 */
async function look(target: Target, book: Book): Promise<void> {
  const beganAt = performance.now()
  const health = await healthOf(target.port)
  if (beganAt < target.lookedAt) return
  target.lookedAt = beganAt
  target.health = health
  if (health === 'gone') for (const exchange of target.open) leave(exchange, target, book)
}

/** Says that it will send nothing more, and passes on an answer that was on its way. */
function leave(exchange: Exchange, target: Target, { count, note }: Book): void {
  const { server } = exchange
  target.open.delete(exchange)
  if (server === undefined) return
  count('balancer: left one that is gone')
  note(exchange, target, 'left')
  server.end()
  setTimeout(() => {
    if (server.bytesRead === 0) server.destroy()
  }, drainMs)
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
    const exchange: Exchange = {
      ...{ client, request: Buffer.alloc(0), serial: '', server: undefined, tries: 0 },
    }
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
      exchange.serial = /[?&]n=([\w-]+)/.exec(whole.toString('latin1'))?.[1] ?? ''
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
