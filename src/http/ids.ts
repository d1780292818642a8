/** Short ids that do not repeat: a random prefix for the process and a counter. */
export function requestIds(): () => string {
  const prefix = base36(8)
  let counter = 0
  return () => `${prefix}-${(counter++).toString(36)}`
}

/** Random text of small letters and digits. */
function base36(length: number): string {
  const bytes = crypto.getRandomValues(new Uint8Array(length))
  return Array.from(bytes, (byte) => (byte % 36).toString(36)).join('')
}

const saltChars = 15
const drawn = 1000

/**
 * Salts of 15 letters, digits, `-` and `_`, each in base64, which is how answers contain them: 90
 * random bits, so that a salt is unique and cannot be guessed. One call of the system's generator,
 * which is slow, serves a thousand salts.
 */
export function salts(): () => string {
  const encodedChars = (saltChars * 4) / 3
  let pool = ''
  let at = 0
  return () => {
    if (at === pool.length) {
      const bytes = crypto.getRandomValues(new Uint8Array((saltChars * drawn * 3) / 4))
      pool = btoa(Buffer.from(bytes.buffer).toString('base64url'))
      at = 0
    }
    at += encodedChars
    return pool.slice(at - encodedChars, at)
  }
}
