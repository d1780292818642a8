const byte = '(?:\\d|[1-9]\\d|1\\d\\d|2[0-4]\\d|25[0-5])'
const ipv4 = new RegExp(`^${byte}(?:\\.${byte}){3}$`)

// These modules of the runtime load slowly, streams included: the first takes 15 to 30 ms. No start
// needs them, so they are loaded at their first use.

const net = () => process.getBuiltinModule('node:net')
export const zlib = () => process.getBuiltinModule('node:zlib')

/**
 * Version of an IP address, as `isIP` of `node:net`: 0 for any other text. Only IPv6 loads that
 * module, because the first buyer would wait for it.
 */
export function ipVersion(text: string): number {
  if (ipv4.test(text)) return 4
  return text.includes(':') ? net().isIP(text) : 0
}
