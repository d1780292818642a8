import { describe, expect, test } from 'bun:test'
import { foldName } from '../../src/gateway/Fold'
import * as Route from '../../src/gateway/Route'
import { configOf, small } from '../harness/config'
import { merchant, param, route } from '../harness/merchants'

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
  test.each(kept)('%s is its own canonical form', (path) => {
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
  test.each(changed)('%s becomes %s', (path, canonical) => {
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

  test('a canonical form is its own canonical form', () => {
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
  test.each(cases)('%s is %s', (path, expected) => {
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
  test('the tail is appended, or placed where the upstream path says', () => {
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

  test('special characters of a URL stay part of the path', () => {
    for (const tail of ['AC%2FDC', 'a@evil.example', 'x:80', '%3Fq=1', '%23x', 'a;b', '%2F%2Fevil'])
      expect(url({}, `/m/m/r/${tail}`)).toBe(`https://api.example.com/r/${tail}`)
  })

  test('the query is forwarded byte for byte', () => {
    for (const search of [
      '?page[size]=2&page%5Bsize%5D=3',
      '?a=1&a=2&b',
      '?x=%zz&&=',
      '?q=a+b%20c',
      '?',
    ])
      expect(url({}, '/m/m/r', search)).toBe(`https://api.example.com/r${search}`)
  })

  test('a default is added unless the buyer has set the name in any spelling', () => {
    const query = { format: 'json', 'page[size]': '10' }
    expect(url({ query }, '/m/m/r')).toBe('https://api.example.com/r?format=json&page%5Bsize%5D=10')
    expect(url({ query }, '/m/m/r', '?z=1&form%61t=xml&page[size]=5')).toBe(
      'https://api.example.com/r?z=1&form%61t=xml&page[size]=5',
    )
  })

  test('a fixed value replaces every spelling of the buyer', () => {
    const fixedQuery = { key: 'k&y' }
    expect(url({ fixedQuery }, '/m/m/r', '?a=1&key=mine&k%65y=mine&b=2')).toBe(
      'https://api.example.com/r?a=1&b=2&key=k%26y',
    )
    expect(url({ fixedQuery }, '/m/m/r', '?a=1;key=mine')).toBe(
      'https://api.example.com/r?key=k%26y',
    )
  })

  const fixed = { limit: '10', 'page[size]': '5', per_page: '7' }
  test.each([
    'limit=9999',
    'LIMIT=9999',
    'limit[]=9999',
    'limit%5B0%5D=9999',
    'limit[a][b]=9999',
    '[limit]=9999',
    'limit.x=9999',
    'limit:int=9999',
    '%6cimit=9999',
    '%256cimit=9999',
    '+limit=9999',
    'limit%00=9999',
    'l%EF%BD%89mit=9999',
    'limit;x=9999',
    'page=9999',
    'PAGE[Size]=9999',
    'page[size][]=9999',
    'page.size=9999',
    'per.page=9999',
    'per+page=9999',
    'per[page=9999',
  ])('attack: ?%s does not set what the route fixes', (search) => {
    expect(url({ fixedQuery: fixed }, '/m/m/r', `?a=1&${search}&b=2`)).toBe(
      'https://api.example.com/r?a=1&b=2&limit=10&page%5Bsize%5D=5&per_page=7',
    )
  })

  test('names beside the fixed ones are forwarded', () => {
    const kept = 'limits=1&x.limit=1&limit_to=1&page[number]=2&page_number=3&per=1&a;b=2&=3'
    expect(url({ fixedQuery: fixed }, '/m/m/r', `?${kept}`)).toBe(
      `https://api.example.com/r?${kept}&limit=10&page%5Bsize%5D=5&per_page=7`,
    )
  })

  test('attack: a name of very many keys costs no more than a few', () => {
    expect(foldName('a[b]'.repeat(2000))).toHaveLength(16)
  })

  test('error: a tail that would leave the configured path throws', () => {
    const matcher = Route.compile([merchant('m', { routes: [route('/r')] })])
    const target = Route.match(matcher, '/m/m/r')?.target
    if (target === undefined) throw new Error('no match')
    for (const tail of ['../x', '..', '%2e%2e/x', '\\..\\..\\x', 'x#y'])
      expect(() => Route.upstreamUrl(target, tail, '')).toThrow('would leave')
  })
})

describe('a path that another route sells at the upstream', () => {
  const cheap = { priceAtomic: 1_000n }
  const dear = { priceAtomic: 5_000_000n }
  type Fields = Parameters<typeof route>[1]
  const shop = (routes: Record<string, Fields>, fields: Parameters<typeof merchant>[1] = {}) =>
    merchant('m', { routes: Object.entries(routes).map(([at, own]) => route(at, own)), ...fields })
  const sellers = (...merchants: ReturnType<typeof merchant>[]) => {
    const matcher = Route.compile(merchants)
    return (path: string) => {
      const canonical = Route.canonicalize(received(path))
      return canonical && Route.match(matcher, canonical)?.route.path
    }
  }
  const ofShop = (routes: Record<string, Fields>) => {
    const soldBy = sellers(shop(routes))
    return (path: string) => soldBy(`/m/m${path}`)
  }

  const every = { '': cheap, '/report': dear, '/v1/Full.Report': dear }
  const nested = { '/data': cheap, '/data/report': dear, '/data/v1/Full.Report': dear }
  const spellings = [
    '/Report',
    '/REPORT/2026',
    '/report;a=1',
    '/report;a=1/2026',
    '/report.',
    '/report%20',
    '/report+',
    '/report%2F',
    '/report%2F%2F',
    '/%2Freport',
    '/%252Freport%252f',
    '/;/report',
    '/report%3Fa=1',
    '/report%23',
    '/%2572eport',
    '/%EF%BD%92eport',
    '/%25EF%25BD%2592eport',
    '/r%C3%A9port',
    '/rep%E2%80%8Bort',
    '/v1/full.report',
    '/v1%2FFull.Report',
    '/V1/Full.Report/x',
  ]
  for (const [at, routes] of [
    ['', every],
    ['/data', nested],
  ] as const)
    test.each(spellings)(
      `attack: ${at}%s does not buy a dearer route at the price of one above it`,
      (path) => {
        expect(ofShop(routes)(at + path)).toBeUndefined()
      },
    )

  test('other paths are sold, also where there is no other route', () => {
    const soldBy = ofShop(every)
    expect(['', '/reports', '/v1', '/v1/full', '/2/report'].map(soldBy)).toEqual([
      '',
      '',
      '',
      '',
      '',
    ])
    expect(ofShop({ '': cheap })('/Report')).toBe('')
    expect(soldBy('/report')).toBe('/report')
    expect(soldBy('/v1/Full.Report/x')).toBe('/v1/Full.Report')
    const soldBelow = ofShop(nested)
    expect(soldBelow('/data/Reports')).toBe('/data')
    expect(soldBelow('/data/report/Q4;v=2')).toBe('/data/report')
    expect(soldBelow('/data/3QJmV3qfvL9SuYo34YihAf3sRCW3qSinyC')).toBe('/data')
  })

  const aliased = {
    '': cheap,
    '/forecast': { ...dear, upstreamPath: '/v1/forecast', tail: 'none' },
    '/v2': { priceAtomic: 2_000n, upstreamPath: '/v1' },
  } as const
  test.each([
    '/v1/forecast',
    '/V1/Forecast',
    '/v1/forecast/today',
    '/v1%2Fforecast',
    '/v1/other',
    '/v2/forecast',
    '/v2/Forecast;x',
  ])('attack: %s does not buy what another route forwards to', (path) => {
    expect(ofShop(aliased)(path)).toBeUndefined()
  })

  test('each route sells its own upstream paths, whatever routes are around it', () => {
    const soldBy = ofShop(aliased)
    expect(['/forecast', '/v2', '/v2/other', '/forecasts', '/Forecast'].map(soldBy)).toEqual([
      '/forecast',
      '/v2',
      '/v2',
      '',
      '',
    ])
  })

  const placed = {
    '/coin': { ...cheap, upstreamPath: '/coins/{tail}' },
    '/chart': { ...dear, upstreamPath: '/coins/{tail}/chart', tail: 'required' },
    '/filing': { ...dear, upstreamPath: '/submissions/CIK{tail}' },
    '/submissions': cheap,
    '/list': { ...dear, upstreamPath: '/items', tail: 'none' },
    '/item': { ...cheap, upstreamPath: '/items/{tail}', tail: 'required' },
  } as const
  test.each([
    '/coin/btc/chart',
    '/coin/btc/Chart;x',
    '/coin/btc%3F/chart',
    '/coin/btc%23x/chart',
    '/coin/btc%2FCHART%2F',
    '/submissions/CIK0001.json',
    '/submissions/cik0001.json',
    '/submissions/%43IK',
    '/item/%2F',
    '/item/;x',
    '/item/%20',
  ])('attack: %s does not buy the path of a route that places its tail inside', (path) => {
    expect(ofShop(placed)(path)).toBeUndefined()
  })

  test('attack: a tail that hides what is behind it does not buy the path before it', () => {
    const soldBy = ofShop({
      '/coin': { ...dear, upstreamPath: '/coins/{tail}' },
      '/chart': { ...cheap, upstreamPath: '/coins/{tail}/chart', tail: 'required' },
    })
    expect(soldBy('/chart/btc%3F')).toBeUndefined()
    expect(soldBy('/chart/btc%23')).toBeUndefined()
    expect(soldBy('/chart/btc')).toBe('/chart')
  })

  test('routes that place their tails in one path are sold side by side', () => {
    const soldBy = ofShop(placed)
    const paths = ['/coin/btc', '/chart/btc', '/chart/a/b', '/filing/0001.json', '/submissions/x']
    expect([...paths, '/list', '/item/Q1a'].map(soldBy)).toEqual([
      '/coin',
      '/chart',
      '/chart',
      '/filing',
      '/submissions',
      '/list',
      '/item',
    ])
  })

  const tails = (...names: string[]) =>
    names.map((name) => {
      const schema = name.startsWith('=') ? { const: name.slice(1) } : { type: 'string' }
      return param(name, { in: 'tail', required: true, schema })
    })
  const pets = { upstreamPath: '/pets/{tail}', tail: 'required', isTailExact: true } as const
  const exact = {
    '/pet': { ...cheap, ...pets, params: tails('id') },
    '/drop': { ...dear, ...pets, methods: ['DELETE'], params: tails('id') },
    '/photo': { ...dear, ...pets, params: tails('id', '=photos', 'photo') },
    '/part': { ...cheap, ...pets, params: tails('id', 'part', 'number') },
  } as const
  const any = { ...cheap, upstreamPath: '/pets/{tail}', tail: 'required' } as const
  test.each([
    '/pet/1/photos/2',
    '/pet/1%2Fphotos%2F2',
    '/pet/1%2FPhotos%2F2%2F',
    '/pet',
    '/photo/1/photos',
    '/part/1/photos/2',
    '/part/1/PHOTOS/2',
  ])('attack: %s does not buy by an exact tail what another route sells', (path) => {
    expect(ofShop(exact)(path)).toBeUndefined()
  })

  test('attack: a tail of any segments does not buy what an exact one sells', () => {
    const soldBy = ofShop({ ...exact, '/any': any })
    expect(['/any/1', '/any/1/photos/2', '/any/1/Photos/2/x'].map(soldBy)).toEqual([
      undefined,
      undefined,
      undefined,
    ])
  })

  test('exact tails of one upstream path are sold side by side', () => {
    const soldBy = ofShop(exact)
    const paths = ['/pet/1', '/pet/a%2Fb', '/drop/1', '/photo/1/photos/2', '/part/1/ears/2']
    expect(paths.map(soldBy)).toEqual(['/pet', '/pet', '/drop', '/photo', '/part'])
  })

  test('attack: of two routes that may sell a path, only the dearer one does where neither is longer', () => {
    const soldBy = ofShop({
      '': cheap,
      '/btc': { ...cheap, upstreamPath: '/coins/btc' },
      '/chart': { ...dear, upstreamPath: '/coins/{tail}/chart' },
    })
    expect(['/btc/chart', '/coins/eth/chart', '/coins/Chart'].map(soldBy)).toEqual([
      undefined,
      undefined,
      undefined,
    ])
    expect(['/chart/btc', '/chart/eth', '/btc/x', '/coins/eth'].map(soldBy)).toEqual([
      '/chart',
      '/chart',
      '/btc',
      '',
    ])
  })

  test('a tail that some upstreams drop is sold where no other route is', () => {
    const item = { ...cheap, tail: 'required' } as const
    expect(ofShop({ '/item': item })('/item/...')).toBe('/item')
    expect(ofShop({ '': cheap, '/item': item })('/item/...')).toBeUndefined()
  })

  test('one upstream path is sold with two fixed queries', () => {
    const soldBy = ofShop({
      '/few': { ...cheap, upstreamPath: '/rows', fixedQuery: { limit: '10' } },
      '/many': { ...dear, upstreamPath: '/rows', fixedQuery: { limit: '1000' } },
    })
    expect(['/few', '/few/x', '/many', '/many/X;y'].map(soldBy)).toEqual([
      '/few',
      '/few',
      '/many',
      '/many',
    ])
  })

  test('attack: a route with an upstream of its own is not sold by a cheaper merchant of that origin', () => {
    const upstream = new URL('https://other.example.com')
    const generic = merchant('generic', { upstream, routes: [route('', cheap)] })
    const own = shop({ '/premium': { ...dear, upstream } })
    const soldBy = sellers(generic, own)
    expect(soldBy('/m/generic/Premium')).toBeUndefined()
    expect(soldBy('/m/m/premium')).toBe('/premium')
  })

  test('attack: a price by use counts by its least against a dearer price of another merchant', () => {
    const table = (slug: string, keys: string) =>
      `[[merchants]]\nslug = "${slug}"\nupstream = "https://api.example.com"\n[[merchants.routes]]\n${keys}\n`
    const byUse =
      'path = "/"\nmethods = ["POST"]\nprice = "0.05"\n[merchants.routes.meter]\npreset = "openai"\nbase = "0.0005"\nunits = [{ name = "input", price = "1" }, { name = "output", price = "1" }]'
    const { merchants } = configOf(
      small + table('m', byUse) + table('flat', 'path = "/x"\nprice = "0.01"'),
    )
    const soldBy = sellers(...merchants)
    expect([soldBy('/m/m/x'), soldBy('/m/m/y'), soldBy('/m/flat/x')]).toEqual([undefined, '', '/x'])
  })

  test('merchants of one origin sell the same paths, and those of others that are not dearer', () => {
    const soldBy = sellers(
      merchant('one', { routes: [route('', dear)] }),
      merchant('two', { routes: [route('', cheap), route('/x', cheap)] }),
      merchant('away', { upstream: new URL('https://b.example.com'), routes: [route('', cheap)] }),
    )
    expect(soldBy('/m/one/x')).toBe('')
    expect(soldBy('/m/two/y')).toBe('')
    expect(soldBy('/m/two/X')).toBeUndefined()
    expect(soldBy('/m/away/X')).toBe('')
  })
})
