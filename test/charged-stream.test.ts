import { afterAll, beforeAll, expect, test } from 'bun:test'
import { join } from 'node:path'
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
