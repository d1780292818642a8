import type { Address } from 'viem'
import type { Config } from '../config/Config'
import * as Discovery from './discovery'

/** Answers a request for a document: 200 with an ETag, or 304. */
export type Serve = (request: Request) => Response

export type Documents = {
  /** The document at a path below `/m/`, if there is one. */
  find(pathname: string): Serve | undefined
  aggregate: Serve
  wellKnown: Serve
}

/** The discovery documents of a configuration, each built once, on first use. */
export function createDocuments(config: Config, receiptAddress: Address): Documents {
  const perMerchant = new Map<string, Serve>()
  for (const merchant of config.merchants)
    perMerchant.set(
      `/m/${merchant.slug}/openapi.json`,
      document(() => Discovery.merchant(config, merchant, { receiptAddress })),
    )
  return {
    find: (pathname) => perMerchant.get(pathname),
    aggregate: document(() => Discovery.aggregate(config, { receiptAddress })),
    wellKnown: document(() => Discovery.wellKnown(config, { receiptAddress })),
  }
}

function document(build: () => object): Serve {
  let built: { text: string; etag: string } | undefined
  return (request) => {
    built ??= seal(JSON.stringify(build()))
    const headers = {
      etag: built.etag,
      'cache-control': 'public, max-age=300',
      'access-control-allow-origin': '*',
    }
    if (request.method !== 'GET' && request.method !== 'HEAD')
      return new Response(null, { status: 405, headers: { allow: 'GET, HEAD' } })
    if (request.headers.get('if-none-match') === built.etag)
      return new Response(null, { status: 304, headers })
    return new Response(request.method === 'HEAD' ? null : built.text, {
      headers: { ...headers, 'content-type': 'application/json' },
    })
  }
}

function seal(text: string): { text: string; etag: string } {
  return { text, etag: `"${new Bun.CryptoHasher('sha256').update(text).digest('base64url')}"` }
}
