import type { Merchant, Route } from '../config/Config'

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
 * Texts of 8 characters and more that an upstream must not show to a buyer: every value from the
 * environment; headers with credentials, and the parts of Basic credentials; values of `query` and
 * `fixed_query`, except plain words under a harmless name; keys in the path, because frameworks
 * repeat the path of an unknown route. Each also in base64 and in hex.
 */
export function secretsOf(merchant: Merchant, route: Route): readonly string[] {
  const values = Object.entries(merchant.headers)
    .filter(([name]) => !publicHeaders.test(name))
    .flatMap(([name, value]) => [
      value.replace(scheme, '').trim(),
      ...basicOf(value),
      ...partsOf(name, value),
    ])
  for (const [name, value] of Object.entries({ ...route.query, ...route.fixedQuery })) {
    if (secretQuery.test(name) || !isPlain(value)) values.push(value)
  }
  values.push(...route.pathSecrets, ...merchant.secrets)
  const long = [...new Set(values)].filter((value) => value.length >= lengthMin)
  return [...new Set(long.flatMap((value) => [value, ...packed(value)]))]
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
