import { createPublicKey, type KeyObject, sign } from 'node:crypto'

const sequence = 0x30
const set = 0x31
const octets = 0x04
const bits = 0x03
const identifier = 0x06
/** [0] of a CertificationRequestInfo: its attributes. */
const attributes = 0xa0
/** [2] of a GeneralName: a DNS name. */
const dnsName = 0x82

const extensionRequest = der(identifier, hex('2a864886f70d01090e'))
const subjectAltName = der(identifier, hex('551d11'))
const ecdsaWithSha256 = der(sequence, der(identifier, hex('2a8648ce3d040302')))

/**
 * A request for a certificate of these DNS names (ASCII), signed by its private key on P-256, as
 * DER. The names are only in the extension subjectAltName, and the subject is empty. RFC 2986.
 */
export function from(domains: readonly string[], key: KeyObject): Buffer {
  const names = domains.map((domain) => der(dnsName, Buffer.from(domain, 'latin1')))
  const extension = der(sequence, subjectAltName, der(octets, der(sequence, ...names)))
  const version = hex('020100')
  const subject = der(sequence)
  const publicKey = createPublicKey(key).export({ type: 'spki', format: 'der' })
  const wanted = der(sequence, extensionRequest, der(set, der(sequence, extension)))
  const body = der(sequence, version, subject, publicKey, der(attributes, wanted))
  const signature = sign('sha256', body, key)
  return der(sequence, body, ecdsaWithSha256, der(bits, hex('00'), signature))
}

function der(tag: number, ...parts: Uint8Array[]): Buffer {
  const content = Buffer.concat(parts)
  const { length } = content
  if (length < 0x80) return Buffer.concat([Buffer.from([tag, length]), content])
  const size = length < 0x100 ? [0x81, length] : [0x82, length >> 8, length & 0xff]
  return Buffer.concat([Buffer.from([tag, ...size]), content])
}

function hex(text: string): Buffer {
  return Buffer.from(text, 'hex')
}
