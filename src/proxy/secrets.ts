import type { Merchant, Route } from '../config/Config'

/** Shorter values would be found in answers that do not show them. */
const lengthMin = 8

/** Headers that merchants set to be understood, not to be let in. Every other one is a secret. */
const publicHeaders =
  /^(?:accept|accept-.*|user-agent|content-.*|cache-control|from|host|origin|referer|http-referer|x-(?:openrouter-)?title|x-requested-with|.*version)$/i
/** Parameters that let a caller in, by their names. */
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
 * What an upstream must not show to a buyer, of 8 characters and more: everything that came from the
 * environment, wherever it is put; headers that let us in, and what Basic credentials say when they are
 * decoded; values of `query` and `fixed_query`, but for plain words under a name that says nothing; a
 * key in the path, because frameworks answer an unknown tail with the path that they saw. Each also in
 * base64 and in hex.
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

/** What stands behind a scheme, of which there are many, and each cookie. */
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
 * In hex, and in base64 and base64url at each of the three places where a text that contains it may
 * begin: without the characters that its neighbours have a part in.
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
