import * as Problem from '../protocol/Problem'

/** The strong entity tag of a text. */
export function tagOf(text: string): string {
  return `"${new Bun.CryptoHasher('sha256').update(text).digest('base64url')}"`
}

/**
 * Whether the client already has this version, so that the answer is 304. RFC 9110 section 13.2.2.
 * Throws ProblemError 412 when `If-Match` names other versions only.
 */
export function isKnown({ headers }: Request, etag: string): boolean {
  const wanted = tagsOf(headers.get('if-match'))
  // A weak tag is never enough here.
  if (wanted.length > 0 && !wanted.includes(etag) && !wanted.includes('*'))
    throw Problem.of('precondition-failed', 'This is another version than If-Match names.', {
      headers: { etag },
    })
  // A proxy that compresses makes the tag a weak one.
  const had = tagsOf(headers.get('if-none-match')).map((tag) => tag.replace(/^W\//, ''))
  return had.includes(etag) || had.includes('*')
}

/** Splits a list of entity tags at commas, which tags of this service never contain. */
function tagsOf(header: string | null): string[] {
  return (header ?? '')
    .split(',')
    .map((tag) => tag.trim())
    .filter((tag) => tag !== '')
}
