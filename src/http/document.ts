import { isKnown, tagOf } from './etag'
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
export function respond(
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
