/**
 * The kind of a client, for figures: a small closed set. Addresses of people and the text of the
 * header are not kept.
 */
export type Kind = (typeof kinds)[number]

export const kinds = [
  'browser',
  'mppx',
  'agentcash',
  'mcp',
  'javascript',
  'python',
  'curl',
  'crawler',
  'other',
] as const

/** Tried in this order. Node.js, Bun and axios name no x402 library: most x402 clients are those. */
const patterns: readonly (readonly [Kind, RegExp])[] = [
  ['agentcash', /agentcash/i],
  ['crawler', /bots?\b|crawl|spider|slurp|facebookexternalhit|-user\//i],
  ['mcp', /\bmcp\b|modelcontextprotocol/i],
  ['mppx', /^mppx/i],
  ['browser', /^mozilla\//i],
  ['curl', /^(?:curl|wget)\//i],
  ['python', /python|httpx|aiohttp/i],
  ['javascript', /^(?:node|undici|bun|deno|axios|got|node-fetch)\b|x402/i],
]

/** Texts that are kept, each at most this long: a stranger chooses them. */
const keptMax = 500
const keptLength = 200
const known = new Map<string, Kind>()

/** The kind of the client that sent these headers. Costs a look-up of a known `User-Agent`. */
export function kindOf(headers: Headers): Kind {
  const text = headers.get('user-agent')
  const kind = text === null ? 'other' : (known.get(text) ?? read(text))
  if (kind !== 'javascript' && kind !== 'other') return kind
  // mppx says which payments it makes, from its first request on.
  return headers.has('accept-payment') ? 'mppx' : kind
}

function read(text: string): Kind {
  const part = text.slice(0, keptLength)
  const kind = patterns.find(([, pattern]) => pattern.test(part))?.[0] ?? 'other'
  if (text.length > keptLength) return kind
  if (known.size >= keptMax) known.clear()
  known.set(text, kind)
  return kind
}
