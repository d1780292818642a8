import { describe, expect, test } from 'bun:test'
import * as Route from '../src/proxy/Route'
import { merchant, route } from './harness/merchants'

/** The pathname of a request, after Bun's own URL parsing. */
function received(path: string): string {
  return new URL(`http://localhost${path}`).pathname
}

describe('canonicalize', () => {
  const kept = [
    '/m/weather/forecast',
    '/m/wiki/summary/AC%2FDC',
    '/m/crypto-prices/current/coingecko:bitcoin,ethereum:0xdF574c24545E5FfEcb9a659c229253D4111d87e1',
    '/m/fx/historical/2024-01-01..2024-02-01',
    '/m/fx/historical/2024-01-01..',
    '/m/books/work/works/OL45804W.json',
    '/m/wiki/summary/Caf%C3%A9',
    '/m/wiki/summary/...',
    '/m/wiki/summary/.hidden',
    '/m/wiki/summary/100%25',
    '/m/wiki/summary/AC%252FDC',
    '/m/wiki/summary/a@b;c=d',
    '/m/wiki/summary/What%3F',
    '/m/wiki/summary/%23hash',
    '/',
  ]
  test.each(kept)('behavior: %s is its own canonical form', (path) => {
    expect(Route.canonicalize(received(path))).toBe(path)
  })

  const changed: [string, string][] = [
    ['/m/we%61ther/forec%61st', '/m/weather/forecast'],
    ['/m/wiki/summary/%7euser%2d', '/m/wiki/summary/~user-'],
    ['/m/wiki/summary/ac%2fdc', '/m/wiki/summary/ac%2Fdc'],
    ['/m/weather/forecast/', '/m/weather/forecast'],
    ['/m/wiki/summary/caf%c3%a9', '/m/wiki/summary/caf%C3%A9'],
    ['/m/x/../weather/forecast', '/m/weather/forecast'],
    ['/m/wiki/summary/2%2e5', '/m/wiki/summary/2.5'],
  ]
  test.each(changed)('behavior: %s becomes %s', (path, canonical) => {
    expect(Route.canonicalize(received(path))).toBe(canonical)
  })

  const hostile: [string, string][] = [
    ['//evil.example/x', 'an empty first segment'],
    ['/m//weather', 'an empty segment'],
    ['/m/weather/forecast//', 'an empty last segment'],
    ['/m/weather/..%2fadmin', 'an encoded slash after dots'],
    ['/m/weather/..%20/admin', 'dots and a blank'],
    ['/m/weather/%20.%20./admin', 'dots among blanks'],
    ['/m/weather/..%C2%A0', 'dots and a blank that does not break'],
    ['/m/weather/..%2520%2fadmin', 'dots and a blank encoded twice'],
    ['/m/weather/%2e%2e%2fadmin', 'dots and slash encoded'],
    ['/m/weather/%2E%2E%2Fadmin', 'dots and slash encoded in upper case'],
    ['/m/weather/x%2f..', 'dots after an encoded slash'],
    ['/m/weather/x%2f.%2fy', 'one dot between encoded slashes'],
    ['/m/weather/%252e%252e', 'dots encoded twice'],
    ['/m/weather/%252e%252e%252fadmin', 'dots and slash encoded twice'],
    ['/m/weather/%25252e%25252e', 'dots encoded three times'],
    ['/m/weather/%252e%252e%252f%25zz', 'dots before what is no encoding'],
    ['/m/weather/%2525252525252e', 'encoded more often than is looked at'],
    ['/m/weather/..;/admin', 'dots with a path parameter'],
    ['/m/weather/..;a=b/admin', 'dots with a path parameter value'],
    ['/m/weather/%2e%2e;/admin', 'encoded dots with a path parameter'],
    ['/m/weather/%EF%BC%8E%EF%BC%8E/admin', 'full-width dots'],
    ['/m/weather/%E2%80%A5/admin', 'a two-dot leader'],
    ['/m/weather/%5c..%5cadmin', 'an encoded backslash'],
    ['/m/weather/x%5Cy', 'an encoded backslash in upper case'],
    ['/m/weather/%255c', 'a backslash encoded twice'],
    ['/m/weather/%00', 'a null character'],
    ['/m/weather/x%0d%0aHost:%20evil', 'a line break'],
    ['/m/weather/x%09y', 'a tab'],
    ['/m/weather/x%7f', 'a delete character'],
    ['/m/weather/%c2%85', 'a C1 control character'],
    ['/m/weather/%e2%80%a8', 'a line separator'],
    ['/m/weather/%e2%80%a9', 'a paragraph separator'],
    ['/m/weather/%', 'a lone percent'],
    ['/m/weather/%2', 'half an encoding'],
    ['/m/weather/%zz', 'no hexadecimal digits'],
    ['/m/weather/%u002e', 'an encoding of old browsers'],
    ['/m/weather/%ff', 'invalid UTF-8'],
    ['/m/weather/%c0%ae%c0%ae', 'overlong UTF-8 dots'],
    ['/m/weather/%ed%a0%80', 'a lone surrogate'],
    ['/m/weather/%e2%80', 'UTF-8 that ends early'],
  ]
  test.each(hostile)('error: %s (%s) has no canonical form', (path) => {
    expect(Route.canonicalize(received(path))).toBeUndefined()
  })

  const raw = [
    '',
    'm/weather',
    '*',
    '/m/we ather',
    '/m/\\x',
    '/m/../x',
    '/m/./x',
    '/m/..',
    '/m/\u00e9',
    '/m/a\nb',
  ]
  test.each(raw)('error: %j, which no URL parser returns, is refused', (path) => {
    expect(Route.canonicalize(path)).toBeUndefined()
  })

  test('behavior: a canonical form is its own canonical form', () => {
    for (const [, path] of changed) expect(Route.canonicalize(path)).toBe(path)
  })
})

describe('match', () => {
  const chainscan = merchant('chainscan', {
    routes: [
      route('/token'),
      route('/token/stats', { tail: 'none' }),
      route('/address', { tail: 'required' }),
      route('/tx/latest/raw'),
    ],
  })
  const matcher = Route.compile([chainscan, merchant('root', { routes: [route('/')] })])
  const found = (path: string) => {
    const result = Route.match(matcher, path)
    return result && `${result.route.path} + ${result.tail}`
  }
  const cases: [string, string | undefined][] = [
    ['/m/chainscan/token', '/token + '],
    ['/m/chainscan/token/0xabc/holders', '/token + 0xabc/holders'],
    ['/m/chainscan/token/AC%2FDC', '/token + AC%2FDC'],
    ['/m/chainscan/token/stats', '/token/stats + '],
    ['/m/chainscan/token/stats/x', undefined],
    ['/m/chainscan/tokens', undefined],
    ['/m/chainscan/token%2Fstats', undefined],
    ['/m/chainscan/Token', undefined],
    ['/m/chainscan/token;x', undefined],
    ['/m/chainscan/address', undefined],
    ['/m/chainscan/address/0xabc', '/address + 0xabc'],
    ['/m/chainscan/tx', undefined],
    ['/m/chainscan/tx/latest', undefined],
    ['/m/chainscan/tx/latest/raw', '/tx/latest/raw + '],
    ['/m/chainscan', undefined],
    ['/m/root', '/ + '],
    ['/m/root/anything/else', '/ + anything/else'],
    ['/m/other/token', undefined],
    ['/m/__proto__/token', undefined],
    ['/m/chainscan/constructor', undefined],
    ['/x/chainscan/token', undefined],
    ['/m', undefined],
    ['/', undefined],
  ]
  test.each(cases)('behavior: %s is %s', (path, expected) => {
    expect(found(path)).toBe(expected)
  })

  test('error: a slug or a route that appears twice does not compile', () => {
    expect(() => Route.compile([merchant('a'), merchant('a')])).toThrow('twice')
    const twice = merchant('a', { routes: [route('/x'), route('/x')] })
    expect(() => Route.compile([twice])).toThrow('twice')
  })
})

describe('upstreamUrl', () => {
  const url = (fields: Parameters<typeof route>[1], path: string, search = '', base = '') => {
    const upstream = new URL(`https://api.example.com${base}`)
    const matcher = Route.compile([merchant('m', { upstream, routes: [route('/r', fields)] })])
    const match = Route.match(matcher, path)
    if (match?.target === undefined) throw new Error('no match')
    return Route.upstreamUrl(match.target, match.tail, search).href
  }
  test('behavior: the tail is appended, or placed where the upstream path says', () => {
    expect(url({}, '/m/m/r')).toBe('https://api.example.com/r')
    expect(url({ upstreamPath: '/v1/x' }, '/m/m/r/a/b')).toBe('https://api.example.com/v1/x/a/b')
    expect(url({ upstreamPath: '/CIK{tail}' }, '/m/m/r/0001.json')).toBe(
      'https://api.example.com/CIK0001.json',
    )
    expect(url({ upstreamPath: '/c/{tail}' }, '/m/m/r')).toBe('https://api.example.com/c')
    expect(url({ upstreamPath: '/c/{tail}/d' }, '/m/m/r')).toBe('https://api.example.com/c/d')
    expect(url({ upstreamPath: '/c/{tail}/d' }, '/m/m/r/x')).toBe('https://api.example.com/c/x/d')
    expect(url({ upstreamPath: '/{tail}' }, '/m/m/r')).toBe('https://api.example.com/')
    expect(url({}, '/m/m/r/x', '', '/base/v2/')).toBe('https://api.example.com/base/v2/r/x')
    const upstream = new URL('https://other.example.com:8443')
    expect(url({ upstream }, '/m/m/r/x')).toBe('https://other.example.com:8443/r/x')
  })

  test('behavior: special characters of a URL stay part of the path', () => {
    for (const tail of ['AC%2FDC', 'a@evil.example', 'x:80', '%3Fq=1', '%23x', 'a;b', '%2F%2Fevil'])
      expect(url({}, `/m/m/r/${tail}`)).toBe(`https://api.example.com/r/${tail}`)
  })

  test('behavior: the query is forwarded byte for byte', () => {
    for (const search of [
      '?page[size]=2&page%5Bsize%5D=3',
      '?a=1&a=2&b',
      '?x=%zz&&=',
      '?q=a+b%20c',
      '?',
    ])
      expect(url({}, '/m/m/r', search)).toBe(`https://api.example.com/r${search}`)
  })

  test('behavior: a default is added unless the buyer has set the name in any spelling', () => {
    const query = { format: 'json', 'page[size]': '10' }
    expect(url({ query }, '/m/m/r')).toBe('https://api.example.com/r?format=json&page%5Bsize%5D=10')
    expect(url({ query }, '/m/m/r', '?z=1&form%61t=xml&page[size]=5')).toBe(
      'https://api.example.com/r?z=1&form%61t=xml&page[size]=5',
    )
  })

  test('behavior: a fixed value replaces every spelling of the buyer', () => {
    const fixedQuery = { key: 'k&y' }
    expect(url({ fixedQuery }, '/m/m/r', '?a=1&key=mine&k%65y=mine&b=2')).toBe(
      'https://api.example.com/r?a=1&b=2&key=k%26y',
    )
    expect(url({ fixedQuery }, '/m/m/r', '?a=1;key=mine')).toBe(
      'https://api.example.com/r?key=k%26y',
    )
  })

  test('error: a tail that would leave the configured path throws', () => {
    const matcher = Route.compile([merchant('m', { routes: [route('/r')] })])
    const target = Route.match(matcher, '/m/m/r')?.target
    if (target === undefined) throw new Error('no match')
    for (const tail of ['../x', '..', '%2e%2e/x', '\\..\\..\\x', 'x#y'])
      expect(() => Route.upstreamUrl(target, tail, '')).toThrow('would leave')
  })
})

describe('a route of every path beside others', () => {
  const routes = [route(''), route('/report'), route('/v1/Full.Report')]
  const matcher = Route.compile([
    merchant('m', { routes }),
    merchant('one', { routes: [route('')] }),
  ])
  const soldBy = (path: string) => {
    const canonical = Route.canonicalize(received(path))
    return canonical && Route.match(matcher, canonical)?.route.path
  }

  test.each([
    '/m/m/Report',
    '/m/m/REPORT/2026',
    '/m/m/report;a=1',
    '/m/m/report.',
    '/m/m/report%20',
    '/m/m/report%2F',
    '/m/m/%2Freport',
    '/m/m/report%3Fa=1',
    '/m/m/report%23',
    '/m/m/%2572eport',
    '/m/m/%EF%BD%92eport',
    '/m/m/v1/full.report',
    '/m/m/v1%2FFull.Report',
    '/m/m/V1/Full.Report/x',
  ])('attack: %s does not buy another route at the price of every path', (path) => {
    expect(soldBy(path)).toBeUndefined()
  })

  test('behavior: other paths are sold, also where there is no other route', () => {
    expect(
      ['', '/reports', '/v1', '/v1/full', '/2/report'].map((tail) => soldBy(`/m/m${tail}`)),
    ).toEqual(['', '', '', '', ''])
    expect(soldBy('/m/one/Report')).toBe('')
    expect(soldBy('/m/m/report')).toBe('/report')
    expect(soldBy('/m/m/v1/Full.Report/x')).toBe('/v1/Full.Report')
  })
})
