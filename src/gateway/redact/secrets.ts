import type { Merchant, Route } from '../../config/Config'
import { secretWordMin as wordMin } from '../../config/values'
import type { Secret } from './redact'

/** Shorter values would match by chance in answers that do not contain them. */
const lengthMin = 8

/** Configured headers without credentials. Every other configured header is a secret. */
const publicHeaders =
  /^(?:accept|accept-.*|user-agent|content-.*|cache-control|from|host|origin|referer|http-referer|x-(?:openrouter-)?title|x-requested-with|.*version)$/i
/** Names of parameters that contain credentials. */
const secretQuery =
  /key|token|secret|auth|pass|pwd|sign|credential|^(?:app|client|account|user)[_-]?id$|^(?:code|sig|hmac|login|user(?:name)?)$/i
/**
 * Words of a public vocabulary, such as `front_page`, `temperature_2m` or `2026-01-31`. Answers
 * contain many of them, and redacting them would damage what is sold.
 */
const plainWord = /^(?:[A-Za-z]?[a-z]{0,23}|[A-Z]{1,24}|\d{1,8}|[A-Za-z\d]{1,4})$/
const isPlain = (value: string) => value.split(/[\s,._:/|-]+/).every((word) => plainWord.test(word))
const scheme = /^(?:basic|bearer|token|apikey)\s+/i

/**
 * Texts that an upstream's answer must not show to a buyer.
 *
 * Values of 8 characters and more are redacted anywhere, also in base64 and in hex. These are every
 * value from the environment, headers with credentials, the parts of Basic credentials, and values
 * of `query` and `fixed_query`, except plain words under a harmless name. Keys in the path are
 * among them, because frameworks repeat the path of an unknown route.
 *
 * Values of 4 to 7 characters are redacted only as separate words. These are the same values,
 * except plain words in headers.
 *
 * Other values of `fixed_query` and of the environment are redacted only after their name.
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

/** Values that are redacted after their name, whatever they are. */
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

/** The name as it is written, and in the forms in which most servers and CGI repeat it. */
function headerNames(name: string): string[] {
  const upper = name.toUpperCase().replaceAll('-', '_')
  return unique([name, name.toLowerCase(), `HTTP_${upper}`])
}

/** Spellings of a text beyond ASCII that a decoder of single characters does not find. */
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
