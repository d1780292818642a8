import type { Authorization } from '../../db/Authorization'
import { streamByUse } from '../../src/paywall/usage/usage'
import { quietly } from './usage-observer'

/**
 * A server whose only answer is a stream that is charged at its end, for a process of its own. It
 * kills itself at the moment of the charge, as a crash after the write to the disk would. Argument: the
 * upstream's URL. Prints its own.
 */
const [upstream = ''] = process.argv.slice(2)
const server = Bun.serve({
  port: 0,
  hostname: '127.0.0.1',
  async fetch(request) {
    const { body } = await fetch(upstream)
    if (body === null) throw new Error('the upstream sent nothing')
    return new Response(
      streamByUse(body, request.signal, {
        ...quietly,
        charge: async () => {
          process.kill(process.pid, 'SIGKILL')
          return {} as Authorization
        },
      }),
    )
  },
})
process.stdout.write(`${server.url}\n`)
