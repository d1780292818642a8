import net from 'node:net'
import { account } from '../../src/demo/accounts'
import { ask } from '../harness/buyer'
import { x402Usdc } from '../harness/target'

/**
 * One kind of hostile clients against a gateway, in a process of its own: `hostilepeers.ts KIND
 * URL`. Every client names an address of its own, as a reverse proxy in front would. Prints its
 * counters as a JSON line each second, until it is ended.
 */

const [kind = '', url = ''] = process.argv.slice(2)
const { port } = new URL(url)
const counts: Record<string, number> = {}
const count = (name: string) => {
  counts[name] = (counts[name] ?? 0) + 1
}

const kinds: Record<string, () => void> = {
  chunks,
  announcements,
  readers: () => holders('big/file', 300, account(3), true),
  streams: () => holders('live/events', 150, account(4), false),
  breaker,
  mcp,
}
kinds[kind]?.()
setInterval(() => process.stdout.write(`${JSON.stringify(counts)}\n`), 1_000)

function open(text: string, onClose: () => void): net.Socket {
  const socket = net.connect(Number(port), '127.0.0.1')
  socket.on('error', () => {})
  socket.on('close', onClose)
  socket.write(text)
  return socket
}

const head = (line: string, address: string, lines: readonly string[]) =>
  [`${line} HTTP/1.1`, 'Host: localhost', `X-Forwarded-For: ${address}`, ...lines, '', ''].join(
    '\r\n',
  )

/** Four uploads in chunks of one byte, each at 16 Mbit/s. */
function chunks() {
  const tickMs = 100
  const piece = '1\r\nx\r\n'
  const perTick = piece.repeat(Math.floor(2_000_000 / (1000 / tickMs) / piece.length))
  for (let peer = 0; peer < 4; peer++) {
    let socket: net.Socket | undefined
    setInterval(() => {
      socket ??= open(
        head('POST /m/a/post', `10.2.0.${peer}`, ['Transfer-Encoding: chunked']),
        () => {
          count('connections')
          socket = undefined
        },
      )
      socket.resume()
      if (socket.writableLength < perTick.length) socket.write(perTick)
    }, tickMs)
  }
}

/** Idle uploads, of which half have an invalid credential. */
function announcements() {
  for (let peer = 0; peer < 2_000; peer++) {
    const lines = ['Content-Length: 160000']
    if (peer % 2 === 1) lines.push('Authorization: Payment e30')
    const again = () => {
      count('announced')
      const text = `${head('POST /m/a/post', `10.3.${peer % 20}.1`, lines)}{`
      open(text, () => setTimeout(again, 1_000)).resume()
    }
    setTimeout(again, peer)
  }
}

/**
 * Buyers that do not read the answers that they paid for: they read hardly any byte, or read
 * slowly.
 */
function holders(
  path: string,
  total: number,
  payer: ReturnType<typeof account>,
  isSlow: boolean,
): void {
  const buy = async (peer: number): Promise<void> => {
    const asked = await ask(`${url}/m/${path}`)
    if (asked.response.status !== 402) return void setTimeout(buy, 1_000, peer)
    const paid = await x402Usdc.pay(asked, payer.local())
    const lines = Object.entries(paid).map(([name, value]) => `${name}: ${value}`)
    const socket = open(head(`GET /m/${path}`, `10.4.${peer % 20}.1`, lines), () => {
      count('closed')
      setTimeout(buy, 1_000, peer)
    })
    count('bought')
    socket.on('data', () => {
      if (!isSlow) return
      socket.pause()
      // About 6 kB a second; a connection that is never read would not even show its end.
      setTimeout(() => socket.resume(), 10_000)
    })
  }
  // Five a second: a hundred signatures at once would only take this machine's time.
  for (let peer = 0; peer < total; peer++) setTimeout(buy, peer * 200, peer)
}

/** Buys requests at which the upstream fails, repeatedly. */
function breaker() {
  const poisons = [500, 500, 502, 504]
  const buy = async () => {
    const path = `${url}/m/a/get?poison=${poisons[(counts.poisoned ?? 0) % poisons.length]}`
    const asked = await ask(path)
    if (asked.response.status === 402) {
      const headers = await x402Usdc.pay(asked, account(5).local())
      await fetch(path, { headers: { ...headers, 'x-forwarded-for': '10.5.0.1' } })
      count('poisoned')
    } else count('refused')
    setTimeout(buy, 100)
  }
  void buy()
}

/** Messages of the largest size and with the most members. */
function mcp() {
  const members = Array.from({ length: 4_000 }, (_, i) => `"${i}${'m'.repeat(50)}":0`).join(',')
  const body = `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{${members}}}`
  const send = async () => {
    const headers = {
      'content-type': 'application/json',
      accept: 'application/json, text/event-stream',
      'x-forwarded-for': '10.6.0.1',
    }
    const answer = await fetch(`${url}/mcp`, { method: 'POST', headers, body }).catch(
      () => undefined,
    )
    count(`status ${answer?.status ?? 'none'}`)
    await answer?.bytes().catch(() => undefined)
    setTimeout(send, answer?.status === 429 ? 500 : 0)
  }
  for (let peer = 0; peer < 4; peer++) void send()
}
