/** Most bytes of an offer, a problem or a document, and the longest time of reading one, ms. */
const mostBytes = 4 * 1024 * 1024
const readMs = 30_000

/**
 * The text of an answer that is not shown to the user; '' when it is longer than any honest one, does
 * not end in time, or breaks. A seller must not fill the memory of a buyer.
 */
export async function readAnswerText(response: Pick<Response, 'body'>): Promise<string> {
  try {
    return (await readAll(response, mostBytes, AbortSignal.timeout(readMs))) ?? ''
  } catch {
    return ''
  }
}

/** The text of an answer; undefined when it is longer. Throws when it breaks, and at the signal. */
export async function readAll(
  { body }: Pick<Response, 'body'>,
  maxBytes: number,
  signal: AbortSignal,
): Promise<string | undefined> {
  if (body === null) return ''
  const reader = body.getReader()
  const stop = () => void reader.cancel().catch(() => undefined)
  signal.addEventListener('abort', stop)
  const chunks: Uint8Array[] = []
  try {
    for (let size = 0; ; ) {
      const { done, value } = await reader.read()
      // A cancelled reader ends like a complete one.
      signal.throwIfAborted()
      if (done) return Buffer.concat(chunks).toString()
      size += value.byteLength
      if (size > maxBytes) return undefined
      chunks.push(value)
    }
  } finally {
    signal.removeEventListener('abort', stop)
    stop()
  }
}
