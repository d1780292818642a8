import { describe, expect, test } from 'bun:test'
import { createMetricsHandler } from '../../src/app/handlers'
import { createRegistry } from '../../src/http/metrics'
import { createRateLimit } from '../../src/http/rate-limit'
import * as Problem from '../../src/protocol/Problem'
import { all } from '../../src/protocol/ProblemMeaning'
import { createProblemPages } from '../../src/web/public/problems'
import { configOf, linesOf, small } from '../harness/config'

/** What operators read: who may read the metrics, and the pages of problems. */

const base = 'https://pay.example.com'
const get = (path: string, headers: Record<string, string> = {}) =>
  new Request(base + path, { headers })

/** The problem that a call throws. */
function refusal(run: () => unknown): Problem.ProblemError {
  try {
    run()
  } catch (error) {
    if (error instanceof Problem.ProblemError) return error
    throw error
  }
  throw new Error('it was not refused')
}

describe('/metrics', () => {
  const adminToken = 'correct-admin-token'
  const peerOf = () => Object.assign(() => '192.0.2.1', { hold: () => undefined })
  const handler = (line: string) => {
    const text = line.startsWith('base_url') ? small.replace(/^base_url.*\n/m, '') : small
    const { service } = configOf(text.replace('[service]', `[service]\n${line}`))
    const registry = createRegistry()
    registry.counter('sold_total', 'Sales.').inc()
    return createMetricsHandler({
      service,
      registry,
      adminToken,
      peerOf,
      rateLimit: createRateLimit(),
      now: () => 0,
    })
  }
  const bearer = (token: string) => get('/metrics', { authorization: `Bearer ${token}` })

  test('everyone reads the metrics of a service on this machine, and those that are "public"', async () => {
    for (const line of ['base_url = "http://localhost:4020"', 'metrics = "public"'])
      expect(await (await handler(line)(get('/metrics'))).text()).toContain('sold_total 1')
  })

  test.each([
    ['with "token"', 'metrics = "token"'],
    ['of a public service without the key', ''],
  ])('attack: the metrics %s need ADMIN_TOKEN as bearer token', async (_, line) => {
    const read = handler(line)
    expect(await (await read(bearer(adminToken))).text()).toContain('sold_total 1')
    for (const request of [get('/metrics'), bearer('wrong'), bearer(`${adminToken}x`)]) {
      const problem = refusal(() => read(request))
      expect([problem.status, problem.detail]).toEqual([
        401,
        'The metrics need Authorization: Bearer ADMIN_TOKEN.',
      ])
      expect(problem.headers['WWW-Authenticate']).toBe('Bearer realm="metrics"')
    }
  })

  test('attack: guesses of the token are limited', () => {
    const read = handler('metrics = "token"')
    const statuses = Array.from({ length: 200 }, () => refusal(() => read(bearer('guess'))).status)
    expect(statuses.slice(0, 2)).toEqual([401, 401])
    expect(statuses.at(-1)).toBe(429)
    expect(refusal(() => read(bearer(adminToken))).code).toBe('rate-limited')
  })

  test('with "off" there is nothing at the path', () => {
    const read = handler('metrics = "off"')
    expect(refusal(() => read(bearer(adminToken))).status).toBe(404)
  })

  test('error: another value is refused with its line', () => {
    const faults = linesOf(small.replace('[service]', '[service]\nmetrics = "private"'))
    expect(faults).toEqual([
      expect.stringMatching(/^m\.toml:3: metrics .*"public".*"token".*"off"/),
    ])
  })
})

describe('/problems', () => {
  const pages = createProblemPages(configOf(small))
  const browser = { accept: 'text/html,application/xhtml+xml,*/*;q=0.8' }

  test('each code has a page with its meaning and what to do next', async () => {
    expect(all().length).toBeGreaterThan(40)
    for (const { code, title, status, client } of all()) {
      const text = await pages.one(get(`/problems/${code}`), { code }).text()
      expect(text).toStartWith(`${title} (${code}, HTTP status ${status})\n`)
      expect(text).toContain(`\nNext: ${client}\n`)
      const response = pages.one(get(`/problems/${code}`, browser), { code })
      expect(response.headers.get('content-type')).toBe('text/html; charset=utf-8')
      const page = await response.text()
      expect(page).toContain(`<h1>${title}</h1>`)
      expect(page).toContain('What to do next')
      expect(page).not.toContain('`')
    }
  })

  test('the type of each problem of ours is a page, and the types of MPP stay theirs', async () => {
    for (const { code, title } of all()) {
      const { type } = Problem.toJson(Problem.of(code, 'x'), base)
      if (type.startsWith(Problem.mppBase)) continue
      expect(type).toBe(`${base}/problems/${code}`)
      expect(await pages.one(new Request(type), { code }).text()).toContain(title)
    }
    const list = await pages.list(get('/problems')).text()
    for (const { code } of all()) expect(list).toContain(`/problems/${code}\n`)
    expect(await pages.list(get('/problems', browser)).text()).toContain('/problems/not-ready')
  })

  test('a page that the client has is not sent again', async () => {
    const first = pages.one(get('/problems/paused'), { code: 'paused' })
    const tag = first.headers.get('etag') ?? ''
    expect(first.headers.get('vary')).toBe('Accept, Accept-Encoding')
    const again = get('/problems/paused', { 'if-none-match': tag })
    expect(pages.one(again, { code: 'paused' }).status).toBe(304)
    const html = get('/problems/paused', { ...browser, 'if-none-match': tag })
    expect(pages.one(html, { code: 'paused' }).status).toBe(200)
  })

  test('error: an unknown code is 404', () => {
    for (const code of ['nothing', '', 'constructor', '__proto__', '<script>'])
      expect(refusal(() => pages.one(get('/problems/x'), { code })).code).toBe('not-found')
  })
})
