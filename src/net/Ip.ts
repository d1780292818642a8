import { ipVersion } from './runtime'

/**
 * Blocks of https://www.iana.org/assignments/iana-ipv4-special-registry that are not the public
 * internet, plus multicast, class E and Azure's virtual host address, which is inside a public
 * block.
 */
const reserved4 = [
  '0.0.0.0/8',
  '10.0.0.0/8',
  '100.64.0.0/10',
  '127.0.0.0/8',
  '168.63.129.16/32',
  '169.254.0.0/16',
  '172.16.0.0/12',
  '192.0.0.0/24',
  '192.0.2.0/24',
  '192.88.99.0/24',
  '192.168.0.0/16',
  '198.18.0.0/15',
  '198.51.100.0/24',
  '203.0.113.0/24',
  '224.0.0.0/4',
  '240.0.0.0/4',
].map((block) => {
  const [address = '', bits] = block.split('/')
  const size = 2 ** (32 - Number(bits))
  return { from: number4(address), size }
})

/**
 * Whether an address belongs to the public internet. IPv6 is an allowlist: global unicast
 * (2000::/3) without the blocks that embed another address (Teredo, 6to4) or are for documentation.
 * So IPv4-mapped, NAT64, loopback, unique local, link-local, site-local and multicast addresses are
 * refused, and everything that is not a plain address, such as one with a zone.
 */
export function isPublic(address: string): boolean {
  const version = ipVersion(address)
  if (version === 4) {
    const value = number4(address)
    return !reserved4.some(({ from, size }) => value >= from && value < from + size)
  }
  return version === 6 && !address.includes('%') && isPublic6(groups(address))
}

function isPublic6([first = 0, second = 0]: number[]): boolean {
  if (first < 0x2000 || first > 0x3fff) return false
  // 2001::/23 protocol assignments (Teredo, ORCHID, benchmarking), 2001:db8::/32 documentation.
  if (first === 0x2001 && (second < 0x200 || second === 0xdb8)) return false
  // 2002::/16 6to4; 3fff::/20 documentation.
  return first !== 0x2002 && !(first === 0x3fff && second < 0x1000)
}

function number4(address: string): number {
  return address.split('.').reduce((sum, byte) => sum * 256 + Number(byte), 0)
}

/** The eight groups of a valid IPv6 address without a dotted tail in its first half. */
function groups(address: string): number[] {
  const [head = '', tail] = address.split('::')
  const parse = (text: string) =>
    text === '' ? [] : text.split(':').map((group) => Number.parseInt(group, 16))
  const left = parse(head)
  const right = tail === undefined ? [] : parse(tail)
  // A dotted tail counts as one part for two groups, but only the first groups are compared.
  return [...left, ...Array<number>(Math.max(0, 8 - left.length - right.length)).fill(0), ...right]
}
