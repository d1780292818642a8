type Named = { bytes: Uint8Array; set: number }
type Count = { texts: number; bytes: number }

/** Names of members with text. A set counts when the answer has no text of an earlier one. */
export type Names = readonly (readonly string[])[]

const bytesPerToken = 4
const quote = 0x22
const backslash = 0x5c
const colon = 0x3a
const space = 0x20
/** More than the longest name with its quotes. */
const tailBytes = 32

/**
 * Estimates the tokens of texts in JSON that passes, for an answer without usage.
 * One token for each text, or for each four bytes of them, whichever is more: services send a token
 * or several in an event. A text is the value of a member with one of the names, at any depth. The
 * bytes are only searched for names, because parsing each event would cost more than passing it on.
 */
export function createEstimate(names: Names) {
  const known = names.flatMap((each, set) =>
    each.map((name): Named => ({ bytes: new TextEncoder().encode(`"${name}"`), set })),
  )
  const counts = names.map((): Count => ({ texts: 0, bytes: 0 }))
  const ends = new Uint8Array(256)
  for (const { bytes } of known) ends[bytes.at(-2) ?? 0] = 1
  const tail = new Uint8Array(tailBytes)
  /** The set of the value that comes next, and of the text at this place; -1 for none. */
  let next = -1
  let own = -1
  let isEmpty = true
  let isEscaped = false

  /** Reads a text up to its closing quote, whose place it returns, or the end of the chunk. */
  const readText = (chunk: Uint8Array, from: number, count: Count): number => {
    const size = chunk.byteLength
    let at = from
    for (; at < size; at++) {
      const code = chunk[at]
      if (isEscaped) isEscaped = false
      else if (code === backslash) isEscaped = true
      else if (code === quote) break
    }
    if (isEmpty && at > from) {
      isEmpty = false
      count.texts++
    }
    count.bytes += at - from
    if (at < size) own = -1
    return at
  }
  return {
    /** Reads a piece, which may be written over afterwards. */
    add(chunk: Uint8Array): void {
      const size = chunk.byteLength
      for (let at = 0; at < size; at++) {
        const count = own < 0 ? undefined : counts[own]
        if (count !== undefined) {
          at = readText(chunk, at, count)
          continue
        }
        if (next < 0) {
          while (at < size && chunk[at] !== colon) at++
          // Most names are none of these, so look at their last letter first.
          const last = at < 2 ? 0 : (chunk[at - 2] ?? 0)
          if (at < size && (at < 2 || ends[last] === 1)) next = setOf(known, chunk, at, tail)
        } else if (chunk[at] !== space) {
          if (chunk[at] === quote) own = next
          isEmpty = true
          next = -1
        }
      }
      const kept = Math.min(size, tailBytes)
      tail.copyWithin(0, kept)
      tail.set(chunk.subarray(size - kept), tailBytes - kept)
    },
    tokens(): number {
      const { texts, bytes } = counts.find((count) => count.texts > 0) ?? { texts: 0, bytes: 0 }
      return Math.max(texts, Math.floor(bytes / bytesPerToken))
    },
  }
}

/** The set of the name before a colon, which may begin in the chunk before. */
function setOf(known: readonly Named[], chunk: Uint8Array, colonAt: number, tail: Uint8Array) {
  const codeAt = (at: number) => (at < 0 ? tail[tailBytes + at] : chunk[at])
  if (codeAt(colonAt - 1) !== quote) return -1
  for (let i = 0; i < known.length; i++) {
    const { bytes, set } = known[i] ?? { bytes: tail, set: -1 }
    let at = bytes.byteLength - 1
    while (at >= 0 && codeAt(colonAt - bytes.byteLength + at) === bytes[at]) at--
    if (at < 0) return set
  }
  return -1
}

/** The tokens of the texts of a whole body, of all sets. */
export function tokensOf(body: Uint8Array, names: Names): number {
  const estimate = createEstimate([names.flat()])
  estimate.add(body)
  return estimate.tokens()
}
