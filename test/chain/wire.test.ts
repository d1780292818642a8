import { afterAll, describe, expect, test } from 'bun:test'
import { createReader, Malformed } from '../../src/chain/Http1'
import { Broken, createWire } from '../../src/chain/wire'
import { failureOf } from '../harness/outcome'
import { until } from '../harness/settlement'

const bytes = (text: string) => Buffer.from(text)
const limit = 1_000

/** The results of a reader for a text in pieces of some size. */
function read(text: string, size = text.length) {
  const reader = createReader(limit)
  const answers = []
  for (let at = 0; at < text.length; at += size) {
    const answer = reader.push(bytes(text.slice(at, at + size)))
    if (answer) answers.push(answer)
  }
  return { answers, end: reader.end() }
}

describe('an answer', () => {
  const known = 'HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello'
  const chunked =
    'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nX: y\r\n\r\n'
  const interim = `HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n${known}`
  for (const [name, text] of Object.entries({ known, chunked, interim })) {
    for (const size of [1, 2, 7, 1_000]) {
      test(`${name} in pieces of ${size}`, () => {
        expect(read(text, size).answers).toEqual([{ status: 200, text: 'hello', isKept: true }])
      })
    }
  }

  test('several answers on one connection are separated', () => {
    const reader = createReader(limit)
    for (const text of [known, chunked, known]) {
      expect(reader.push(bytes(text))?.text).toBe('hello')
    }
  })

  test('an answer without a length ends with the connection, one without a body at once', () => {
    expect(read('HTTP/1.0 200 OK\r\n\r\nhello', 3)).toEqual({
      answers: [],
      end: { status: 200, text: 'hello', isKept: false },
    })
    expect(read('HTTP/1.1 204 No Content\r\n\r\n').answers).toMatchObject([
      { status: 204, text: '' },
    ])
  })

  const kept: [string, boolean][] = [
    ['HTTP/1.1 200\r\nconnection: close\r\ncontent-length: 0\r\n\r\n', false],
    ['HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n', false],
    ['HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 0\r\n\r\n', true],
    // Bytes that arrive without a request would be read as the next answer.
    ['HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\nHTTP/1.1 200 OK\r\n', false],
  ]
  for (const [text, isKept] of kept) {
    test(`${JSON.stringify(text)} ${isKept ? 'keeps' : 'ends'} the connection`, () => {
      expect(read(text).answers).toMatchObject([{ isKept }])
    })
  }

  const broken = [
    'SSH-2.0-OpenSSH\r\n\r\n',
    'HTTP/2 200\r\n\r\n',
    'HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n',
    'HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n',
    `HTTP/1.1 200 OK\r\ncontent-length: ${limit + 1}\r\n\r\n${'x'.repeat(limit + 1)}`,
    `HTTP/1.1 200 OK\r\n\r\n${'x'.repeat(limit + 1)}`,
    `HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n400\r\n${'x'.repeat(1024)}`,
    'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nxy\r\n',
    'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n',
    'HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n',
    'HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 0\r\n\r\n',
    'x'.repeat(70_000),
  ]
  for (const text of broken) {
    test(`error: ${JSON.stringify(text.slice(0, 80))} is malformed`, () => {
      expect(() => read(text, 512)).toThrow(Malformed)
    })
  }
})

type Peer = Bun.Socket<{ text: string }>

const listeners: Bun.TCPSocketListener<{ text: string }>[] = []
afterAll(() => {
  for (const listener of listeners) listener.stop(true)
})

/** A server of bytes. `told`: the bytes that it received so far, by connection. */
function serve(answer: (peer: Peer, request: number) => void) {
  const peers: Peer[] = []
  let requests = 0
  const listener = Bun.listen<{ text: string }>({
    hostname: '127.0.0.1',
    port: 0,
    socket: {
      open(peer) {
        peer.data = { text: '' }
        peers.push(peer)
      },
      data(peer, chunk) {
        peer.data.text += chunk.toString()
        const { text } = peer.data
        const length = /content-length: (\d+)\r\n\r\n/.exec(text)
        if (!length || text.length < length.index + length[0].length + Number(length[1])) return
        peer.data.text = ''
        answer(peer, requests++)
      },
    },
  })
  listeners.push(listener)
  return { peers, listener, url: `http://127.0.0.1:${listener.port}/rpc?key=x` }
}

const say = (text: string) => `HTTP/1.1 200 OK\r\ncontent-length: ${text.length}\r\n\r\n${text}`
const never = new AbortController().signal

describe('the wire', () => {
  test('the client keeps its connection, and opens more for concurrent requests', async () => {
    const server = serve((peer, request) => void peer.write(say(`${request}`)))
    const wire = createWire(server.url, limit)
    expect(await wire.post('{}', never)).toMatchObject({ status: 200, text: '0' })
    expect(await wire.post('{}', never)).toMatchObject({ text: '1' })
    expect(server.peers).toHaveLength(1)
    await Promise.all([wire.post('{}', never), wire.post('{}', never), wire.post('{}', never)])
    expect(server.peers).toHaveLength(3)
    wire.close()
  })

  test('the client sends its request unchanged, with a body of several megabytes', async () => {
    let heard = ''
    const node = Bun.serve({
      port: 0,
      hostname: '127.0.0.1',
      async fetch(request) {
        const text = await request.text()
        heard = `${request.method} ${new URL(request.url).pathname} ${request.headers.get('authorization')}`
        return new Response(`${text.length}`)
      },
    })
    const wire = createWire(`http://me:secret@127.0.0.1:${node.port}/v1/x`, limit)
    expect((await wire.post('x'.repeat(6_000_000), never)).text).toBe('6000000')
    expect(heard).toBe(`POST /v1/x Basic ${btoa('me:secret')}`)
    wire.close()
    await node.stop(true)
  })

  test('a kept connection that ends is replaced, and the request sent once more', async () => {
    const server = serve((peer, request) => {
      if (request === 1) peer.end()
      else peer.write(say(`${request}`))
    })
    const wire = createWire(server.url, limit)
    await wire.post('{}', never)
    expect((await wire.post('{}', never)).text).toBe('2')
    expect(server.peers).toHaveLength(2)
    wire.close()
  })

  test('error: a connection that ends before or within its first answer is broken', async () => {
    for (const text of ['', 'HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf']) {
      const server = serve((peer) => void peer.end(text))
      const wire = createWire(server.url, limit)
      expect(await failureOf(wire.post('{}', never))).toBeInstanceOf(Broken)
      wire.close()
    }
  })

  test('error: a request is not repeated after half an answer on a kept-alive connection', async () => {
    const server = serve((peer, request) => {
      if (request === 0) peer.write(say('first'))
      else peer.end('HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf')
    })
    const wire = createWire(server.url, limit)
    await wire.post('{}', never)
    expect(await failureOf(wire.post('{}', never))).toBeInstanceOf(Broken)
    expect(server.peers).toHaveLength(1)
    wire.close()
  })

  for (const length of [say('poison').length, say('poison').length - 3])
    test(`error: ${length} bytes without a request end the connection and are not an answer`, async () => {
      const server = serve((peer, request) => void peer.write(say(`${request}`)))
      const [wire, clock] = [createWire(server.url, limit), createWire(server.url, limit)]
      await wire.post('{}', never)
      server.peers[0]?.write(say('poison').slice(0, length))
      // What arrives on another connection later shows that these bytes have arrived.
      for (const _ of [1, 2, 3]) await clock.post('{}', never)
      const { text } = await wire.post('{}', never)
      expect([text, server.peers.length]).toEqual(['4', 3])
      wire.close()
      clock.close()
    })

  test('error: an invalid answer is malformed, and its connection is not used again', async () => {
    const server = serve((peer, request) => {
      peer.write(request === 0 ? 'nonsense\r\n\r\n' : say('good'))
    })
    const wire = createWire(server.url, limit)
    expect(await failureOf(wire.post('{}', never))).toBeInstanceOf(Malformed)
    expect((await wire.post('{}', never)).text).toBe('good')
    expect(server.peers).toHaveLength(2)
    wire.close()
  })

  test('error: an answer to half a request ends the connection', async () => {
    let connections = 0
    const node = Bun.listen<{ isDeaf: boolean }>({
      hostname: '127.0.0.1',
      port: 0,
      socket: {
        open(peer) {
          peer.data = { isDeaf: connections++ === 0 }
        },
        data(peer) {
          peer.write(say(peer.data.isDeaf ? 'no' : 'yes'))
          if (peer.data.isDeaf) peer.pause()
        },
      },
    })
    const wire = createWire(`http://127.0.0.1:${node.port}/`, limit)
    expect((await wire.post('x'.repeat(30_000_000), never)).text).toBe('no')
    expect((await wire.post('{}', never)).text).toBe('yes')
    expect(connections).toBe(2)
    wire.close()
    node.stop(true)
  })

  test('error: a signal ends the wait, and a refused connection is the error of the system', async () => {
    const server = serve(() => undefined)
    const wire = createWire(server.url, limit)
    const controller = new AbortController()
    const waiting = wire.post('{}', controller.signal)
    await until(() => server.peers.length === 1)
    controller.abort()
    expect(await failureOf(waiting)).toMatchObject({ name: 'AbortError' })
    expect(await failureOf(wire.post('{}', controller.signal))).toMatchObject({
      name: 'AbortError',
    })
    server.listener.stop(true)
    expect(await failureOf(wire.post('{}', never))).toMatchObject({ code: 'ECONNREFUSED' })
    wire.close()
  })

  test('error: only http: is supported', () => {
    expect(() => createWire('https://localhost/', limit)).toThrow('http:')
  })
})
