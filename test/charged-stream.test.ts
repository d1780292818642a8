import { afterAll, beforeAll, expect, test } from 'bun:test'
import { join } from 'node:path'
import { streamByUse } from '../src/paywall/usage-stream'
import { failureOf } from './harness/outcome'
import { connect, request } from './harness/raw'
import { type ScriptedUpstream, startScripted } from './harness/upstream'

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

test('behavior: a stream is written to its buyer before its charge is on the disk', async () => {
  const script = join(import.meta.dir, 'harness', 'chargedstream.ts')
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

test('error: a stream whose charge cannot be written has no end', async () => {
  const logged: unknown[] = []
  const cuts: boolean[] = []
  const fault = new Error('charged before')
  const { body } = await fetch(upstream.url)
  if (body === null) throw new Error('the upstream sent nothing')
  const stream = streamByUse(body, new AbortController().signal, {
    afterPause: () => undefined,
    limitMs: 60_000,
    onEnd: (isCut) => void cuts.push(isCut),
    watch: () => ({ put: () => {}, taken: () => {}, hasStoodStill: () => false, stop: () => {} }),
    kept: { add: () => {} },
    charge: () => Promise.reject(fault),
    settle: async () => {},
    finish: () => {},
    log: (error) => void logged.push(error),
  })
  const server = Bun.serve({ port: 0, hostname: '127.0.0.1', fetch: () => new Response(stream) })
  try {
    const read = async () => (await fetch(server.url)).text()
    expect(await failureOf(read())).toBeInstanceOf(Error)
    expect([logged, cuts]).toEqual([[fault], [true]])
  } finally {
    await server.stop(true)
  }
})
