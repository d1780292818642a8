import { expect, test } from 'bun:test'
import { join } from 'node:path'

test('behavior: a stream is written to its buyer before its charge is on the disk', async () => {
  const script = join(import.meta.dir, 'harness', 'chargedstream.ts')
  const server = Bun.spawn([process.execPath, script], { stdout: 'pipe', stderr: 'inherit' })
  let received = ''
  try {
    const { value } = await server.stdout.getReader().read()
    const response = await fetch(new TextDecoder().decode(value).trim())
    const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader()
    for (;;) {
      const part = await reader?.read().catch(() => undefined)
      if (part?.value === undefined) break
      received += part.value
    }
  } catch {
    // The connection broke before its first byte.
  }
  await server.exited
  expect([received, server.signalCode]).toEqual(['onetwothree', 'SIGKILL'])
})
