import { afterEach, expect, test } from 'bun:test'
import { existsSync, readdirSync } from 'node:fs'
import { connect } from 'node:net'
import { join } from 'node:path'
import { listenOn } from '../../src/app/listen'
import { until } from '../harness/settlement'

/** More connections than the limit. Open files can be counted on Linux only. */

const isCounted = existsSync('/proc/self/fd')
const cleanups: (() => unknown)[] = []
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup()
})

/** Connections that send nothing; returns how many have been ended. */
function hold(port: number, count: number): () => number {
  let ended = 0
  const sockets = Array.from({ length: count }, () => connect(port, '127.0.0.1'))
  for (const socket of sockets) {
    socket.on('error', () => undefined)
    socket.on('close', () => ended++)
    socket.resume()
  }
  cleanups.push(() => {
    for (const socket of sockets) socket.destroy()
  })
  return () => ended
}

/**
 * A listener in a process of its own, which has its own open files. `/slow` is answered after
 * `/go`.
 */
async function start(openFiles: number, connectionsMax: number) {
  const program = `
    import { listenOn } from '${join(import.meta.dir, '../../src/app/listen.ts')}'
    const gate = Promise.withResolvers()
    const listener = listenOn({
      hostname: '127.0.0.1', port: 0, connectionsMax: ${connectionsMax},
      async fetch(request) {
        if (request.url.endsWith('/go')) gate.resolve()
        if (request.url.endsWith('/slow')) {
          console.log('waiting')
          await gate.promise
        }
        return new Response(listener.connections.addressOf(request))
      },
      onFull: () => console.log('full'), onFault: (error) => console.log(error),
    })
    console.log(listener.url)`
  const limited = ['sh', '-c', `ulimit -n ${openFiles}; exec "$@"`, 'sh']
  const child = Bun.spawn([...limited, process.execPath, '-e', program], {
    stdout: 'pipe',
    stderr: 'inherit',
  })
  cleanups.push(async () => {
    child.kill('SIGKILL')
    await child.exited
  })
  let said = ''
  void (async () => {
    for await (const chunk of child.stdout) said += new TextDecoder().decode(chunk)
  })()
  await until(() => /http\S+\n/.test(said))
  return {
    url: /http\S+/.exec(said)?.[0] ?? '',
    said: () => said,
    openFiles: () => readdirSync(`/proc/${child.pid}/fd`).length,
  }
}

const ask = async (url: string) =>
  (await fetch(url, { headers: { connection: 'close' } }).catch(() => undefined))?.text()
const peer = '127.0.0.1'

test.if(isCounted)(
  'attack: connections above the limit are ended, a request in progress is not',
  async () => {
    const { url, said } = await start(1024, 20)
    const slow = fetch(`${url}/slow`)
    await until(() => said().includes('waiting'))
    const ended = hold(Number(new URL(url).port), 60)
    await until(() => said().includes('full'))
    // The new server answers while the old one has a request in progress.
    await until(async () => (await ask(url)) === peer)
    expect(ended()).toBe(0)
    await until(async () => (await ask(`${url}/go`)) === peer)
    expect(await (await slow).text()).toBe(peer)
    await until(() => ended() > 0)
  },
)

test.if(isCounted)(
  'attack: at the limit of open files idle connections are ended and requests are answered again',
  async () => {
    const { url, said } = await start(64, 10_000)
    hold(Number(new URL(url).port), 200)
    await until(() => said().includes('full'))
    await until(async () => (await ask(url)) === peer)
  },
)

test.if(isCounted)(
  'attack: idle connections are ended while files for the database and the nodes are left',
  async () => {
    const { url, said, openFiles } = await start(64, 10_000)
    // 48 of 64 are for connections.
    const count = 54 - openFiles()
    const ended = hold(Number(new URL(url).port), count)
    await until(() => said().includes('full'))
    await until(() => ended() === count)
    await until(async () => (await ask(url)) === peer)
  },
)

test.if(isCounted)(
  'attack: while requests in progress have too many files open, connections are refused',
  async () => {
    const { url, said, openFiles } = await start(64, 10_000)
    const port = Number(new URL(url).port)
    const own = connect(port, '127.0.0.1')
    cleanups.push(() => own.destroy())
    own.on('error', () => undefined)
    own.resume()
    const slow = fetch(`${url}/slow`)
    await until(() => said().includes('waiting'))
    hold(port, 54 - openFiles())
    await until(() => said().includes('full'))
    await until(async () => (await ask(url)) === undefined)
    // This state is stable: alternating servers would answer some of these.
    for (let count = 0; count < 100; count++) expect(await ask(url)).toBeUndefined()
    expect(said().match(/full/g)).toHaveLength(1)
    own.write('GET /go HTTP/1.1\r\nHost: localhost\r\n\r\n')
    expect(await (await slow).text()).toBe(peer)
    await until(async () => (await ask(url)) === peer)
  },
)

test('an IPv6 address has brackets in its URL', async () => {
  const listener = listenOn({
    hostname: '::1',
    port: 0,
    connectionsMax: 20,
    fetch: () => new Response('ok'),
    onFull: () => undefined,
    onFault: () => undefined,
  })
  cleanups.push(() => listener.stop(true))
  expect(listener.url).toMatch(/^http:\/\/\[::1\]:\d+$/)
  expect(await (await fetch(listener.url)).text()).toBe('ok')
})
