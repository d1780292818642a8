/** Splits bytes into lines, wherever chunks end. */
export type Lines = {
  add(chunk: Uint8Array): void
  /** Hands over a last line that has no end. */
  end(): void
  /** Whether the next byte begins a line, and no line feed before it belongs to a CR. */
  isBetween(): boolean
}

const newline = 0x0a
const carriage = 0x0d

/**
 * Lines end with LF, CRLF or CR, as in event streams. `take` gets a line without its end, which is
 * valid only as long as the chunk. It gets undefined for a line longer than `maxBytes`, which was
 * dropped.
 */
export function createLines(maxBytes: number, take: (line: Uint8Array | undefined) => void): Lines {
  const pending = createBytes(maxBytes)
  let isAfterCarriage = false

  const emit = (chunk: Uint8Array, start: number, end: number) => {
    if (pending.isEmpty()) take(end - start > maxBytes ? undefined : chunk.subarray(start, end))
    else {
      pending.add(chunk, start, end)
      take(pending.take())
    }
  }
  return {
    add(chunk) {
      const size = chunk.byteLength
      let start = isAfterCarriage && chunk[0] === newline ? 1 : 0
      if (size > 0) isAfterCarriage = false
      // Lines are short: a loop is faster than two native searches per line.
      for (let at = start; at < size; at++) {
        const code = chunk[at]
        if (code !== newline && code !== carriage) continue
        emit(chunk, start, at)
        if (code === carriage) {
          if (at + 1 === size) isAfterCarriage = true
          else if (chunk[at + 1] === newline) at++
        }
        start = at + 1
      }
      if (start < size) pending.add(chunk, start, size)
    },
    end() {
      if (!pending.isEmpty()) take(pending.take())
    },
    isBetween: () => pending.isEmpty() && !isAfterCarriage,
  }
}

/** Collects bytes up to a limit. */
export type Bytes = {
  add(chunk: Uint8Array, start: number, end: number): void
  /** The collected bytes; undefined above the limit. Starts again. */
  take(): Uint8Array | undefined
  isEmpty(): boolean
}

export function createBytes(maxBytes: number): Bytes {
  let buffer = new Uint8Array(0)
  let size = 0
  let isOver = false
  return {
    add(chunk, start, end) {
      if (isOver) return
      const next = size + end - start
      if (next > maxBytes) {
        isOver = true
        buffer = new Uint8Array(0)
        return
      }
      if (next > buffer.byteLength) {
        // Doubled, so that a line in single bytes is not copied once per byte.
        const larger = new Uint8Array(Math.min(maxBytes, Math.max(1024, next * 2)))
        larger.set(buffer.subarray(0, size))
        buffer = larger
      }
      // Without a view, because most pieces are short.
      if (end - start === chunk.byteLength) buffer.set(chunk, size)
      else buffer.set(chunk.subarray(start, end), size)
      size = next
    },
    take() {
      const bytes = isOver ? undefined : buffer.subarray(0, size)
      // The caller keeps the old buffer.
      buffer = new Uint8Array(0)
      size = 0
      isOver = false
      return bytes
    },
    isEmpty: () => size === 0 && !isOver,
  }
}
