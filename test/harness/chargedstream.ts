import type { Authorization } from '../../db/Authorization'
import { streamByUse } from '../../src/paywall/usage-stream'

/**
 * A server whose only answer is a stream that is charged at its end, for a process of its own. It
 * kills itself at the moment of the charge, as a crash after the write to the disk would. Prints its
 * URL.
 */
const encoder = new TextEncoder()
const source = () =>
  new ReadableStream<Uint8Array>({
    start(controller) {
      // All of it is there at once, so that the end follows in the same turn of the event loop.
      for (const word of ['one', 'two', 'three']) controller.enqueue(encoder.encode(word))
      controller.close()
    },
  })
const server = Bun.serve({
  port: 0,
  hostname: '127.0.0.1',
  fetch: (request) =>
    new Response(
      streamByUse(source(), request.signal, {
        limitMs: 60_000,
        onEnd: undefined,
        watch: () => ({
          put: () => {},
          taken: () => {},
          hasStoodStill: () => false,
          stop: () => {},
        }),
        kept: { add: () => {} },
        charge: async () => {
          process.kill(process.pid, 'SIGKILL')
          return {} as Authorization
        },
        settle: async () => {},
        finish: () => {},
        log: (error) => console.error(error),
      }),
    ),
})
process.stdout.write(`${server.url}\n`)
