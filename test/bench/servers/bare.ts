// A constant answer from a bare Bun.serve: that of the URL in the arguments, byte for byte.

import { serve } from 'bun'

const [source = ''] = process.argv.slice(2)
const original = await fetch(source)
const headers = new Headers(Object.fromEntries(original.headers))
// Bun sets these itself.
for (const name of ['content-length', 'date', 'connection']) headers.delete(name)
const init = { status: original.status, headers }
const body = await original.text()

// Prebuilt headers are the fastest; a record takes 25 % more.
const server = serve({ port: 0, hostname: '127.0.0.1', fetch: () => new Response(body, init) })
process.stdout.write(`http://127.0.0.1:${server.port}\n`)
