import { afterAll, afterEach, beforeEach, describe, expect, test } from 'bun:test'
import type { Server, ServerWebSocket } from 'bun'
import { createHeads, type Heads } from '../../src/chain/heads'
import type { Block } from '../../src/chain/receipt'
import { mine } from '../../src/demo/chains'
import { setAutomine } from '../harness/chains'
import { withoutSync } from '../harness/own-settlement'
import {
  mineWhile,
  networkOf,
  type SettlementFixture,
  signTransfer,
  startFixture,
  startNetwork,
  temporary,
  until,
  untilKnown,
} from '../harness/settlement'

const net = await startNetwork('usdg')
const other = await startNetwork('usdc')
await setAutomine(other.chain, false)
for (const { tap } of [net, other]) tap.intercept = withoutSync
let directory: ReturnType<typeof temporary>
let fixture: SettlementFixture

beforeEach(() => {
  directory = temporary()
  net.tap.calls.length = 0
})

afterEach(async () => {
  await fixture?.stop()
  await setAutomine(net.chain, true)
  directory.remove()
})

afterAll(async () => {
  await net.stop()
  await other.stop()
})

const asksForReceipts = () =>
  net.tap.calls.filter(({ method }) => method === 'eth_getTransactionReceipt').length

/** Pays on a chain that mines on request, after some polls for the receipt. */
async function payAfter(looks: number): Promise<void> {
  await setAutomine(net.chain, false)
  const paying = fixture.pay(signTransfer(networkOf(net.tap.url)))
  await until(() => asksForReceipts() >= looks)
  // The announcement of a block that comes during a poll is not waited for.
  expect((await mineWhile(net.chain, paying)).kind).toBe('confirmed')
}

describe('without eth_sendRawTransactionSync', () => {
  test('an announced block confirms, long before the next poll', async () => {
    const network = networkOf(net.tap.url, 'usdg', { wsUrl: net.chain.wsUrl })
    // The second poll is in five minutes, after the wait of the payment.
    const options = { checkMs: 600_000, blockTimeMs: 1_200_000 }
    fixture = await startFixture([network], directory.path, options)
    await until(async () => {
      await mine(net.chain)
      return fixture.events.some(({ event }) => event === 'heads-live')
    })
    await payAfter(1)
  })

  test('a broken socket causes no delay', async () => {
    const dead = Bun.serve({ port: 0, fetch: () => new Response('', { status: 500 }) })
    const network = networkOf(net.tap.url, 'usdg', { wsUrl: `ws://127.0.0.1:${dead.port}` })
    fixture = await startFixture([network], directory.path, { checkMs: 600_000 })
    await payAfter(3)
    await dead.stop(true)
  })

  const ways = [
    ['new heads', other.chain.wsUrl],
    ['polling', ''],
  ] as const
  for (const [name, wsUrl] of ways)
    test(`${name} confirm before the next block`, async () => {
      const own = temporary()
      const network = networkOf(other.tap.url, 'usdc', { wsUrl })
      const beside = await startFixture([network], own.path, { blockTimeMs: 1_000 })
      try {
        const transfer = signTransfer(network)
        const paying = beside.pay(transfer)
        await until(async () => (await beside.settlement.find(transfer)) !== undefined)
        const sent = await beside.settlement.find(transfer)
        await untilKnown(other.chain, sent?.transaction ?? '0x')
        await mine(other.chain)
        const outcome = await paying
        if (outcome.kind !== 'confirmed') throw new Error(outcome.kind)
        const newest = BigInt((await other.chain.rpc('eth_blockNumber', [])) as string)
        expect(outcome.payment.blockNumber).toBe(newest)
      } finally {
        await beside.stop()
        own.remove()
      }
    })
})

describe('the announcements', () => {
  const hex = (value: number) => `0x${value.toString(16)}`
  const block = (number: number, hash = number, parentHash = number - 1) => ({
    number: hex(number),
    timestamp: '0x5',
    hash: hex(hash),
    parentHash: hex(parentHash),
    baseFeePerGas: '0x7',
  })

  /** A node with scripted announcements. */
  function node(onMessage: (socket: ServerWebSocket<undefined>, text: string) => void) {
    let connections = 0
    const sockets = new Set<ServerWebSocket<undefined>>()
    const server: Server<undefined> = Bun.serve<undefined>({
      port: 0,
      hostname: '127.0.0.1',
      fetch: (request, self) => (self.upgrade(request) ? undefined : new Response('no')),
      websocket: {
        open(socket) {
          connections++
          sockets.add(socket)
        },
        close: (socket) => void sockets.delete(socket),
        message: (socket, text) => onMessage(socket, `${text}`),
      },
    })
    return {
      url: `ws://127.0.0.1:${server.port}/secret-key`,
      connections: () => connections,
      announce(result: unknown) {
        const text = JSON.stringify({ method: 'eth_subscription', params: { result } })
        for (const socket of sockets) socket.send(text)
      },
      drop() {
        for (const socket of sockets) socket.close()
      },
      stop: () => server.stop(true),
    }
  }

  const { signal } = new AbortController()
  const lines: string[] = []
  let heads: Heads | undefined
  let peer: ReturnType<typeof node>
  let seen: Block[]
  const start = (
    onMessage: Parameters<typeof node>[0],
    options: { retryMs?: number; silenceMs?: number } = {},
  ) => {
    peer = node(onMessage)
    seen = []
    heads = createHeads({
      url: peer.url,
      onBlock: (each) => void seen.push(each),
      log: (event, fields) => void lines.push(JSON.stringify({ event, ...fields })),
      retryMs: 10,
      ...options,
    })
    return heads
  }
  afterEach(async () => {
    heads?.close()
    await peer?.stop()
  })

  test('a block ends every wait, a fork ends those for forks', async () => {
    let isAsked = false
    const watched = start((_, text) => {
      isAsked = JSON.parse(text).params[0] === 'newHeads'
    })
    await until(() => isAsked)
    const waits = [watched.wait(60_000, signal), watched.wait(60_000, signal)]
    const fork = watched.waitFork(60_000, signal)
    peer.announce(block(5))
    expect(await Promise.all(waits)).toEqual(['block', 'block'])
    expect(watched.isLive()).toBe(true)
    peer.announce(block(6))
    peer.announce(block(6))
    peer.announce(block(9))
    await until(() => seen.length === 3)
    expect(await Promise.race([fork, watched.wait(20, signal)])).toBe('time')
    peer.announce(block(8, 88, 7))
    expect(await fork).toBe('block')
    const next = watched.waitFork(60_000, signal)
    peer.announce(block(9, 99, 98))
    expect(await next).toBe('block')
    expect(seen.at(0)).toMatchObject({ number: 5n, timestamp: 5n, baseFeeWei: 7n })
  })

  test('time and the signal end a wait', async () => {
    const watched = start(() => undefined)
    expect(await watched.wait(1, signal)).toBe('time')
    const controller = new AbortController()
    const waiting = watched.wait(60_000, controller.signal)
    controller.abort()
    expect(await waiting).toBe('stopped')
    expect(await watched.wait(60_000, controller.signal)).toBe('stopped')
  })

  test('connects again, with growing pauses, after any end of the connection', async () => {
    const ends: ((socket: ServerWebSocket<undefined>) => void)[] = [
      (socket) => socket.close(),
      (socket) => socket.terminate(),
      (socket) => void socket.send('{"id":1,"error":{"code":-32601,"message":"no"}}'),
      (socket) => void socket.send('not JSON'),
    ]
    let asked = 0
    const watched = start(
      (socket) => {
        const end = ends[asked++]
        if (end) end(socket)
        else socket.send(JSON.stringify({ params: { result: block(1) } }))
      },
      { silenceMs: 100 },
    )
    await until(() => watched.isLive())
    // On a slow machine this one may have been silent for too long, too.
    const connected = peer.connections()
    expect(connected).toBeGreaterThanOrEqual(5)
    peer.drop()
    await until(() => peer.connections() > connected)
    await until(() => watched.isLive())
    expect(lines.join()).not.toContain('secret-key')
  })

  test('closing ends it for good', async () => {
    const watched = start(() => undefined)
    await until(() => peer.connections() === 1)
    watched.close()
    await until(async () => (await watched.wait(30, signal)) === 'time')
    expect(peer.connections()).toBe(1)
  })
})
