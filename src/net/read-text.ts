/** An answer that is longer than its reader accepts. */
export class TooLongError extends Error {
  override name = 'TooLongError'
}

/**
 * The text of another server's answer. It is read in pieces: `text()` decompresses without a limit,
 * and a few kilobytes may become gigabytes. Throws `TooLongError` when there are more than
 * `maxBytes` after decompression.
 */
export async function readText(response: Response, maxBytes: number): Promise<string> {
  const { headers } = response
  const announced = Number(headers.get('content-length') ?? Number.NaN)
  // One call costs less than a stream.
  if (announced <= maxBytes && !headers.has('content-encoding')) return response.text()
  const parts: Uint8Array[] = []
  let size = 0
  for await (const part of response.body ?? []) {
    size += part.byteLength
    if (size > maxBytes) throw new TooLongError(`more than ${maxBytes} bytes`)
    parts.push(part)
  }
  return Buffer.concat(parts).toString()
}
