import { describe, expect, test } from 'bun:test'
import { join } from 'node:path'
import { idleMs, longestMs } from '../../src/web/admin/sessions'
import { adminPages, cookieOf, formHeaders, isIn, token } from '../harness/admin'
import * as Sources from '../harness/sources'

describe('signing in', () => {
  test('without a session there is only the form, and no cookie', async () => {
    const answer = await adminPages().get('/admin')
    expect(answer.status).toBe(200)
    expect(answer.headers.get('set-cookie')).toBeNull()
    const text = await answer.text()
    expect(text).toContain('<form method="post" action="/admin">')
    expect(text).not.toContain('What needs attention')
  })

  test('the token opens a session, whose cookie opens the pages', async () => {
    const app = adminPages()
    const answer = await app.post('/admin', { token })
    expect([answer.status, answer.headers.get('location')]).toEqual([303, '/admin'])
    expect(answer.headers.get('set-cookie')).toMatch(
      /^__Secure-turnpike-admin=[\w-]{43}; Path=\/admin; HttpOnly; SameSite=Strict; Secure; Max-Age=43200$/,
    )
    expect(await isIn(await app.get('/admin', { cookie: cookieOf(answer) }))).toBe(true)
    // Other cookies of the site do not matter.
    const cookie = `a=b; ${cookieOf(answer)}; c=d`
    expect(await isIn(await app.get('/admin', { cookie }))).toBe(true)
  })

  test('a program reads with the Bearer token, and gets no cookie', async () => {
    const app = adminPages()
    for (const scheme of ['Bearer', 'bearer']) {
      const answer = await app.get('/admin', { authorization: `${scheme} ${token}` })
      expect([answer.status, answer.headers.get('set-cookie')]).toEqual([200, null])
      expect(await isIn(answer)).toBe(true)
    }
  })

  test('error: a wrong token of any form is refused', async () => {
    const wrong = ['', 'x', `${token}x`, token.slice(1), token.toUpperCase(), 'x'.repeat(4000)]
    for (const guess of wrong) {
      const app = adminPages()
      const byHeader = await app.get('/admin', { authorization: `Bearer ${guess}` })
      expect(byHeader.status).toBe(401)
      expect(byHeader.headers.get('www-authenticate')).toContain('Bearer')
      const byForm = await app.post('/admin', { token: guess })
      expect([byForm.status, byForm.headers.get('set-cookie')]).toEqual([401, null])
      expect(await isIn(byForm)).toBe(false)
    }
    expect((await adminPages().get('/admin', { authorization: 'Payment abc' })).status).toBe(401)
  })

  test('error: a Bearer token changes nothing', async () => {
    const app = adminPages()
    const { cookie } = await app.signIn()
    const answer = await app.post('/admin/sign-out', {}, { authorization: `Bearer ${token}` })
    expect([answer.status, answer.headers.get('location')]).toEqual([303, '/admin'])
    expect(await isIn(await app.get('/admin', { cookie }))).toBe(true)
  })

  test('error: a big form and one of another content type are refused', async () => {
    const app = adminPages()
    const big = await app.post('/admin', { token: 'x'.repeat(5000) })
    expect(big.status).toBe(413)
    const body = JSON.stringify({ token })
    for (const type of ['application/json', 'multipart/form-data; boundary=x', 'text/plain', '']) {
      const headers = { ...formHeaders, 'content-type': type }
      const answer = await app.send('/admin', { method: 'POST', body, headers })
      expect([type, answer.status]).toEqual([type, 415])
    }
    const packed = { 'content-encoding': 'gzip' }
    expect((await app.post('/admin', { token }, packed)).status).toBe(415)
  })
})

describe('brute force', () => {
  test('error: guesses of one address are limited, and then its right token is refused, too', async () => {
    const app = adminPages()
    for (let i = 0; i < 10; i++) expect((await app.post('/admin', { token: 'x' })).status).toBe(401)
    const refused = await app.post('/admin', { token })
    expect(refused.status).toBe(429)
    expect(refused.headers.get('retry-after')).not.toBeNull()
    const byHeader = await app.get('/admin', { authorization: `Bearer ${token}` })
    expect(byHeader.status).toBe(429)
    app.state.address = '192.0.2.2'
    expect((await app.post('/admin', { token })).status).toBe(303)
    app.state.address = '192.0.2.1'
    app.state.now += 60_000
    expect((await app.post('/admin', { token })).status).toBe(303)
  })

  test('attack: guesses of all addresses are limited, and the right token is not', async () => {
    const app = adminPages()
    const guess = async (i: number) => {
      app.state.address = `192.0.2.${i}`
      return (await app.get('/admin', { authorization: 'Bearer guess' })).status
    }
    for (let i = 0; i < 120; i++) expect(await guess(i)).toBe(401)
    expect(await guess(120)).toBe(429)
    app.state.address = '203.0.113.9'
    expect((await app.post('/admin', { token })).status).toBe(303)
    const authorization = `Bearer ${token}`
    expect((await app.get('/admin', { authorization })).status).toBe(200)
  })

  test('error: right tokens do not count as guesses', async () => {
    const app = adminPages()
    for (let i = 0; i < 40; i++)
      expect((await app.get('/admin', { authorization: `Bearer ${token}` })).status).toBe(200)
  })

  test('error: tokens and secrets of forms are compared by their digests', async () => {
    const all = await Sources.read(join(import.meta.dir, '../..'))
    const own = all.filter(({ path }) => path.startsWith('src/web/admin/'))
    expect(own.length).toBeGreaterThan(5)
    const compared = /\b(token|adminToken|csrf|tokenHash|value)\s*[!=]==(?!\s*undefined\b)/
    for (const { path, code } of own)
      expect([path, code.split('\n').filter((line) => compared.test(line))]).toEqual([path, []])
  })
})

describe('sessions', () => {
  test('error: a cookie that was there before is not the one of the session', async () => {
    const app = adminPages()
    const chosen = `__Secure-turnpike-admin=${'A'.repeat(43)}`
    const answer = await app.post('/admin', { token }, { cookie: chosen })
    expect(cookieOf(answer)).not.toBe(chosen)
    expect(await isIn(await app.get('/admin', { cookie: chosen }))).toBe(false)
    // Signing in again ends the session that the browser had.
    const first = cookieOf(answer)
    const second = cookieOf(await app.post('/admin', { token }, { cookie: first }))
    expect(await isIn(await app.get('/admin', { cookie: first }))).toBe(false)
    expect(await isIn(await app.get('/admin', { cookie: second }))).toBe(true)
  })

  test('a session ends without use, and after its longest time', async () => {
    const app = adminPages()
    const { cookie } = await app.signIn()
    const start = app.state.now
    app.state.now += idleMs - 1
    expect(await isIn(await app.get('/admin', { cookie }))).toBe(true)
    app.state.now += idleMs
    expect(await isIn(await app.get('/admin', { cookie }))).toBe(false)
    app.state.now = start
    const again = await app.signIn()
    for (; app.state.now < start + longestMs - idleMs; app.state.now += idleMs - 1)
      expect(await isIn(await app.get('/admin', again))).toBe(true)
    app.state.now = start + longestMs
    expect(await isIn(await app.get('/admin', again))).toBe(false)
  })

  test('attack: a clock that was set back before the session ends it', async () => {
    const app = adminPages()
    const { cookie } = await app.signIn()
    app.state.now--
    expect(await isIn(await app.get('/admin', { cookie }))).toBe(false)
  })

  test('signing out ends this session, and everywhere ends all', async () => {
    const app = adminPages()
    const [one, two, three] = [await app.signIn(), await app.signIn(), await app.signIn()]
    const answer = await app.post('/admin/sign-out', { csrf: one.csrf, where: 'here' }, one)
    expect(answer.headers.get('set-cookie')).toContain('=; Path=/admin; HttpOnly')
    expect(answer.headers.get('set-cookie')).toContain('Max-Age=0')
    expect(await isIn(await app.get('/admin', one))).toBe(false)
    expect(await isIn(await app.get('/admin', two))).toBe(true)
    await app.post('/admin/sign-out', { csrf: two.csrf, where: 'everywhere' }, two)
    for (const each of [two, three]) expect(await isIn(await app.get('/admin', each))).toBe(false)
  })

  test('another ADMIN_TOKEN ends all sessions', async () => {
    const app = adminPages()
    const { cookie } = await app.signIn()
    const same = adminPages({ sessions: app.sessions })
    expect(await isIn(await same.get('/admin', { cookie }))).toBe(true)
    const changed = adminPages({ sessions: app.sessions, adminToken: 'another-token-of-16' })
    expect(await isIn(await changed.get('/admin', { cookie }))).toBe(false)
    expect(await isIn(await same.get('/admin', { cookie }))).toBe(false)
  })

  test('error: the log has no token and no cookie', async () => {
    const app = adminPages()
    const { cookie, csrf } = await app.signIn()
    await app.post('/admin', { token: 'a-wrong-token' })
    await app.post('/admin/sign-out', { csrf: 'wrong' }, { cookie })
    await app.post('/admin/sign-out', { csrf, where: 'here' }, { cookie })
    const text = app.logged.join('\n')
    const events = app.logged.map((line) => JSON.parse(line).event)
    expect(events).toEqual([
      'admin-signed-in',
      'admin-refused',
      'admin-refused',
      'admin-signed-out',
    ])
    for (const secret of [cookie.split('=')[1] ?? '', csrf, token, 'a-wrong-token'])
      expect(text).not.toContain(secret)
  })
})

describe('forms of other sites', () => {
  test('error: a form without the secret of the session, or with that of another one, is refused', async () => {
    const app = adminPages()
    const [mine, other] = [await app.signIn(), await app.signIn()]
    for (const csrf of [undefined, '', 'x', other.csrf, mine.csrf.slice(1), `${mine.csrf}x`]) {
      const fields = { where: 'here', ...(csrf === undefined ? {} : { csrf }) }
      const answer = await app.post('/admin/sign-out', fields, { cookie: mine.cookie })
      expect(answer.status).toBe(403)
    }
    expect(await isIn(await app.get('/admin', mine))).toBe(true)
  })

  test('error: a form that another site sends is refused, with the right secret, too', async () => {
    const app = adminPages()
    const { cookie, csrf } = await app.signIn()
    const strange: readonly Record<string, string>[] = [
      { origin: 'https://evil.example', 'sec-fetch-site': 'cross-site' },
      { origin: 'https://evil.example', 'sec-fetch-site': 'same-origin' },
      { origin: 'https://shop.pay.example.com', 'sec-fetch-site': 'same-site' },
      { origin: 'null', 'sec-fetch-site': 'cross-site' },
      { origin: 'null', 'sec-fetch-site': 'none' },
      { origin: 'http://pay.example.com', 'sec-fetch-site': '' },
    ]
    for (const headers of strange) {
      const signOut = { csrf, where: 'here' }
      const answer = await app.post('/admin/sign-out', signOut, { ...headers, cookie })
      expect([headers, answer.status]).toEqual([headers, 403])
      expect((await app.post('/admin', { token }, headers)).status).toBe(403)
    }
    const bare = { 'content-type': 'application/x-www-form-urlencoded', cookie }
    const body = `csrf=${csrf}&where=here`
    const without = await app.send('/admin/sign-out', { method: 'POST', body, headers: bare })
    expect(without.status).toBe(403)
    expect(await isIn(await app.get('/admin', { cookie }))).toBe(true)
  })

  test('an older browser is known by its origin', async () => {
    const app = adminPages()
    const { 'sec-fetch-site': _, ...old } = formHeaders
    const body = `token=${token}`
    for (const [origin, status] of [
      ['https://pay.example.com', 303],
      ['http://localhost', 303],
      ['http://localhost:81', 403],
      ['https://pay.example.com.evil.example', 403],
      ['null', 403],
    ] as const) {
      const headers = { ...old, origin }
      const answer = await app.send('/admin', { method: 'POST', body, headers })
      expect([origin, answer.status]).toEqual([origin, status])
    }
  })
})

describe('without TLS', () => {
  const local = { baseUrl: 'http://localhost:4020' }

  test('on this machine the cookie is plain', async () => {
    const app = adminPages(local)
    for (const address of ['127.0.0.1', '::1', '::ffff:127.0.0.1']) {
      app.state.address = address
      const answer = await app.post('/admin', { token })
      expect(answer.headers.get('set-cookie')).toMatch(
        /^turnpike-admin=[\w-]{43}; Path=\/admin; HttpOnly; SameSite=Strict; Max-Age=43200$/,
      )
      expect(await isIn(await app.get('/admin', { cookie: cookieOf(answer) }))).toBe(true)
    }
  })

  test('error: another machine cannot sign in without TLS, and the page says why instead of a form', async () => {
    const cases: readonly [baseUrl: string, address: string, headers: Record<string, string>][] = [
      ['http://localhost:4020', '192.0.2.1', {}],
      ['http://localhost:4020', '127.0.0.1', { host: 'shop.example.com' }],
      ['http://localhost:4020', '127.0.0.1', { 'x-forwarded-for': '192.0.2.1' }],
      ['http://localhost:4020', '127.0.0.1', { forwarded: 'for=192.0.2.1' }],
      ['http://shop.example.com', '127.0.0.1', {}],
    ]
    for (const [baseUrl, address, headers] of cases) {
      const app = adminPages({ baseUrl })
      app.state.address = address
      const answer = await app.post('/admin', { token }, headers)
      expect([baseUrl, address, headers, answer.status]).toEqual([baseUrl, address, headers, 403])
      expect(answer.headers.get('set-cookie')).toBeNull()
      const shown = await (await app.get('/admin', { host: 'localhost', ...headers })).text()
      expect(shown).toContain('Signing in needs TLS')
      expect(shown).not.toContain('type="password"')
      expect(app.logged.join()).toContain('no-tls')
    }
  })
})

describe('headers', () => {
  test('no answer may be stored, framed, scripted or named to other sites', async () => {
    const app = adminPages()
    const { cookie, csrf } = await app.signIn()
    const answers = [
      await app.get('/admin'),
      await app.get('/admin', { cookie }),
      await app.get('/admin', { authorization: 'Bearer wrong' }),
      await app.post('/admin', { token: 'wrong' }),
      await app.post('/admin', { token }),
      await app.post('/admin/sign-out', { csrf: 'wrong' }, { cookie }),
      await app.post('/admin', { token: 'x'.repeat(5000) }),
      await app.post('/admin/sign-out', { csrf, where: 'everywhere' }, { cookie }),
    ]
    expect(answers.map(({ status }) => status)).toEqual([200, 200, 401, 401, 303, 403, 413, 303])
    for (const { headers } of answers) {
      expect(headers.get('cache-control')).toBe('no-store')
      expect(headers.get('x-frame-options')).toBe('DENY')
      expect(headers.get('referrer-policy')).toBe('no-referrer')
      expect(headers.get('x-content-type-options')).toBe('nosniff')
      expect(headers.get('etag')).toBeNull()
      // The length of a compressed text shows what it has in common with the request (BREACH).
      expect(headers.get('content-encoding')).toBeNull()
      expect(headers.get('access-control-allow-origin')).toBeNull()
      const policy = headers.get('content-security-policy') ?? ''
      expect(policy).toContain("default-src 'none'")
      expect(policy).toContain("frame-ancestors 'none'")
      expect(policy).not.toMatch(/script-src|unsafe|https?:/)
    }
  })
})
