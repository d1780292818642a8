import type { Merchant, Route } from '../config/Config'
import { secretWordMin as wordMin } from '../config/values'
import type { Secret } from './redactor'

/** Shorter values would match by chance in answers that do not contain them. */
const lengthMin = 8

/** Configured headers that carry no credentials. Every other configured header is a secret. */
const publicHeaders =
  /^(?:accept|accept-.*|user-agent|content-.*|cache-control|from|host|origin|referer|http-referer|x-(?:openrouter-)?title|x-requested-with|.*version)$/i
/** Names of parameters that carry credentials. */
const secretQuery =
  /key|token|secret|auth|pass|pwd|sign|credential|^(?:app|client|account|user)[_-]?id$|^(?:code|sig|hmac|login|user(?:name)?)$/i
/**
 * Words of a public vocabulary, such as `front_page`, `temperature_2m` or `2026-01-31`: an answer is
 * full of them, and hiding them would ruin what is sold.
 */
const plainWord = /^(?:[A-Za-z]?[a-z]{0,23}|[A-Z]{1,24}|\d{1,8}|[A-Za-z\d]{1,4})$/
const isPlain = (value: string) => value.split(/[\s,._:/|-]+/).every((word) => plainWord.test(word))
const scheme = /^(?:basic|bearer|token|apikey)\s+/i

/**
 * What an upstream must not show to a buyer.
 *
 * Of 8 characters and more, anywhere: every value from the environment; headers with credentials, and
 * the parts of Basic credentials; values of `query` and `fixed_query`, except plain words under a
 * harmless name; keys in the path, because frameworks repeat the path of an unknown route. Each also
 * in base64 and in hex. Of 4 to 7 characters: the same, but for plain words in headers, where they
 * are words of their own. What is left of `fixed_query` and of the environment, behind its name.
 */
export function secretsOf(merchant: Merchant, route: Route): readonly Secret[] {
  const own = [...merchant.secrets, ...route.pathSecrets]
  const credentials = Object.entries(merchant.headers).filter(([name]) => !publicHeaders.test(name))
  const strong = [...credentials.flatMap(([, value]) => basicOf(value)), ...own]
  const all = credentials.flatMap((header) => credentialsOf(header))
  for (const [name, value] of Object.entries({ ...route.query, ...route.fixedQuery }))
    if (secretQuery.test(name) || !isPlain(value)) strong.push(value)
  strong.push(...all.filter((value) => value.length >= lengthMin || !isPlain(value)))
  const values = unique(strong).filter((value) => value.length >= wordMin)
  const long = values.filter((value) => value.length >= lengthMin)
  const words = values.filter((value) => value.length < lengthMin)
  const known = new Set(values)
  const named = namedOf(merchant, route).filter(([, value]) => value !== '' && !known.has(value))
  const texts = [...long, ...long.flatMap(spellings)]
  const packs = [...values, ...named.map(([name, value]) => `${name}=${value}`)].flatMap(packed)
  return [
    ...unique([...texts, ...packs]),
    ...words.flatMap((value) => [value, ...spellings(value)]).map((value) => ({ value })),
    ...named.flatMap(([name, value]) =>
      [value, ...spellings(value)].map((form) => ({ name, value: form })),
    ),
  ]
}

/** A header's value without its scheme, and its parts. */
function credentialsOf([name, value]: [string, string]): string[] {
  return [value.replace(scheme, '').trim(), ...partsOf(name, value)]
}

/** What is hidden behind its name, whatever it is. */
function namedOf(merchant: Merchant, route: Route): [name: string, value: string][] {
  const short = merchant.secrets.filter((value) => value.length < wordMin)
  const isFromEnv = ([, value]: [string, string]) => short.some((part) => value.includes(part))
  const headers = Object.entries(merchant.headers)
    .filter(isFromEnv)
    .flatMap((header) =>
      unique([header[1], ...credentialsOf(header)]).flatMap((value) =>
        headerNames(header[0]).map((name): [string, string] => [name, value]),
      ),
    )
  const rewritten = Object.entries(route.rewrite).flatMap(([field, values]) =>
    Object.values(values).map((value): [string, string] => [field, value]),
  )
  const others = [...Object.entries(route.query), ...rewritten].filter(isFromEnv)
  return [...Object.entries(route.fixedQuery), ...headers, ...others]
}

/** As it is written, as most servers and as CGI repeat it. */
function headerNames(name: string): string[] {
  const upper = name.toUpperCase().replaceAll('-', '_')
  return unique([name, name.toLowerCase(), `HTTP_${upper}`])
}

/** Spellings of a text beyond ASCII that a decoder of single characters does not know. */
function spellings(value: string): string[] {
  if (/^[\x20-\x7e]*$/.test(value) || !value.isWellFormed()) return []
  const percent = encodeURIComponent(value)
  const unicode = value.replace(
    /[^\x20-\x7e]/g,
    (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`,
  )
  const lower = percent.replace(/%../g, (code) => code.toLowerCase())
  return unique([percent, lower, percent.replaceAll('%20', '+'), unicode])
}

function unique<T>(values: readonly T[]): T[] {
  return [...new Set(values)]
}

/** The part after an authentication scheme, and the value of each cookie. */
function partsOf(name: string, value: string): string[] {
  if (/^cookie$/i.test(name))
    return value.split(';').map((pair) => pair.slice(pair.indexOf('=') + 1).trim())
  const [, behind = ''] = (/authorization$/i.test(name) && /^\S+\s+(\S+)\s*$/.exec(value)) || []
  return [behind]
}

/** `user:password` and the password of a Basic credential. */
function basicOf(value: string): string[] {
  const [, encoded] = /^basic\s+(\S+)\s*$/i.exec(value) ?? []
  if (encoded === undefined) return []
  const pair = Buffer.from(encoded, 'base64').toString()
  return [pair, pair.slice(pair.indexOf(':') + 1)]
}

/**
 * Forms in hex, and in base64 and base64url at each of the three offsets within a longer text,
 * without the characters that neighbouring bytes influence.
 */
function packed(value: string): string[] {
  const bytes = Buffer.from(value)
  const base64 = [0, 1, 2].flatMap((before) => {
    const all = Buffer.concat([Buffer.alloc(before), bytes])
    const text = all.toString('base64').replace(/=+$/, '')
    const end = Math.floor((all.length * 8) / 6)
    const inner = text.slice(Math.ceil((before * 8) / 6), end)
    return [inner, inner.replaceAll('+', '-').replaceAll('/', '_')]
  })
  const hex = bytes.toString('hex')
  return [...base64, hex, hex.toUpperCase()].filter((text) => text.length >= lengthMin)
}
