/** A body with its compressed form, which is made once. */
export type Packed = {
  readonly whole: Uint8Array<ArrayBuffer>
  /** Undefined when compression saves nothing. */
  readonly gzip: () => Uint8Array<ArrayBuffer> | undefined
}

/** Shorter bodies fit into the first packet of an answer in any case. */
const leastBytes = 1024

export function pack(body: string | Uint8Array): Packed {
  const whole = typeof body === 'string' ? new TextEncoder().encode(body) : new Uint8Array(body)
  let made: { bytes: Uint8Array<ArrayBuffer> | undefined } | undefined
  return {
    whole,
    gzip() {
      made ??= { bytes: whole.length < leastBytes ? undefined : Bun.gzipSync(whole) }
      return made.bytes
    },
  }
}

/** Most bodies that are kept, and their most bytes before compression. */
const keptMax = 64
const keptMaxBytes = 8 * 1024 * 1024

const kept = new Map<string, Packed>()
let keptBytes = 0

/** Keeps the compressed forms of the latest bodies by their tag, so that a request compresses none. */
export function packOnce(tag: string, body: string): Packed {
  const known = kept.get(tag)
  if (known !== undefined) return known
  const made = pack(body)
  kept.set(tag, made)
  keptBytes += made.whole.length
  for (const [oldest, { whole }] of kept) {
    if (kept.size <= keptMax && keptBytes <= keptMaxBytes) break
    if (oldest === tag) break
    kept.delete(oldest)
    keptBytes -= whole.length
  }
  return made
}

/** Whether a client takes gzip. RFC 9110 section 12.5.3. */
export function takesGzip({ headers }: Request): boolean {
  const accepted = (headers.get('accept-encoding') ?? '').toLowerCase().split(',')
  const weightOf = (name: string) => {
    const found = accepted.find((each) => each.split(';')[0]?.trim() === name)
    if (found === undefined) return undefined
    const [, weight = '1'] = /;\s*q\s*=\s*([\d.]+)/.exec(found) ?? []
    return Number(weight)
  }
  return (weightOf('gzip') ?? weightOf('*') ?? 0) > 0
}

/** Answers with a body, compressed for a client that takes it. */
export function sendPacked(
  request: Request,
  { whole, gzip }: Packed,
  { status = 200, headers }: { status?: number; headers: Readonly<Record<string, string>> },
): Response {
  const bytes = takesGzip(request) ? gzip() : undefined
  const varied = withVary(headers)
  if (bytes === undefined) return new Response(whole, { status, headers: varied })
  return new Response(bytes, { status, headers: { ...varied, 'content-encoding': 'gzip' } })
}

/** Says to caches that the answer depends on the encoding, too. */
export function withVary(headers: Readonly<Record<string, string>>): Record<string, string> {
  const vary = headers.vary === undefined ? 'Accept-Encoding' : `${headers.vary}, Accept-Encoding`
  return { ...headers, vary }
}
