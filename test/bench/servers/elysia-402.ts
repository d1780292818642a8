// The least that a server on Elysia does for a 402 like ours: reads the credential headers, signs a challenge for each
// offer, and sends new random values in the answer of the URL in the arguments. Of our modules it has none.

import { Elysia } from 'elysia'

const [source = ''] = process.argv.slice(2)
const original = await fetch(source)
const body = await original.text()
const constant = new Headers(original.headers)
// Bun sets these itself.
for (const name of ['content-length', 'date', 'connection']) constant.delete(name)

/** The base64 of a salt, which the header and each challenge repeat. */
const saltChars = 20
const [known = ''] =
  / opaque="eyJuIjoi([^"]{20})/.exec(original.headers.get('www-authenticate') ?? '')?.slice(1) ?? []
const [before = '', after = ''] = (original.headers.get('payment-required') ?? '').split(known)
const challenges = (original.headers.get('www-authenticate') ?? '')
  .split(/,? ?Payment id="[^"]+"/)
  .slice(1)
  .map((challenge) => {
    const [params = '', opaque = ''] = challenge.split(/expires="[^"]+", opaque="/)
    const [start = '', end = ''] = opaque.split(known)
    return { params, start, end, hmac: new Bun.CryptoHasher('sha256', source) }
  })
const salts = { pool: '', at: 0 }
let count = 0

function salt(): string {
  if (salts.at === salts.pool.length) {
    const bytes = crypto.getRandomValues(new Uint8Array(11_250))
    Object.assign(salts, { pool: btoa(Buffer.from(bytes.buffer).toString('base64url')), at: 0 })
  }
  salts.at += saltChars
  return salts.pool.slice(salts.at - saltChars, salts.at)
}

function answer({ headers }: Request): Response {
  const isPaid =
    headers.get('authorization') !== null ||
    headers.get('payment-signature') !== null ||
    headers.get('x-payment') !== null ||
    headers.get('payment-redeem') !== null
  if (isPaid) return new Response('', { status: 500 })
  const fresh = salt()
  const expires = '2026-01-01T00:00:00Z'
  let value = ''
  for (const { params, start, end, hmac } of challenges) {
    const opaque = start + fresh + end
    const id = hmac.copy().update(`${expires}||${opaque}`).digest('base64url')
    value += `${value === '' ? '' : ', '}Payment id="${id}"${params}expires="${expires}", opaque="${opaque}`
  }
  constant.set('www-authenticate', value)
  constant.set('payment-required', before + fresh + after)
  constant.set('x-request-id', `elysia-${(count++).toString(36)}`)
  return new Response(body, { status: 402, headers: constant })
}

const app = new Elysia({ strictPath: true, handler: { standardHostname: false } })
  .wrap((_, request) => () => answer(request))
  .all('/*', ({ request }) => answer(request))
const server = Bun.serve({ port: 0, hostname: '127.0.0.1', fetch: (request) => app.fetch(request) })
process.stdout.write(`http://127.0.0.1:${server.port}\n`)
