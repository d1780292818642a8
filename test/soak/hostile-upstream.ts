/**
 * The upstream of the hostile soak, in a process of its own: small answers, files that are larger
 * than any buffer, events, and failures on request. Prints its URL.
 */

const chunk = new Uint8Array(64 * 1024)
const fileBytes = 64 * 1024 * 1024
const eventMs = 500

const server = Bun.serve({
  hostname: '127.0.0.1',
  port: 0,
  idleTimeout: 0,
  fetch(request) {
    const { pathname, searchParams } = new URL(request.url)
    const status = Number(searchParams.get('poison') ?? 0)
    if (status > 0) return new Response('{"error":"poison"}', { status })
    if (pathname.endsWith('/file')) return file()
    if (pathname.endsWith('/events')) return events()
    return Response.json({ goods: searchParams.get('n') })
  },
})
process.stdout.write(`http://127.0.0.1:${server.port}\n`)

function file(): Response {
  let left = fileBytes
  return new Response(
    new ReadableStream({
      pull(controller) {
        controller.enqueue(chunk)
        left -= chunk.byteLength
        if (left <= 0) controller.close()
      },
    }),
  )
}

function events(): Response {
  const body = new ReadableStream({
    async pull(controller) {
      await Bun.sleep(eventMs)
      controller.enqueue(`data: ${'x'.repeat(100)}\n\n`)
    },
  })
  return new Response(body, { headers: { 'content-type': 'text/event-stream' } })
}
