/** Short ids that do not repeat: a random prefix for the process and a counter. */
export function requestIds(): () => string {
  const prefix = base36(8)
  let counter = 0
  return () => `${prefix}-${(counter++).toString(36)}`
}

/** Random text of small letters and digits. */
export function base36(length: number): string {
  const bytes = crypto.getRandomValues(new Uint8Array(length))
  return Array.from(bytes, (byte) => (byte % 36).toString(36)).join('')
}
