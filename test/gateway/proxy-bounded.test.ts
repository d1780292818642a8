import { describe, expect, spyOn, test } from 'bun:test'
import fc from 'fast-check'
import type { Secret } from '../../src/gateway/redact/redact'
import { compile, createRedactor, redactHeaders } from '../../src/gateway/redact/redact'
import { secretsOf } from '../../src/gateway/redact/secrets'
import { merchant, route } from '../harness/merchants'
import { runs } from '../harness/samples'

/** The answer that a buyer gets when it arrives in these chunks. */
function shown(chunks: readonly (string | Uint8Array)[], secrets: readonly Secret[]): string {
  const patterns = compile(secrets)
  if (patterns === undefined) throw new Error('no secrets')
  const redactor = createRedactor(patterns)
  const parts = chunks.map((chunk) =>
    Buffer.from(redactor.feed(new Uint8Array(Buffer.from(chunk)))),
  )
  return Buffer.concat([...parts, redactor.end()]).toString()
}

/** Checks that the result is the same for every split. */
function everywhere(text: string, secrets: readonly Secret[]): string {
  const whole = shown([text], secrets)
  for (let at = 1; at < text.length; at++)
    expect(shown([text.slice(0, at), text.slice(at)], secrets)).toBe(whole)
  expect(shown([...text], secrets)).toBe(whole)
  return whole
}

const ofQuery = (fixedQuery: Record<string, string>) =>
  secretsOf(merchant('m'), route('/r', { fixedQuery }))

describe('fixed_query with a plain word', () => {
  const secrets = ofQuery({ tags: 'front_page', page: '1', mode: '-x y' })

  const echoes: [name: string, text: string, wanted: string][] = [
    ['a URL', 'GET /s?tags=front_page&q=a', 'GET /s?tags=[redacted]&q=a'],
    ['a later place in a URL', '?a=1&tags=front_page', '?a=1&tags=[redacted]'],
    [
      'an encoded URL',
      'u=https%3A%2F%2Fh%3Fa%26tags%3Dfront_page%26b',
      'u=https%3A%2F%2Fh%3Fa%26tags%3D[redacted]%26b',
    ],
    ['an encoded word', '?t%61gs=front%5Fpage', '?t%61gs=[redacted]'],
    ['JSON', '{"tags":"front_page"}', '{"tags":"[redacted]"}'],
    ['spaced JSON', '{\n  "tags" : [\n "front_page" ]}', '{\n  "tags" : [\n "[redacted]" ]}'],
    [
      'JSON in JSON',
      '{"a":"{\\"tags\\":\\"front_page\\"}"}',
      '{"a":"{\\"tags\\":\\"[redacted]\\"}"}',
    ],
    [
      'JSON with line ends in JSON',
      '"{\\n \\"tags\\":\\n \\"front_page\\"}"',
      '"{\\n \\"tags\\":\\n \\"[redacted]\\"}"',
    ],
    [
      'a URL in JSON',
      '{"u":"/s?a=1\\u0026tags\\u003dfront_page"}',
      '{"u":"/s?a=1\\u0026tags\\u003d[redacted]"}',
    ],
    ['JSON with escapes', '{"\\u0074ags":"\\u0066ront_page"}', '{"\\u0074ags":"[redacted]"}'],
    [
      'a list of parameters',
      '{"name":"tags","value":"front_page"}',
      '{"name":"tags","value":"[redacted]"}',
    ],
    ['a number', '{"page":1,"a":11}', '{"page":"[redacted]","a":11}'],
    ['a number in JSON in JSON', '"{\\"page\\":1}"', '"{\\"page\\":\\"[redacted]\\"}"'],
    ['XML', '<tags>front_page</tags>', '<tags>[redacted]</tags>'],
    ['CDATA', '<tags><![CDATA[front_page]]></tags>', '<tags><![CDATA[[redacted]]]></tags>'],
    ['an attribute', '<s tags="front_page"/>', '<s tags="[redacted]"/>'],
    [
      'a parameter in XML',
      "<p name='tags' value='front_page'/>",
      "<p name='tags' value='[redacted]'/>",
    ],
    [
      'a table',
      '<td>tags</td><td class="v">front_page</td>',
      '<td>tags</td><td class="v">[redacted]</td>',
    ],
    ['HTML references', 'a&amp;tags&#61;front&lowbar;page', 'a&amp;tags&#61;[redacted]'],
    ['a log', '[tags] => front_page', '[tags] => [redacted]'],
    ['a repr', "{'tags': 'front_page'}", "{'tags': '[redacted]'}"],
    [
      'an indexed name',
      '?tags[0]=front_page&tags%5B1%5D=front_page',
      '?tags[0]=[redacted]&tags%5B1%5D=[redacted]',
    ],
    ['YAML', 'tags:\n  - front_page\n', 'tags:\n  - [redacted]\n'],
    ['an encoded name behind others', '?a=%20&%6Dode=-x+y', '?a=%20&%6Dode=[redacted]'],
    ['a value that begins with a sign', '?mode=-x+y&a', '?mode=[redacted]&a'],
  ]
  test.each(echoes)('attack: a plain word of fixed_query is redacted in %s', (_, text, wanted) => {
    expect(everywhere(text, secrets)).toBe(wanted)
  })

  test.each(
    [
      '{"_tags":["story","author_x","front_page"],"title":"front_page","n":1}',
      '"tags":["story","front_page"]',
      'the tags front_page and ask_hn',
      '?tags=front_pages&metatags=front_page&tags=&b=front_page',
      '{"page":10,"pages":1,"page":-1,"page":1.5,"page":0.1}',
      '{"tags":null,"x":"front_page"}',
      '{"tags":{},"front_page":1}',
    ].map((text) => [text]),
  )('%s is not changed', (text) => {
    expect(everywhere(text, secrets)).toBe(text)
  })

  test('attack: a plain word of fixed_query is redacted in base64, in UTF-16, and in forwarded headers', () => {
    expect(shown([btoa('/s?q=1&tags=front_page')], secrets)).toContain('[redacted]')
    for (const text of ['{"tags":"front_page"}', '{"page":1}']) {
      const wide = new Uint8Array(Buffer.from(text, 'utf16le'))
      const seen = Buffer.from(shown([wide], secrets)).toString('utf16le')
      expect(JSON.parse(seen)).toEqual({ [text.slice(2, 6)]: '[redacted]' })
    }
    const headers = new Headers({ link: '</s?tags=front_page>; rel="next"', tags: 'front_page' })
    headers.set('etag', '"front_page"')
    redactHeaders(headers, compile(secrets))
    expect([...headers.keys()]).toEqual(['etag'])
  })

  test('text beyond ASCII is redacted literally and encoded', () => {
    const found = ofQuery({ city: 'Z\u00fcrich', place: 'Gen\u00e8ve-Gare' })
    for (const text of ['?city=Z%C3%BCrich', '{"city":"Z\\u00fcrich"}', '<b>Z\u00fcrich</b>'])
      expect(everywhere(text, found)).toBe(text.replace(/Z.*rich/, '[redacted]'))
    expect(everywhere('in Gen%C3%A8ve-Gare', found)).toBe('in [redacted]')
  })

  test('the result is the same for every split, with any text around the words', () => {
    const piece = fc.constantFrom(
      'tags',
      'front_page',
      '=',
      '":"',
      '%3D',
      '\\u0026',
      '-',
      ' ',
      'a',
      '1',
      'page',
      '<b>',
    )
    fc.assert(
      fc.property(
        fc.array(piece, { maxLength: 12 }),
        fc.nat(40),
        fc.nat(40),
        (pieces, one, two) => {
          const text = pieces.join('')
          const [from, to] = [Math.min(one, two), Math.max(one, two)]
          const chunks = [text.slice(0, from), text.slice(from, to), text.slice(to)]
          expect(shown(chunks, secrets)).toBe(shown([text], secrets))
        },
      ),
      runs(2000),
    )
  })
})

describe('a short value from the environment', () => {
  const sold = (value: string) =>
    secretsOf(
      merchant('m', { headers: { 'X-Key': value, Accept: 'text/plain' }, secrets: [value] }),
      route('/r', { fixedQuery: { lang: value } }),
    )

  test('attack: a value of four characters is redacted wherever it is a separate word', () => {
    const secrets = sold('ab1z')
    for (const [text, wanted] of [
      ['no such key: ab1z.', 'no such key: [redacted].'],
      ['{"keys":["ab1z"]}', '{"keys":["[redacted]"]}'],
      ['/bot/%61b1z/x', '/bot/[redacted]/x'],
      ['%3Dab1z%26', '%3D[redacted]%26'],
      ['a_ab1z_b', 'a_[redacted]_b'],
      ['xab1z ab1zx', 'xab1z ab1zx'],
    ] as const)
      expect(everywhere(text, secrets)).toBe(wanted)
  })

  test('attack: a value of fewer characters is redacted after its name', () => {
    const secrets = sold('q7')
    for (const [text, wanted] of [
      ['?lang=q7&a', '?lang=[redacted]&a'],
      ['{"X-Key":"q7"}', '{"X-Key":"[redacted]"}'],
      ['x-key: q7\r\n', 'x-key: [redacted]\r\n'],
      ['[HTTP_X_KEY] => q7', '[HTTP_X_KEY] => [redacted]'],
      ['{"model":"q7"}', '{"model":"q7"}'],
    ] as const)
      expect(everywhere(text, secrets)).toBe(wanted)
  })

  test('attack: a short value is redacted in a path, and in a value of a rewritten body', () => {
    const found = secretsOf(
      merchant('m', { secrets: ['z9'] }),
      route('/r', { pathSecrets: ['k4y!'], rewrite: { model: { fast: 'z9' } } }),
    )
    expect(everywhere('no /bot/k4y!/x, {"model":"z9"}', found)).toBe(
      'no /bot/[redacted]/x, {"model":"[redacted]"}',
    )
  })
})

test('attack: a short value does not end a longer secret that begins with it and is split', () => {
  const secrets = ['ab-0123456789', { name: 'key', value: 'ab' }]
  expect(everywhere('?key=ab-0123456789&b', secrets)).toBe('?key=[redacted]&b')
  expect(everywhere('?key=ab-0123&b', secrets)).toBe('?key=[redacted]-0123&b')
})

test('attack: an answer with many redacted values compares its end once, not once for each', () => {
  const header = { Authorization: `Bearer ${'sk-live-0123456789abcdef'.repeat(4)}` }
  const secrets = secretsOf(
    merchant('m', { headers: header }),
    route('/r', { fixedQuery: { format: 'json' } }),
  )
  const count = 2_000
  const text = '{"format":"json"},'.repeat(count)
  const compared = spyOn(Buffer.prototype, 'subarray')
  try {
    expect(shown([text], secrets)).toBe('{"format":"[redacted]"},'.repeat(count))
    expect(compared.mock.calls.length).toBeLessThan(10 * count)
  } finally {
    compared.mockRestore()
  }
})
