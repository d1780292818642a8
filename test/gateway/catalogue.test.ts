import { Database } from 'bun:sqlite'
import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import { join } from 'node:path'
import { parseConfig } from '../../src/config/merchants'
import { account } from '../../src/demo/accounts'
import type { Recorded } from '../../src/demo/upstreams'
import * as Route from '../../src/gateway/Route'
import { validateParams } from '../../src/gateway/validate'
import { ask, payMpp, payX402, type Required } from '../harness/buyer'
import { type Sample, samples } from '../harness/catalogue'
import { payout } from '../harness/config'
import { refusals, refusedChats, stockInputs, taken, unsold } from '../harness/refusals'
import { type TestWorld, testWorld } from '../harness/world'

const text = await Bun.file(join(import.meta.dir, '../..', 'merchants.toml')).text()
const env = { PAYOUT: payout, ASSISTANT_KEY: 'key' }
const { config: shipped } = parseConfig(text, { file: 'merchants.toml', env })
if (!shipped) throw new Error('the shipped file has faults')
const matcher = Route.compile(shipped.merchants)

let world: TestWorld
beforeAll(async () => {
  world = await testWorld()
})
afterAll(() => world.stop())

const buyer = account(1).local()
const urlOf = (path: string) => `${world.url}/m/${path}`

type Terms = { init?: RequestInit; encoding?: string }

/** A credential in one of the two protocols, for an offer of the 402. */
async function credential(url: string, by: 'mpp' | 'x402', init?: RequestInit) {
  const asked = await ask(url, init)
  expect(asked.response.status).toBe(402)
  const [challenge] = asked.challenges
  if (by === 'mpp' && challenge) return { authorization: await payMpp(challenge, buyer) }
  return { 'payment-signature': await permit(asked.required) }
}

function permit(required: Required): Promise<string> {
  return payX402(required, buyer, { network: 'eip155:4663', method: 'permit2' })
}

/** The answer with its bytes as they were transmitted. */
async function send(url: string, headers: Record<string, string>, { init, encoding }: Terms = {}) {
  const response = await fetch(url, {
    ...init,
    headers: { ...headers, 'accept-encoding': encoding ?? 'identity' },
    decompress: false,
  })
  return { response, bytes: Buffer.from(await response.arrayBuffer()) }
}

/** The upstream's request of the last purchase; there must be exactly one. */
function seenSince(count: Recorded | undefined): Recorded {
  const { requests } = world.upstreams
  const found = requests.slice(count === undefined ? 0 : requests.lastIndexOf(count) + 1)
  expect(found).toHaveLength(1)
  const [seen] = found
  if (seen === undefined) throw new Error('nothing arrived')
  return seen
}

/** The same request, sent to the upstream without the gateway. */
async function direct({ method, target, headers, body }: Recorded) {
  const { 'content-length': _, host: _host, connection: _connection, ...kept } = headers
  const init: RequestInit = { method, ...(body === '' ? {} : { body }) }
  const encoding = headers['accept-encoding']
  return send(world.upstreams.url + target, kept, {
    init,
    ...(encoding === undefined ? {} : { encoding }),
  })
}

function plain(response: Response, bytes: Buffer): string {
  const isPacked = response.headers.get('content-encoding') === 'gzip'
  return (isPacked ? Buffer.from(Bun.gunzipSync(new Uint8Array(bytes))) : bytes).toString()
}

describe('every row', () => {
  const buy = async (sample: Sample, by: 'mpp' | 'x402', encoding: string) => {
    const url = urlOf(sample.ask)
    const paid = await credential(url, by)
    const before = world.upstreams.requests.at(-1)
    const { response, bytes } = await send(url, paid, { encoding })
    const seen = seenSince(before)
    const { origin, pathname, search } = new URL(sample.upstream)
    expect(seen).toMatchObject({ method: 'GET', target: pathname + search, body: '' })
    const wanted = await direct(seen)
    expect([response.status, wanted.response.status]).toEqual([200, 200])
    expect(Buffer.compare(bytes, wanted.bytes)).toBe(0)
    for (const name of ['content-type', 'content-encoding'])
      expect(response.headers.get(name)).toBe(wanted.response.headers.get(name))
    expect(response.headers.get('content-type')).toStartWith('application/json')
    const receipt = by === 'mpp' ? 'payment-receipt' : 'payment-response'
    expect(response.headers.get(receipt)).not.toBeNull()
    // The file selects the host; here all hosts are one.
    const path = Route.canonicalize(`/m/${sample.ask.split('?', 1)[0]}`) ?? ''
    const found = Route.match(matcher, path)
    expect(found?.target?.origin).toBe(origin)
    for (const [name, value] of Object.entries(found?.merchant.headers ?? {}))
      expect(seen.headers[name.toLowerCase()]).toBe(value)
    const value: unknown = JSON.parse(plain(response, bytes))
    const kind = Array.isArray(value) ? 'array' : typeof value
    expect([found?.route.answer?.type ?? 'object'].flat()).toContain(kind)
    return { response, bytes, seen }
  }

  for (const [index, sample] of samples.entries()) {
    const by = index % 2 === 0 ? 'mpp' : 'x402'
    const encoding = index % 4 < 2 ? 'gzip' : 'identity'
    test(`${sample.ask} is bought by ${by}, as the upstream sends it`, async () => {
      await buy(sample, by, encoding)
    })
  }

  test('every route of the file with an upstream is bought above', () => {
    const asked = new Set(
      samples.map(({ ask }) => Route.match(matcher, `/m/${ask.split('?', 1)[0]}`)?.route),
    )
    const rest = shipped.merchants.flatMap(({ slug, builtin, routes }) =>
      routes.filter((route) => !builtin && !asked.has(route)).map(({ path }) => slug + path),
    )
    // Bought below, with bodies.
    expect(rest).toEqual(['assistant/chat'])
  })

  for (const path of ['defi/protocols', 'company-filings/facts/0000320193.json', 'defi/tvl/aave']) {
    test(`${path} is delivered compressed and uncompressed`, async () => {
      const sample = samples.find(({ ask }) => ask === path)
      if (!sample) throw new Error(`no sample ${path}`)
      const packed = await buy(sample, 'mpp', 'gzip')
      const unpacked = await buy(sample, 'x402', 'identity')
      expect(plain(packed.response, packed.bytes)).toBe(unpacked.bytes.toString())
      if (path === 'defi/tvl/aave') expect(unpacked.bytes.toString()).toMatch(/^\d+\.\d+$/)
      expect(packed.response.headers.get('content-encoding')).toBe('gzip')
    })
  }

  test('HEAD costs what GET costs and has no body', async () => {
    const url = urlOf('fx/currencies')
    const init = { method: 'HEAD' }
    const { response, bytes } = await send(url, await credential(url, 'mpp'), { init })
    expect(response.status).toBe(200)
    expect(bytes).toHaveLength(0)
    expect(world.upstreams.requests.at(-1)).toMatchObject({ method: 'HEAD' })
  })

  test('a joke needs no upstream, and is the requested one', async () => {
    const before = world.upstreams.requests.at(-1)
    for (const path of ['catjoke/joke', 'catjoke/joke?id=40&lang=cat', 'catjoke/joke?id=40']) {
      const url = urlOf(path)
      const asked = await ask(url)
      const testnet = { network: 'eip155:84532', method: 'eip3009' } as const
      const paid = await payX402(asked.required, buyer, testnet)
      const { response, bytes } = await send(url, { 'payment-signature': paid })
      expect(response.status).toBe(200)
      const joke: { id: number; joke: string; total: number } = JSON.parse(bytes.toString())
      expect(joke).toMatchObject({ total: 40, license: 'CC0-1.0' })
      expect(joke.joke.length).toBeGreaterThan(20)
      if (path.includes('id')) expect(joke.id).toBe(40)
    }
    expect(world.upstreams.requests.at(-1)).toBe(before)
  })
})

describe('what cannot be served', () => {
  const rowsOf = (table: string) => {
    const database = new Database(join(world.dataDir, 'turnpike.sqlite'), { readonly: true })
    try {
      return Number(Object.values(database.query(`SELECT count(*) FROM ${table}`).get() ?? {})[0])
    } finally {
      database.close()
    }
  }

  const refuse = async (path: string, names: readonly string[], init?: RequestInit) => {
    const url = urlOf(path)
    const asked = await ask(url, init)
    expect(asked.response.status).toBe(402)
    const named = (body: Record<string, unknown>) =>
      Array.isArray(body.invalidParams) ? body.invalidParams.map(({ name }) => name) : undefined
    expect(named(asked.body)).toEqual([...names])
    const paid = { 'payment-signature': await permit(asked.required) }
    const before = { last: world.upstreams.requests.at(-1), payments: rowsOf('payments') }
    const { response, bytes } = await send(url, paid, init ? { init } : {})
    expect(response.status).toBe(400)
    const problem: Record<string, unknown> = JSON.parse(bytes.toString())
    expect(problem).toMatchObject({ status: 400, code: 'invalid-parameter' })
    expect(named(problem)).toEqual([...names])
    expect(world.upstreams.requests.at(-1)).toBe(before.last)
    expect(rowsOf('payments')).toBe(before.payments)
    return paid
  }

  for (const [path, ...names] of refusals) {
    const title = path.length > 80 ? `${path.slice(0, 40)}...` : path
    test(`error: ${title} is named in the 402, refused with a credential, and not charged`, async () => {
      const paid = await refuse(path, names)
      const route = Route.match(matcher, `/m/${path.split('?', 1)[0]}`)?.route
      const good =
        samples.find(
          ({ ask }) => Route.match(matcher, `/m/${ask.split('?', 1)[0]}`)?.route === route,
        )?.ask ?? 'catjoke/joke'
      // The same credential is accepted, so it was not spent.
      const { response } = await send(urlOf(good), paid)
      expect(response.status).toBe(200)
    })
  }

  for (const path of taken)
    test(`${path} is accepted, as by the upstream`, () => {
      const { pathname, search } = new URL(`http://localhost/m/${path}`)
      const found = Route.match(matcher, pathname)
      if (found === undefined) throw new Error(`no route ${pathname}`)
      expect(validateParams(found.route, search, found.tail, new Uint8Array(0))).toEqual([])
    })

  for (const [body, ...names] of refusedChats) {
    test(`error: chat refuses ${body.slice(0, 60) || 'no body'} and leaves the credential unspent`, async () => {
      const paid = await refuse('assistant/chat', names, { method: 'POST', body })
      const good = '{"model":"assistant-fast","messages":[{"role":"user","content":"x"}]}'
      const init = { method: 'POST', body: good }
      const { response } = await send(urlOf('assistant/chat'), paid, { init })
      expect(response.status).toBe(200)
    })
  }

  const known = new Map(
    shipped.merchants
      .find(({ slug }) => slug === 'chain-stocks')
      ?.routes.map((route) => [route.path, route]),
  )
  const namesOf = (path: string, search: string, body: string) => {
    const route = known.get(path)
    if (!route) throw new Error(`no route ${path}`)
    const found = validateParams(route, search, '', new TextEncoder().encode(body))
    return [...new Set(found.map(({ name }) => name))]
  }
  for (const [search, body, ...names] of stockInputs)
    test(`error: a quote of ${search} ${body} is refused for ${names.length} names`, () => {
      // The validator also names members that are not allowed by the place of their object.
      for (const path of ['/quote', '/token'])
        expect(namesOf(path, search, body).filter((name) => name !== '')).toEqual(
          names.filter((name) => name !== ''),
        )
    })

  test('error: stocks refuses a body, and report accepts any object', () => {
    expect(namesOf('/stocks', '?a=1', '{}')).toEqual([])
    expect(namesOf('/stocks', '', '{"a":1}')).not.toEqual([])
    expect(namesOf('/report', '?a=1', '{"a":{"b":[1]}}')).toEqual([])
    expect(namesOf('/report', '', '[1]')).not.toEqual([])
  })

  test('error: a missing required tail, and a tail where none is taken, is not for sale', async () => {
    for (const path of unsold) {
      const response = await fetch(urlOf(path))
      expect([path, response.status]).toEqual([path, 404])
      expect(await response.json()).toMatchObject({ status: 404, code: 'not-found' })
    }
  })

  test('error: a method that is not sold is 405 with the methods that are', async () => {
    const cases = [
      ['GET', 'assistant/chat', 'POST, OPTIONS'],
      ['POST', 'weather/forecast', 'GET, HEAD, OPTIONS'],
      ['DELETE', 'chain-stocks/quote', 'GET, POST, HEAD, OPTIONS'],
    ] as const
    for (const [method, path, allow] of cases) {
      const response = await fetch(urlOf(path), { method })
      expect([path, response.status, response.headers.get('allow')]).toEqual([path, 405, allow])
    }
  })
})
