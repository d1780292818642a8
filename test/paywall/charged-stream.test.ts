import { afterAll, beforeAll, expect, test } from 'bun:test'
import { join } from 'node:path'
import type { Authorization } from '../../db/Authorization'
import { streamByUse, type UsageObserver } from '../../src/paywall/usage/usage'
import { failureOf } from '../harness/outcome'
import { connect, request } from '../harness/raw'
import { until } from '../harness/settlement'
import { type ScriptedUpstream, startScripted } from '../harness/upstream'
import { quietly } from '../harness/usage-observer'

let upstream: ScriptedUpstream
beforeAll(async () => {
  upstream = await startScripted()
  // The end comes with the last bytes, so that nothing else separates them in the gateway.
  upstream.script = (_, reply) => {
    reply.head(200, { 'content-type': 'text/event-stream' })
    for (const word of ['one', 'two', 'three']) reply.chunk(word)
    reply.end()
  }
})
afterAll(() => upstream.stop())

test('a stream is written to its buyer before its charge is on the disk', async () => {
  const script = join(import.meta.dir, '../harness', 'charged-stream.ts')
  const server = Bun.spawn([process.execPath, script, upstream.url.href], {
    stdout: 'pipe',
    stderr: 'inherit',
  })
  const { value } = await server.stdout.getReader().read()
  const socket = connect(new TextDecoder().decode(value).trim(), request('/'))
  let received = ''
  socket.on('data', (data) => {
    received += data.toString('latin1')
  })
  await new Promise((resolve) => socket.on('close', resolve))
  await server.exited
  expect([received.match(/one|two|three/g), server.signalCode]).toEqual([
    ['one', 'two', 'three'],
    'SIGKILL',
  ])
})

/** A server whose only answer is that of the upstream, passed on by use. */
async function serveByUse(changes: Partial<UsageObserver>) {
  const { body } = await fetch(upstream.url)
  if (body === null) throw new Error('the upstream sent nothing')
  const stream = streamByUse(body, new AbortController().signal, {
    ...quietly,
    ...changes,
  })
  const server = Bun.serve({ port: 0, hostname: '127.0.0.1', fetch: () => new Response(stream) })
  return { url: server.url, [Symbol.asyncDispose]: () => server.stop(true) }
}

test('error: a stream whose charge cannot be written has no end', async () => {
  const logged: unknown[] = []
  const cuts: boolean[] = []
  const fault = new Error('charged before')
  await using server = await serveByUse({
    onEnd: (isCut) => void cuts.push(isCut),
    charge: () => Promise.reject(fault),
    log: (error) => void logged.push(error),
  })
  const read = async () => (await fetch(server.url)).text()
  expect(await failureOf(read())).toBeInstanceOf(Error)
  expect([logged, cuts]).toEqual([[fault], [true]])
})

test('attack: nothing is passed on while the charge would not be written', async () => {
  let isFresh = false
  let asked = 0
  await using server = await serveByUse({
    isFresh() {
      asked++
      return isFresh
    },
  })
  let received = ''
  const socket = connect(server.url.origin, request('/'))
  socket.on('data', (data) => {
    received += data.toString('latin1')
  })
  await until(() => asked > 2)
  expect(received).not.toContain('one')
  isFresh = true
  await until(() => received.includes('three'))
  socket.destroy()
})

test('error: a stream that is not passed on ends at its limit, and only what was passed is charged', async () => {
  const charges: unknown[] = []
  await using server = await serveByUse({
    isFresh: () => false,
    charge: async (ended) => {
      charges.push(ended)
      return {} as Authorization
    },
    limitMs: 200,
  })
  const read = async () => (await fetch(server.url)).text()
  expect(await failureOf(read())).toBeInstanceOf(Error)
  expect(charges).toEqual([{ end: 'cut', reach: 'nothing' }])
})
