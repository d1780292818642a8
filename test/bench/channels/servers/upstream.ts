// The upstream of both candidates, on the core of the load.

const body = JSON.stringify({ joke: 'A cat walks into a paywall.' })
const headers = { 'content-type': 'application/json' }
const server = Bun.serve({
  port: 0,
  hostname: '127.0.0.1',
  fetch: () => new Response(body, { headers }),
})
process.stdout.write(`http://127.0.0.1:${server.port}\n`)

export {}
