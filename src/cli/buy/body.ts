/** Most bytes of an offer, a problem or a document, and the longest time of reading one, ms. */
const mostBytes = 4 * 1024 * 1024
const readMs = 30_000

/**
 * The text of an answer that is not shown to the user; '' when it is longer than any honest one, does
 * not end in time, or breaks. A seller must not fill the memory of a buyer.
 */
export async function readText({ body }: Pick<Response, 'body'>): Promise<string> {
  if (body === null) return ''
  const reader = body.getReader()
  const stop = () => void reader.cancel().catch(() => undefined)
  let isLate = false
  const timer = setTimeout(() => {
    isLate = true
    stop()
  }, readMs)
  const chunks: Uint8Array[] = []
  try {
    for (let size = 0; ; ) {
      const { done, value } = await reader.read()
      if (done) return isLate ? '' : Buffer.concat(chunks).toString()
      size += value.byteLength
      if (size > mostBytes) return ''
      chunks.push(value)
    }
  } catch {
    return ''
  } finally {
    clearTimeout(timer)
    stop()
  }
}
