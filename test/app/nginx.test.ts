import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import { connect } from 'node:net'
import { text } from 'node:stream/consumers'
import { account } from '../../src/demo/accounts'
import { buyWithMppx, buyWithX402, type Purchase } from '../../src/demo/buyers'
import type { Id } from '../../src/protocol/Network'
import { caddyPath, startCaddy } from '../harness/caddy'
import type { FrontProxy } from '../harness/front-proxy'
import { type Nginx, nginxPath, startNginx } from '../harness/nginx'
import { type TestWorld, testWorld } from '../harness/world'

// nginx answers 502 when the head of an answer is longer than its buffer, 4 KB unless configured.

const isMissing = nginxPath === undefined
if (isMissing)
  process.stderr.write('SKIPPED: the tests behind nginx need it (apt-get install nginx-light)\n')

let world: TestWorld
let nginx: Nginx
let caddy: FrontProxy
beforeAll(async () => {
  if (isMissing && caddyPath === undefined) return
  world = await testWorld()
  if (!isMissing) nginx = await startNginx(world.url)
  if (caddyPath !== undefined) caddy = await startCaddy(world.url)
})
afterAll(async () => {
  await Promise.all([nginx?.stop(), caddy?.stop()])
  await world?.stop()
})

const ids: readonly Id[] = ['eip155:8453', 'eip155:84532', 'eip155:4663']

function expectBought({ response, requests, body }: Purchase, server = 'nginx'): void {
  expect([requests.map(({ status }) => status), body.slice(0, 80)]).toEqual([
    [402, 200],
    expect.stringMatching(/^[{[]/),
  ])
  expect(response.headers.get('server')).toStartWith(server)
}

describe.skipIf(isMissing)('behind nginx with the buffers that it has by default', () => {
  test('every shipped route answers 402 through nginx', async () => {
    const asked = world.config.merchants.flatMap(({ slug, routes }) =>
      routes.flatMap(({ path, tail, methods }) =>
        methods.map((method) => ({
          method,
          path: `/m/${slug}${path}${tail === 'required' ? '/tail' : ''}`,
        })),
      ),
    )
    expect(asked.length).toBeGreaterThan(40)
    const answers = await Promise.all(
      asked.map(async ({ method, path }) => {
        const post = { headers: { 'content-type': 'application/json' }, body: '{}' }
        const init = method === 'POST' ? { method, ...post } : { method }
        const { status, headers } = await fetch(nginx.url + path, init)
        return `${method} ${path} ${status} ${headers.has('payment-required')}`
      }),
    )
    expect(answers).toEqual(asked.map(({ method, path }) => `${method} ${path} 402 true`))
  })

  for (const network of ids) {
    test(`mppx buys on ${network}, of a route with three networks`, async () => {
      const url = `${nginx.url}/m/catjoke/joke`
      expectBought(await buyWithMppx(world, url, account(1), { network }))
    })

    const method = network === 'eip155:4663' ? 'permit2' : 'eip3009'
    test(`@x402/fetch buys on ${network} by ${method}`, async () => {
      const url = `${nginx.url}/m/catjoke/joke`
      expectBought(await buyWithX402(world, url, account(1), { network, method }))
    })
  }

  test('mppx without configuration and @x402/fetch buy by POST, with a body', async () => {
    const url = `${nginx.url}/m/assistant/chat`
    const messages = [{ role: 'user', content: 'What does a turnpike do?' }]
    const init = {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ model: 'assistant-fast', messages }),
    }
    expectBought(await buyWithMppx(world, url, account(2), { init }))
    // The head has no room for a further method beside the offers of `upto`.
    for (const [network, method] of [
      ['eip155:4663', 'permit2'],
      ['eip155:8453', 'eip3009'],
    ] as const)
      expectBought(await buyWithX402(world, url, account(2), { init, network, method }))
  })

  test('error: a refused credential gets its problem through nginx', async () => {
    for (const [network, method] of [
      ['eip155:4663', 'permit2'],
      ['eip155:8453', 'eip3009'],
    ] as const) {
      const url = `${nginx.url}/m/catjoke/joke`
      const paid = await buyWithX402(world, url, account(1), { network, method })
      const [, request] = paid.requests
      const headers = new Headers({
        'payment-signature': request?.headers.get('payment-signature') ?? '',
      })
      const again = await fetch(url, { headers })
      expect(again.status).toBe(402)
      const told = (name: string) => JSON.parse(atob(again.headers.get(name) ?? ''))
      const { errorReason } = told('payment-response')
      expect(errorReason).toMatch(/nonce/)
      expect(told('payment-required').error).toBe(errorReason)
    }
  })
})

describe.skipIf(caddyPath === undefined)('behind Caddy', () => {
  test('mppx and @x402/fetch buy', async () => {
    const url = `${caddy.url}/m/catjoke/joke`
    expectBought(await buyWithMppx(world, url, account(1), { network: 'eip155:8453' }), 'Caddy')
    const permit2 = { network: 'eip155:4663', method: 'permit2' } as const
    expectBought(await buyWithX402(world, url, account(1), permit2), 'Caddy')
  })
})

/** Asks from an address that is not 127.0.0.1; returns the status, and whether metrics were sent. */
async function askFromOther(url: string, path: string): Promise<string> {
  const { hostname, port, host } = new URL(url)
  const socket = connect({ host: hostname, port: Number(port), localAddress: '127.0.0.2' })
  socket.write(`GET ${path} HTTP/1.1\r\nHost: ${host}\r\nConnection: close\r\n\r\n`)
  const answer = await text(socket)
  return `${path} ${answer.split(' ', 2)[1]}${answer.includes('# HELP') ? ' with metrics' : ''}`
}

// The service normalises a path, and a proxy that compares it exactly does not recognise these.
const disguises = [
  '/metrics',
  '/metrics/',
  '/metrics/.',
  '/metrics?a',
  '/%6detrics/',
  '/m/../metrics/',
  '/metrics\\',
  '/a\\..\\metrics',
  '/m\\..\\metrics/',
  '/a%5C..%5Cmetrics',
]
for (const [name, isSkipped, urlOf] of [
  ['nginx', isMissing, () => nginx.url],
  ['Caddy', caddyPath === undefined, () => caddy.url],
] as const)
  test.skipIf(isSkipped)(
    `attack: no client of another address reads metrics through ${name}`,
    async () => {
      expect(await askFromOther(world.url, '/metrics/')).toBe('/metrics/ 200 with metrics')
      const answers = await Promise.all(disguises.map((path) => askFromOther(urlOf(), path)))
      expect(answers.filter((answer) => !/ (400|403|404)$/.test(answer))).toEqual([])
      expect(answers[0]).toBe('/metrics 403')
    },
  )
