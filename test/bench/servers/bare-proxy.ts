// A reverse proxy with nothing else. Argument: the URL of the upstream, to which every request goes.

export {}

const [upstream = ''] = process.argv.slice(2)
const server = Bun.serve({
  port: 0,
  hostname: '127.0.0.1',
  idleTimeout: 60,
  async fetch({ method, headers, body }) {
    const type = headers.get('content-type') ?? ''
    const answer = await fetch(upstream, { method, headers: { 'content-type': type }, body })
    return new Response(answer.body, { status: answer.status, headers: answer.headers })
  },
})
process.stdout.write(`http://127.0.0.1:${server.port}\n`)
