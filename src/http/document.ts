import * as Problem from '../protocol/Problem'
import { corsHeaders } from './problem'

/** A text that is sent unchanged to every client. */
export type Document = { text: string; etag: string }

export function seal(text: string): Document {
  return { text, etag: tagOf(text) }
}

/**
 * Answers 200, or 304 when the client has the document already. Pages of other origins may read the
 * document.
 */
export function sendDocument(
  request: Request,
  { text, etag }: Document,
  type: string,
  maxAgeSeconds: number,
): Response {
  const headers = {
    ...corsHeaders,
    etag,
    'cache-control': `public, max-age=${maxAgeSeconds}`,
    'x-content-type-options': 'nosniff',
  }
  if (isKnown(request, etag)) return new Response(null, { status: 304, headers })
  return new Response(text, { headers: { ...headers, 'content-type': type } })
}

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
  // RFC 9110 section 13.1.1: If-Match compares strongly, so a weak tag never matches.
  if (wanted.length > 0 && !wanted.includes(etag) && !wanted.includes('*'))
    throw Problem.of(
      'precondition-failed',
      'The current version is not one that If-Match names: read it again.',
      { headers: { etag } },
    )
  // A proxy that compresses an answer makes its tag weak.
  const had = tagsOf(headers.get('if-none-match')).map((tag) => tag.replace(/^W\//, ''))
  return had.includes(etag) || had.includes('*')
}

/** Splits a list of entity tags at commas. Tags of this service contain no comma. */
function tagsOf(header: string | null): string[] {
  return (header ?? '')
    .split(',')
    .map((tag) => tag.trim())
    .filter((tag) => tag !== '')
}
