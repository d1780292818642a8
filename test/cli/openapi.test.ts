import { afterAll, beforeEach, describe, expect, test } from 'bun:test'
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { check } from '../../src/cli/sell/check'
import { init } from '../../src/cli/sell/init'
import * as Route from '../../src/gateway/Route'
import { validateParams } from '../../src/gateway/validate'
import { exitCode } from '../harness/command'
import { configOf, named, payout } from '../harness/config'
import { temporary } from '../harness/settlement'

const directory = temporary()
afterAll(directory.remove)

let serial = 0
let file: string
beforeEach(() => {
  file = join(directory.path, `m${++serial}.toml`)
})

type More = {
  openapi?: string
  upstream?: string
  'price-for'?: string
  env?: Record<string, string>
}

const env = { UPSTREAM_EU_KEY: 'k3y-of-the-shop', HOME_SECRET: 's3cret' }

async function run(command: typeof init | typeof check, more: More) {
  const out: string[] = []
  const given = command === check ? {} : { price: '0.01', networks: 'base', payout }
  const asking = (options: Parameters<typeof init>[0]) => command(options, undefined)
  const code = await exitCode(asking, {
    ...given,
    env,
    ...more,
    file,
    dataDir: join(directory.path, 'data'),
    out: (line) => void out.push(line),
    err: (line) => void out.push(line),
  })
  return { code, out: out.join('\n') }
}

/** Writes a specification, and answers its path. */
function specified(text: string | object): string {
  const path = join(directory.path, `spec${++serial}`)
  writeFileSync(path, typeof text === 'string' ? text : JSON.stringify(text))
  return path
}

const written = () => readFileSync(file, 'utf8')
const merchant = () => configOf(written(), { env }).merchants[0]

const shop = `
openapi: 3.1.0
info: { title: Pet Shop, version: "1", description: "Pets of \${HOME_SECRET}." }
servers: [{ url: "https://{region}.shop.example.org/v1", variables: { region: { default: eu } } }]
security: [{ key: [] }]
paths:
  /pets:
    get:
      operationId: listPets
      summary: List pets
      deprecated: true
      parameters:
        - { name: limit, in: query, required: true, schema: { anyOf: [{ type: integer, maximum: 5 }, { type: "null" }], default: 3 } }
        - { name: kinds, in: query, schema: { type: array, minItems: 2, items: { enum: [cat, dog] } } }
        - { name: filter, in: query, required: true, style: deepObject, schema: { type: object, properties: { age: { type: integer } } } }
        - { name: X-Trace, in: header, required: true, schema: { type: string } }
      responses:
        "200": { description: All, content: { application/json: { schema: { type: array, items: { $ref: "#/components/schemas/Pet" } } } } }
    post:
      operationId: addPet
      requestBody: { required: true, content: { application/json: { schema: { $ref: "#/components/schemas/Pet" } } } }
      responses: { "201": { description: One, content: { application/json: { example: { name: Rex, tag: null, type: dog } } } } }
  /pets/{petId}/photos/{photo}.png:
    get:
      operationId: pets/photo
      parameters:
        - { name: petId, in: path, required: true, schema: { type: integer }, example: 7 }
        - { name: photo, in: path, required: true, schema: { type: string, pattern: "^(?!x)" } }
      responses: {}
  /pets/{petId}/:
    delete: { responses: {} }
    head: { responses: {} }
  /elsewhere: { servers: [{ url: "http://169.254.169.254/" }], get: { responses: {} } }
components:
  securitySchemes: { key: { type: apiKey, in: header, name: X-Key } }
  schemas:
    Pet:
      type: object
      additionalProperties: false
      required: [id, name]
      properties:
        id: { type: integer, readOnly: true }
        name: { type: string, minLength: 2, example: Rex }
        parent: { $ref: "#/components/schemas/Pet" }
        sex: { oneOf: [{ type: string, enum: [f] }, { type: string }] }
`

describe('init --openapi', () => {
  test('each operation becomes a route, and what is left out is named', async () => {
    const { code, out } = await run(init, {
      openapi: specified(shop),
      'price-for': 'DELETE *=0.2,/pets/*/photos/*=0.5',
    })
    expect(out).toContain('4 of 6 operations of ')
    expect(out).toEndWith('\n  curl -i http://localhost:4020/m/eu/pets')
    expect(out).toContain('left out: HEAD /pets/{petId}/: HEAD comes with GET')
    expect(out).toContain('left out: GET /elsewhere: its own server http://169.254.169.254/ is not')
    expect([code, out]).toEqual([0, expect.stringContaining('\nok\n')])
    const sold = merchant()
    expect([sold?.slug, sold?.title, sold?.upstream?.href]).toEqual([
      'eu',
      'Pet Shop',
      'https://eu.shop.example.org/',
    ])
    expect(
      sold?.routes.map(({ methods, path, upstreamPath, priceAtomic }) =>
        [...methods, path, upstreamPath, Number(priceAtomic)].join(' '),
      ),
    ).toEqual([
      'GET /pets /v1/pets 10000',
      'POST /addPet /v1/pets 10000',
      'GET /pets-photo /v1/pets/{tail} 500000',
      'DELETE /delete-pets-petId /v1/pets/{tail}/ 200000',
    ])
  })

  test('requests that the specification allows are sold, and others are not', async () => {
    await run(init, { openapi: specified(shop) })
    const sold = merchant()
    if (sold === undefined) throw new Error('no merchant')
    const [list, add] = sold.routes
    if (!list || !add) throw new Error('no routes')
    const names = (search: string) =>
      validateParams(list, search, '', new Uint8Array()).map(({ name }) => name)
    expect(names('?limit=5&kinds=cat&kinds=dog&filter[age]=1')).toEqual([])
    expect(names('?limit=6&kinds=cow')).toEqual(['limit', 'kinds'])
    const faults = (body: object) =>
      validateParams(add, '', '', new TextEncoder().encode(JSON.stringify(body))).map(
        ({ name }) => name,
      )
    expect(faults({ name: 'Rex', sex: 'f', parent: { any: 1 } })).toEqual([])
    expect(faults({ name: 'R', other: 1 })).toEqual(['name', 'other'])
    expect(add.answer?.examples).toEqual([{ name: 'Rex', type: 'dog' }])
    expect(list.answer?.examples).toEqual([[{ name: 'Rex' }]])
    const matcher = Route.compile([sold])
    const target = (path: string) => {
      const match = Route.match(matcher, `/m/eu${path}`)
      return match?.target && Route.upstreamUrl(match.target, match.tail, '').pathname
    }
    expect(target('/pets-photo/7/photos/a.png')).toBe('/v1/pets/7/photos/a.png')
    expect(target('/delete-pets-petId/7')).toBe('/v1/pets/7/')
    expect(target('/delete-pets-petId/7/photos/a.png')).toBeUndefined()
  })

  test('attack: no text of a specification is replaced by a value of the environment', async () => {
    await run(init, { openapi: specified(shop) })
    expect(merchant()).toMatchObject({
      description: 'Pets of $ {HOME_SECRET}.',
      headers: { 'X-Key': env.UPSTREAM_EU_KEY },
    })
    expect(written()).toContain('# X-Trace = "..."')
  })

  test('attack: no name of a specification leads to a secret', async () => {
    const own = {
      RELAYER_KEYS: `0x${'ab'.repeat(32)}`,
      ADMIN_TOKEN: 'of-the-operator',
      x: 'secret',
    }
    const hostile = (url: string) => ({
      ...{ openapi: '3.1.0', info: { title: named('ADMIN_TOKEN') }, servers: [{ url }] },
      security: [{ keys: [], session: [] }],
      components: {
        securitySchemes: {
          keys: { type: 'http', scheme: 'bearer' },
          session: { type: 'apiKey', in: 'cookie', name: named('ADMIN_TOKEN') },
        },
      },
      paths: { '/a\u001b[2J': { get: {} } },
    })
    const first = specified(hostile('https://relayer.example.org'))
    await run(init, { openapi: first, env: own })
    const replaced = [...written().matchAll(/\$\{\w+\}/g)].map(([name]) => name)
    expect(replaced).toEqual(['NAME', 'UPSTREAM_RELAYER_KEYS'].map(named))
    file = join(directory.path, `m${++serial}.toml`)
    const { out } = await run(init, {
      openapi: specified(hostile(`https://${named('X')}.example.org`)),
    })
    expect(out).toContain('add --upstream')
    const other = { openapi: '3.0.0', paths: { '/\u001b[2J': { $ref: 'b\u009b.yaml' } } }
    const refused = await run(init, { openapi: specified(other) })
    expect(refused.out).toContain('/paths// [2J refers to b .yaml')
  })

  test('attack: a specification chooses no name of the environment whose value it gets', async () => {
    const schemes = {
      secret: { type: 'apiKey', in: 'query', name: `\${HOME_SECRET}` },
      token: { type: 'apiKey', in: 'query', name: 'token' },
    }
    const openapi = specified({
      openapi: '3.0.0',
      info: { title: `\${HOME_SECRET}\u001b[2J`, description: '<'.repeat(100_000) },
      servers: [{ url: 'https://home.example.org' }],
      security: [{ secret: [], token: [] }],
      paths: { "/\ud800${HOME_SECRET}\u001b$(id)'": { get: { summary: `\${HOME_SECRET}` } } },
      components: { securitySchemes: schemes },
    })
    const { code, out } = await run(init, { openapi })
    expect([code, out]).toEqual([0, expect.not.stringContaining('\u001b')])
    expect(out).toMatch(/curl -i '[^']*%1B\$\(id\)%27'$/)
    const config = Bun.inspect(configOf(written(), { env }), { depth: 20 })
    expect(config + out).not.toContain(env.HOME_SECRET)
    // Keys and comments are never replaced.
    const values = written().replace(/"[^"\n]*" = |^# .*$/gm, '')
    const names = [...values.matchAll(/\$\{(\w+)\}/g)].map(([, name]) => name)
    expect([...new Set(names)]).toEqual(['UPSTREAM_HOME_SECRET', 'UPSTREAM_HOME_TOKEN'])
  })

  test('attack: an operation on another server gets no key of the upstream', async () => {
    const elsewhere = [{ url: 'https://evil.example.net' }]
    const hostile = {
      ...{ openapi: '3.1.0', servers: [{ url: 'https://evil.example.net' }] },
      security: [{ key: [] }],
      components: { securitySchemes: { key: { type: 'http', scheme: 'bearer' } } },
      paths: { '/a': { get: {} }, '/b': { get: { servers: elsewhere } } },
    }
    const upstream = 'https://bank.example.org'
    const { out } = await run(init, { openapi: specified(hostile), upstream })
    expect(written()).not.toContain('evil')
    expect(out).toContain('left out: GET /b: its own server https://evil.example.net would get the')
    file = join(directory.path, `m${++serial}.toml`)
    await run(init, { openapi: specified({ ...hostile, security: [] }), upstream })
    expect(merchant()?.routes[1]?.upstream?.host).toBe('evil.example.net')
  })

  test('a Swagger 2 file without a server asks for its upstream', async () => {
    const openapi = specified({
      swagger: '2.0',
      info: { title: 'Old', version: '1' },
      basePath: '/v2',
      paths: {
        '/pet/{id}': {
          post: {
            parameters: [
              { name: 'id', in: 'path', required: true, type: 'integer', format: 'int64' },
              { name: 'body', in: 'body', required: true, schema: { $ref: '#/definitions/Pet' } },
            ],
            responses: { 200: { description: 'ok', schema: { type: 'string' } } },
          },
        },
      },
      definitions: { Pet: { type: 'object', required: ['name'], properties: { name: {} } } },
    })
    const { code, out } = await run(init, { openapi })
    expect([code, out]).toEqual([2, expect.stringContaining('add --upstream')])
    expect(existsSync(file)).toBe(false)
    const made = await run(init, { openapi, upstream: 'https://old.example.org/v2' })
    expect(made.code).toBe(0)
    expect(made.out).toEndWith('curl -i -X POST http://localhost:4020/m/old/post-pet-id/1')
    expect(merchant()?.routes[0]).toMatchObject({
      upstreamPath: '/v2/pet/{tail}',
      bodyRequired: true,
      body: { required: ['name'] },
      params: [{ name: 'id', in: 'tail', schema: { type: 'integer' } }],
    })
  })

  test('a server is asked for its specification, and relative paths begin there', async () => {
    const server = Bun.serve({
      port: 0,
      fetch: ({ url }) =>
        new URL(url).pathname === '/moved'
          ? Response.redirect('/spec.json')
          : Response.json({
              openapi: '3.0.1',
              servers: [{ url: '/api' }],
              paths: { '/items/': { get: { responses: {} } } },
            }),
    })
    try {
      const { code } = await run(init, { openapi: `${server.url}spec.json` })
      expect([code, merchant()?.upstream?.port]).toEqual([0, String(server.port)])
      const sold = merchant()
      const match = sold && Route.match(Route.compile([sold]), `/m/${sold.slug}/items`)
      expect(match?.target && Route.upstreamUrl(match.target, '', '').pathname).toBe('/api/items/')
      file += '2'
      const moved = await run(init, { openapi: `${server.url}moved` })
      expect(moved.out).toContain(`leads to ${server.url}spec.json: name that one`)
    } finally {
      await server.stop(true)
    }
  })

  const deep = `{"openapi":"3.0.0","paths":${'{"a":'.repeat(300)}1${'}'.repeat(300)}}`
  const bomb = ['b', 'c', 'd', 'e', 'f', 'g', 'h', 'i'].map(
    (name, at) => `${name}: &${name} [${Array(9).fill(`*${'abcdefgh'[at]}`)}]`,
  )
  for (const [name, text, message] of [
    ['JSON with a fault', '{"openapi": "3.0.0",\n "paths": {,}}', /spec\d+:2: /],
    ['YAML with a fault', 'openapi: 3.0.0\npaths:\n  - [a', /spec\d+:3: /],
    ['no specification', 'asyncapi: 2.0.0', /has neither openapi: 3/],
    ['another version', 'openapi: 4.0.0', /has neither openapi: 3/],
    ['many levels', deep, /more than 200 levels at \/paths\/a\/a/],
    [
      'a bomb of aliases',
      `openapi: 3.0.0\na: &a [x]\n${bomb.join('\n')}`,
      /aliases too often|over 3000000 values/,
    ],
    ['an alias in itself', 'openapi: 3.0.0\na: &a\n  b: *a', /more than 200 levels|cannot be read/],
    [
      'a reference to another host',
      'openapi: 3.0.0\npaths: { /a: { $ref: "https://evil.example/a.json" } }',
      /\/paths\/~?1?\/?a refers to https:\/\/evil\.example\/a\.json, and other files and hosts are never/,
    ],
    [
      'a reference to another file',
      'openapi: 3.0.0\npaths: { /a: { get: { parameters: [{ $ref: ../../etc/passwd }] } } }',
      /parameters\/0 refers to \.\.\/\.\.\/etc\/passwd/,
    ],
    [
      'no operation',
      'openapi: 3.0.0\npaths: {}\nservers: [{ url: "https://a.example.org" }]',
      /has no operation/,
    ],
  ] as const)
    test(`error: ${name} is refused with its place, and nothing is written`, async () => {
      const { code, out } = await run(init, { openapi: specified(text) })
      expect(out).toMatch(message)
      expect([code > 0, existsSync(file)]).toEqual([true, false])
    })

  for (const [rule, message] of [
    ['/nothing=1', '--price-for /nothing fits no operation'],
    ['/pets', '--price-for must be PATTERN=PRICE'],
    ['/pets=free', '--price-for must be a decimal number'],
  ] as const)
    test(`error: --price-for ${rule} is refused`, async () => {
      const { code, out } = await run(init, { openapi: specified(shop), 'price-for': rule })
      expect([code, out, existsSync(file)]).toEqual([2, expect.stringContaining(message), false])
    })
})

describe('check --openapi', () => {
  test('a file that init wrote has no drift', async () => {
    const openapi = specified(shop)
    await run(init, { openapi })
    const { code, out } = await run(check, { openapi })
    expect([code, out]).toEqual([0, expect.not.stringContaining('not sold')])
  })

  test('routes that the specification has not, or not so, are faults, and new operations are listed', async () => {
    await run(init, { openapi: specified(shop) })
    const changed = shop
      .replace('name: limit, in', 'name: most, in')
      .replace('/pets/{petId}/:', '/pets/{petId}/all:')
    const { code, out } = await run(check, { openapi: specified(changed) })
    const lines = out.split('\n').map((line) => line.replace(/^\S*:\d+: /, ''))
    expect(lines).toEqual([
      'eu/pets does not require the parameter most, which GET /pets requires',
      'eu/pets has the parameter limit, which GET /pets has not',
      'eu/delete-pets-petId asks for DELETE /v1/pets/{}/, which the specification has not',
      '3 faults',
    ])
    expect(code).toBe(1)
    const more = shop.replace('/elsewhere: {', '/new: { get: { responses: {} } }\n  /elsewhere: {')
    const listed = await run(check, { openapi: specified(more) })
    expect([listed.code, listed.out]).toEqual([0, expect.stringContaining('not sold   GET /new')])
  })

  test('a route of every path sells all operations', async () => {
    await run(init, { upstream: 'https://eu.shop.example.org/v1' })
    const { code, out } = await run(check, { openapi: specified(shop) })
    expect(code).toBe(0)
    expect(out).toContain('not sold   DELETE /pets/{petId}/')
    expect(out).not.toContain('not sold   GET /pets')
  })
})
