/**
 * What the least exact upstreams read in a path, or in the name of a parameter. Upstreams differ:
 * many ignore the case of letters, `;parameters`, a slash, dot or blank at the end, or accents, or
 * decode once more. Two texts with the same folded form may be the same to an upstream.
 */

const plainPath = /^(?:\/[\w~-]+(?:\.[\w~-]+)*)+$/
const plainName = /^[\w-]+$/
const escapes = /(?:%[0-9a-f]{2})+/gi
const escapedAscii = /%[0-7][0-9a-f]/gi
const unseen = /[\p{M}\p{Default_Ignorable_Code_Point}]+/gu
const blank = /\s/
/** As many encodings as a canonical path may have. */
const decodingRounds = 5
/** Longest list of keys that is compared of a name such as `a[b][c]`. */
const keysMax = 16

/** A path as the names between its slashes, with a slash at both ends. Takes a canonical path. */
export function foldPath(path: string): string {
  return foldPaths(path)[0] ?? '/'
}

/** The same with all readings: an encoded `?` or `#` may end the path, or be part of a name. */
export function foldPaths(path: string): readonly string[] {
  if (plainPath.test(path)) return [`${path.toUpperCase()}/`]
  const text = foldText(path).replaceAll('+', ' ')
  const [bare = ''] = text.split(/[?#]/, 1)
  return bare === text ? [foldNames(text)] : [foldNames(bare), foldNames(text)]
}

function foldNames(path: string): string {
  let folded = '/'
  for (const segment of path.split('/')) {
    const name = trim(segment.split(';', 1)[0] ?? '')
    if (name !== '') folded += `${name}/`
  }
  return folded
}

/**
 * The keys that a decoded name of a query may set, from the outermost to the whole: `a[b].c` is
 * `A`, `A_B` and `A_B_C`. PHP writes `_` for a blank or a dot. Empty keys do not count, because
 * `a[]` sets `a`, too.
 */
export function foldName(name: string): readonly string[] {
  if (plainName.test(name)) return [name.toUpperCase()]
  // Where names are C strings, a null character ends one.
  const [text = ''] = foldText(name).split('\u0000', 1)
  const keys: string[] = []
  for (const part of text.split(/[[.:]/)) {
    const key = part.replaceAll(']', ' ').trim().replace(/\s/g, '_')
    if (key === '') continue
    keys.push(keys.length === 0 ? key : `${keys.at(-1)}_${key}`)
    if (keys.length === keysMax) break
  }
  return keys
}

function foldText(encoded: string): string {
  let text = encoded
  for (let round = 0; round < decodingRounds; round++) {
    const next = text.replace(escapes, decode)
    if (next === text) break
    text = next
  }
  return text.normalize('NFKD').replace(unseen, '').toLowerCase().toUpperCase()
}

function decode(escaped: string): string {
  try {
    return decodeURIComponent(escaped)
  } catch {
    return escaped.replace(escapedAscii, fromPercent)
  }
}

/** The character of one escape, such as `%2F`. */
export function fromPercent(escaped: string): string {
  return String.fromCharCode(Number.parseInt(escaped.slice(1), 16))
}

/** A loop, because a pattern of trailing characters costs the square of their number. */
function trim(name: string): string {
  let end = name.length
  while (end > 0 && (name[end - 1] === '.' || blank.test(name[end - 1] ?? ''))) end--
  return name.slice(0, end).trimStart()
}
